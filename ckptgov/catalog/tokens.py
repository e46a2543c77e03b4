"""Tokens as they are kept: what they may do, and of their secret no more than its digest."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, bindparam, select, update
from sqlmodel import col

from ckptgov.catalog.cluster_tables import TokenRow
from ckptgov.catalog.database import Database
from ckptgov.catalog.dialect import add_new
from ckptgov.catalog.facts import EventKind
from ckptgov.catalog.history import write_event
from ckptgov.catalog.rows import decoded
from ckptgov.errors import UsageError
from ckptgov.model.access import Right, TokenFacts

_TOKENS = select(TokenRow).order_by(col(TokenRow.created_at_ns), col(TokenRow.token_id))
_BY_SECRET = select(TokenRow).where(col(TokenRow.secret_sha256) == bindparam("secret_sha256"))
_TOKEN = select(TokenRow).where(col(TokenRow.token_id) == bindparam("token_id"))


class TokenBook:
    """Tokens, also expired and revoked ones: whoever asks looks at their times."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, token: TokenFacts) -> None:
        """Keep a new token.

        Raises:
            FileExistsError: its id or its secret is taken.
        """
        with self._database.write() as connection:
            if not add_new(connection, TokenRow, _values(token)):
                raise FileExistsError(f"token {token.token_id}, or its secret, is known already")
            at_ns = self._database.now_ns(connection)
            _tell(connection, EventKind.TOKEN_ADDED, token, at_ns=at_ns)

    def by_secret(self, sha256: str) -> TokenFacts | None:
        """The token whose secret has this SHA-256 (hex)."""
        with self._database.read() as connection:
            return _only(connection.execute(_BY_SECRET, {"secret_sha256": sha256}))

    def revoke(self, token_id: str) -> TokenFacts:
        """Make a token good for nothing from here on; the first time stands.

        Raises:
            UsageError: there is no token of this id.
        """
        with self._database.write() as connection:
            at_ns = self._database.now_ns(connection)
            this = (col(TokenRow.token_id) == token_id, col(TokenRow.revoked_at_ns).is_(None))
            statement = update(TokenRow).where(*this).values(revoked_at_ns=at_ns)
            is_new = bool(connection.execute(statement).rowcount)
            token = _only(connection.execute(_TOKEN, {"token_id": token_id}))
            if token is None:
                raise UsageError(f"there is no token {token_id}")
            if is_new:
                _tell(connection, EventKind.TOKEN_REVOKED, token, at_ns=at_ns)
            return token

    def tokens(self) -> tuple[TokenFacts, ...]:
        """Every token, oldest first."""
        with self._database.read() as connection:
            return decoded(_token, connection.execute(_TOKENS))


def _tell(connection: Connection, kind: EventKind, token: TokenFacts, *, at_ns: int) -> None:
    detail = (("token", token.token_id), ("label", token.label))
    write_event(connection, kind, at_ns=at_ns, detail=detail)


def _only(rows: Any) -> TokenFacts | None:
    found = decoded(_token, rows)
    return found[0] if found else None


def _values(token: TokenFacts) -> dict[str, object]:
    return {
        "token_id": token.token_id,
        "label": token.label,
        "secret_sha256": token.secret_sha256,
        "rights": " ".join(sorted(each.value for each in token.rights)),
        "teams": json.dumps(token.teams),
        "node": token.node,
        "created_at_ns": token.created_at_ns,
        "expires_at_ns": token.expires_at_ns,
        "revoked_at_ns": token.revoked_at_ns,
    }


def _token(row: Any) -> TokenFacts:
    return TokenFacts(
        token_id=row.token_id,
        label=row.label,
        secret_sha256=row.secret_sha256,
        rights=frozenset(Right(each) for each in row.rights.split()),
        teams=tuple(str(each) for each in json.loads(row.teams)),
        node=row.node,
        created_at_ns=row.created_at_ns,
        expires_at_ns=row.expires_at_ns,
        revoked_at_ns=row.revoked_at_ns,
    )
