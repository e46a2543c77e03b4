"""Receipts of object tiers: size, etag and, where there is one, the version."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptgov.errors import Malformed
from ckptgov.manifest.forms.receipts import decode_receipt, encode_receipt
from ckptgov.model.checkpoint import Evidence, Receipt
from ckptgov.model.files import Token

TEXTS = st.text(min_size=1, max_size=20)
OBJECT_TOKENS = st.builds(
    Token,
    st.integers(0, 2**63 - 1),
    st.just(0),
    st.just(0),
    st.just(0),
    TEXTS,
    st.one_of(st.none(), TEXTS),
)


def receipt(*tokens: tuple[str, Token]) -> Receipt:
    return Receipt(
        content_id="sha256:" + "9" * 64,
        place="aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
        evidence=Evidence.DIGEST,
        verified_at_ns=5,
        tokens=tokens,
    )


@given(st.dictionaries(st.text("abc/", min_size=1, max_size=3), OBJECT_TOKENS, min_size=1))
def test_what_is_written_is_read_again(tokens: dict[str, Token]) -> None:
    sound = {path: one for path, one in tokens.items() if all(path.split("/"))}
    if not sound:
        return
    rows = sorted(sound.items(), key=lambda row: row[0].encode())
    assert decode_receipt(encode_receipt(receipt(*rows)), where="r") == receipt(*rows)


def test_a_row_holds_path_bytes_etag_and_version_in_this_order() -> None:
    rows = (("a", Token(5, 0, 0, 0, "d41d8-3")), ("b", Token(0, 0, 0, 0, "e1", "v1")))
    lines = encode_receipt(receipt(*rows)).decode().splitlines()
    assert lines[1:3] == [
        '{"path":"a","bytes":5,"etag":"d41d8-3"},',
        '{"path":"b","bytes":0,"etag":"e1","version_id":"v1"}',
    ]
    assert json.loads("".join(lines))["shards"][1]["version_id"] == "v1"


def test_tokens_of_two_kinds_are_refused() -> None:
    with pytest.raises(Malformed, match="of a file system and of an object store"):
        encode_receipt(receipt(("a", Token(1, 2, 3, 4)), ("b", Token(1, 0, 0, 0, "e"))))


def test_a_row_of_the_other_kind_is_refused_on_reading() -> None:
    raw = encode_receipt(receipt(("a", Token(5, 0, 0, 0, "e1")), ("b", Token(5, 0, 0, 0, "e2"))))
    mixed = raw.replace(b'"etag":"e2"', b'"mtime_ns":1,"ctime_ns":1,"inode":1')
    with pytest.raises(Malformed):
        decode_receipt(mixed, where="r")


def test_an_etag_that_changed_or_another_version_is_another_content() -> None:
    sealed = Token(5, 0, 0, 0, "e1", "v1")
    assert sealed.same_content(Token(5, 0, 0, 0, "e1"))  # a listing knows no versions
    assert not sealed.same_content(Token(5, 0, 0, 0, "e1", "v2"))
    assert not sealed.same_content(Token(5, 0, 0, 0, "e2", "v1"))
    assert not sealed.same_content(Token(6, 0, 0, 0, "e1", "v1"))
    assert not sealed.same_content(Token(5, 0, 0, 0))
