from __future__ import annotations

import pytest
from msgspec import structs

from ckptgov.catalog.facts import EventKind
from ckptgov.errors import UsageError
from ckptgov.model.access import Right, TokenFacts

TOKEN = TokenFacts(
    token_id="t1",
    label="ci\udcff",
    secret_sha256="ab" * 32,
    rights=frozenset({Right.READ, Right.COMMIT}),
    teams=("llm", "vision\udcfe"),
    node="n1",
    created_at_ns=5,
    expires_at_ns=9,
)


def test_a_token_is_found_by_its_secret_as_it_was_kept(catalog) -> None:
    catalog.tokens.add(TOKEN)
    assert catalog.tokens.by_secret(TOKEN.secret_sha256) == TOKEN
    assert catalog.tokens.by_secret("other") is None
    assert catalog.tokens.tokens() == (TOKEN,)


@pytest.mark.parametrize("change", [{"token_id": "t2"}, {"secret_sha256": "cd" * 32}])
def test_neither_an_id_nor_a_secret_is_kept_twice(catalog, change) -> None:
    catalog.tokens.add(TOKEN)
    with pytest.raises(FileExistsError):
        catalog.tokens.add(structs.replace(TOKEN, **change))
    assert catalog.tokens.tokens() == (TOKEN,)


def test_a_revoked_token_says_so_at_once_and_the_first_time_stands(
    catalog, open_catalog, clock
) -> None:
    catalog.tokens.add(TOKEN)
    revoked = catalog.tokens.revoke("t1")
    assert revoked.revoked_at_ns == clock.at_ns
    clock.at_ns += 1
    assert catalog.tokens.revoke("t1") == revoked
    assert open_catalog().tokens.by_secret(TOKEN.secret_sha256) == revoked
    kinds = [event.kind for event in catalog.events()]
    assert kinds[-2:] == [EventKind.TOKEN_ADDED, EventKind.TOKEN_REVOKED]


def test_a_token_that_never_was_cannot_be_revoked(catalog) -> None:
    with pytest.raises(UsageError, match="no token"):
        catalog.tokens.revoke("t1")


def test_events_tell_of_a_token_but_not_its_secret(catalog) -> None:
    catalog.tokens.add(TOKEN)
    assert dict(catalog.events()[-1].detail) == {"token": "t1", "label": "ci\udcff"}
