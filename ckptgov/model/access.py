"""Who may do what through the service: rights, tokens, and the caller of one request."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.errors import NotAllowed


class Right(StrEnum):
    """What a token may be allowed. None implies another, save ``admin``, which implies all."""

    READ = "read"  # ask: latest, list, events, flows
    COMMIT = "commit"  # say what was written, what is bad, what a restart came to
    RESTORE = "restore"  # decide restarts; read shards from other nodes
    PLAN = "plan"  # ask for flushes, verifications and plans
    APPLY = "apply"  # carry out what removes or re-orders: rollback, drain, plans
    AGENT = "agent"  # speak for one node: beat, post facts, take its tasks
    ADMIN = "admin"  # tokens, budgets, nodes, everything


class TokenFacts(Struct, frozen=True, kw_only=True):
    """A token as it is kept: its secret only as a SHA-256, so that a stolen catalog opens nothing.

    ``teams`` empty: of every team. ``node``: the only node an agent's token speaks for.
    """

    token_id: str
    label: str
    secret_sha256: str
    rights: frozenset[Right]
    teams: tuple[str, ...] = ()
    node: str | None = None
    created_at_ns: int
    expires_at_ns: int | None = None
    revoked_at_ns: int | None = None


class Caller(Struct, frozen=True, kw_only=True):
    """Whoever sent one request, as far as it may go. ``name`` goes into records."""

    name: str
    rights: frozenset[Right]
    teams: tuple[str, ...] = ()
    node: str | None = None

    def may(self, right: Right) -> bool:
        """Whether the right was given, or all of them."""
        return right in self.rights or Right.ADMIN in self.rights

    def require(self, right: Right) -> None:
        """Raises NotAllowed where the right was not given."""
        if not self.may(right):
            raise NotAllowed(
                f"this token may not {right.value}",
                hint=f"ask an admin for a token with the right '{right.value}'",
            )

    def sees(self, run: str) -> bool:
        """Whether a run of this name exists for the caller; another team's does not."""
        return not self.teams or team_of(run) in self.teams

    def require_node(self, node: str) -> None:
        """Raises NotAllowed where the token speaks for another node."""
        if self.node is not None and self.node != node:
            raise NotAllowed(f"this token speaks for node {self.node}, not for {node}")


EVERYTHING = Caller(name="loopback", rights=frozenset({Right.ADMIN}))
"""Who asks where the service was started without tokens on purpose."""


def team_of(run: str) -> str:
    """The team in ``team/name``; "" for a run without one."""
    return run.partition("/")[0] if "/" in run else ""
