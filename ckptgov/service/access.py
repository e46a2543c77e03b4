"""Tokens: made, shown once, and looked up by the hash of what a request carries.

A token's text is ``ckptgov_<id>_<secret>``, the secret 32 random bytes. Only its SHA-256 is kept,
and found by an index: comparing takes no time that depends on the text. Every request is checked
against the catalog itself, so that a revoked token fails with the next one.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection

from msgspec import Struct

from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import NotAllowed, UsageError
from ckptgov.model.access import EVERYTHING, Caller, Right, TokenFacts

SCHEME = "bearer"
_TEXT = re.compile(r"ckptgov_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")
_MAX_LABEL = 200


class Unauthorized(NotAllowed):
    """No token, or none that is known, was given: nothing is told of what was asked for."""

    kind = "unauthorized"


class MadeToken(Struct, frozen=True, kw_only=True):
    """A token with its text, which is shown to whoever asked for it and kept nowhere."""

    facts: TokenFacts
    text: str


def hash_of(text: str) -> str:
    """What is kept of a token's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def make_token(
    catalog: Catalog,
    *,
    label: str,
    rights: Collection[Right],
    teams: Collection[str] = (),
    node: str | None = None,
    now_ns: int,
    ttl_s: float | None = None,
    random: Callable[[int], bytes] = secrets.token_bytes,
) -> MadeToken:
    """Make a token and keep its hash.

    Raises:
        UsageError: no rights, a name that cannot be one, or a node's token bound to teams.
    """
    _check(label, rights, teams, node)
    token_id = random(8).hex()
    text = f"ckptgov_{token_id}_{urlsafe_b64encode(random(32)).rstrip(b'=').decode()}"
    facts = TokenFacts(
        token_id=token_id,
        label=label,
        secret_sha256=hash_of(text),
        rights=frozenset(rights),
        teams=tuple(sorted(set(teams))),
        node=node,
        created_at_ns=now_ns,
        expires_at_ns=None if ttl_s is None else now_ns + int(ttl_s * 1e9),
    )
    catalog.tokens.add(facts)
    return MadeToken(facts=facts, text=text)


def bootstrap(catalog: Catalog, *, now_ns: int, label: str = "admin") -> MadeToken:
    """The first token of a catalog, which may do everything: made where the catalog is."""
    return make_token(catalog, label=label, rights={Right.ADMIN}, now_ns=now_ns)


def caller_of(
    catalog: Catalog, authorization: str | None, *, now_ns: int, is_open: bool = False
) -> Caller:
    """Who sends a request with this ``Authorization``; ``is_open``: whoever it is may do all.

    Raises:
        Unauthorized: there is no token, or it is unknown, expired or revoked: one and the same.
    """
    if is_open:
        return EVERYTHING
    scheme, _, text = (authorization or "").strip().partition(" ")
    if scheme.lower() != SCHEME or _TEXT.fullmatch(text.strip()) is None:
        raise _unauthorized()
    facts = catalog.tokens.by_secret(hash_of(text.strip()))
    if facts is None or not is_in_force(facts, now_ns):
        raise _unauthorized()
    return caller_with(facts)


def caller_with(facts: TokenFacts) -> Caller:
    """The caller that a token in force makes of a request."""
    return Caller(
        name=f"token:{facts.label}", rights=facts.rights, teams=facts.teams, node=facts.node
    )


def is_in_force(facts: TokenFacts, now_ns: int) -> bool:
    """Whether a token is neither revoked nor expired."""
    return facts.revoked_at_ns is None and (
        facts.expires_at_ns is None or now_ns < facts.expires_at_ns
    )


def require_one_of(caller: Caller, rights: Collection[Right]) -> None:
    """Raises NotAllowed where none of these rights was given."""
    if not any(caller.may(one) for one in rights):
        caller.require(next(iter(rights)))


def require_every_team(caller: Caller) -> None:
    """Raises NotAllowed where a token of some teams asks for what concerns all of them."""
    if caller.teams:
        raise NotAllowed(
            "this token is bound to teams, and this concerns every team",
            hint="ask an admin for a token that is bound to none",
        )


def check_listen(host: str, *, no_auth: bool) -> None:
    """Refuse to serve without tokens where other machines, or other users' browsers, may ask.

    Raises:
        UsageError: without tokens on an address that is not loopback.
    """
    if no_auth and not is_loopback(host):
        raise UsageError(
            f"--no-auth on {host}: every machine that reaches it could do everything",
            hint="listen on 127.0.0.1, or make a token: 'ckptgov token add'",
        )


def is_loopback(host: str) -> bool:
    """Whether a host's name or address can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _unauthorized() -> Unauthorized:
    return Unauthorized(
        "no token that is in force",
        hint="send 'Authorization: Bearer <token>' (CKPTGOV_TOKEN); an admin makes one",
    )


def _check(label: str, rights: Collection[Right], teams: Collection[str], node: str | None) -> None:
    if not rights:
        raise UsageError("a token without rights opens nothing", hint=", ".join(Right))
    for name in (label, *teams, *(() if node is None else (node,))):
        if not name or not name.isprintable() or len(name.encode()) > _MAX_LABEL:
            raise UsageError(f"{name!r} is no name for a token, team or node")
    if any("/" in team for team in teams):
        raise UsageError("a team is what stands before the '/' of a run's name")
    if Right.AGENT in rights and teams:
        raise UsageError("an agent's token is bound to its node, not to teams")
    if node is not None and not set(rights) & {Right.AGENT, Right.ADMIN}:
        raise UsageError(f"a token for node {node} needs the right 'agent'")
