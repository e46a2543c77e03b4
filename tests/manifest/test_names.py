from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptgov.errors import Malformed
from ckptgov.manifest import names

CONTENT_ID = f"sha256:{'0123456789abcdef' * 4}"
PART = st.binary(min_size=1, max_size=30).filter(
    lambda part: part not in (b".", b"..") and not set(part) & {0, 0x2F}
)
PATHS = st.lists(PART, min_size=1, max_size=4).map(
    lambda parts: b"/".join(parts).decode("utf-8", "surrogateescape")
)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "is empty"),
        ("/etc/passwd", "is absolute"),
        ("a//b", "empty part"),
        ("a/", "empty part"),
        ("./a", '"." or ".."'),
        ("a/./b", '"." or ".."'),
        ("a/../../b", '"." or ".."'),
        ("..", '"." or ".."'),
        ("a\0b", "NUL"),
        ("x" * 4097, "4097 bytes"),
        ("é" * 2049, "4098 bytes"),
        ("\ud800", "lone surrogate"),
        ("\udcc3\udca9", "plain UTF-8"),
    ],
)
def test_what_is_no_path_is_refused_with_the_file_that_has_it(path: str, why: str) -> None:
    with pytest.raises(Malformed, match=why) as caught:
        names.check_path(path, "here.json")
    assert caught.value.message.startswith("here.json: path ")
    assert not names.are_ordinary(["fine", path])


@pytest.mark.parametrize("path", ["a", "...", ".a/..b/c...", "x" * 4096, "é\udce4", "a b\n"])
def test_any_other_name_is_a_path(path: str) -> None:
    names.check_path(path, "here.json")


@pytest.mark.parametrize("odd", ["a\nb", "a b", "é", "", "a//b", ".", "x" * 4097])
def test_one_odd_path_makes_the_lot_not_ordinary(odd: str) -> None:
    assert names.are_ordinary(["a/b.c", "..d/=~_-"])
    assert not names.are_ordinary(["a", odd, "b"])


@given(PATHS)
def test_percent_encoding_gives_any_path_back(path: str) -> None:
    encoded = names.percent_encode(path, "here")
    assert encoded.isascii()
    assert names.percent_decode(encoded, "here") == path


@given(PATHS)
def test_names_of_files_give_the_name_and_the_content_back(path: str) -> None:
    encoded = names.file_name_of(path)
    file_name = names.manifest_file_name(path, CONTENT_ID)
    assert len(file_name) <= 255
    assert "/" not in file_name
    assert names.parse_manifest_file_name(file_name) == (encoded, "0123456789abcdef")
    assert names.parse_receipt_file_name(names.receipt_file_name(path, CONTENT_ID, 7)) == (
        encoded,
        "0123456789abcdef",
        7,
    )


@pytest.mark.parametrize("text", ["%E4", "%4", "%", "a b", "%41", "é", "%zz", "a\n"])
def test_a_percent_spelling_that_is_not_the_only_one_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="here: "):
        names.percent_decode(text, "here")


@pytest.mark.parametrize(
    ("plain", "length"), [(177, 180), (178, 178), (179, 179), (180, 180), (181, 180)]
)
def test_a_long_name_is_cut_at_180_bytes_but_never_inside_an_escape(
    plain: int, length: int
) -> None:
    encoded = names.file_name_of("x" * plain + "\n\n")
    assert len(encoded) == length
    assert encoded.strip("x") in ("", "%0a")


@pytest.mark.parametrize(
    "file_name",
    [
        "step_1.0123456789abcdef",
        "step_1.0123456789ABCDEF.json",
        "step_1.0123456789abcde.json",
        ".0123456789abcdef.json",
        "a%2F.0123456789abcdef.json",
        "a b.0123456789abcdef.json",
        "x" * 181 + ".0123456789abcdef.json",
        ".tmp.json",
        "step_1.0123456789abcdef.000001.json",
    ],
)
def test_other_files_are_no_manifests(file_name: str) -> None:
    assert names.parse_manifest_file_name(file_name) is None


def test_a_manifest_and_receipt_number_zero_are_no_receipts() -> None:
    assert names.parse_receipt_file_name("step_1.0123456789abcdef.json") is None
    assert names.parse_receipt_file_name("step_1.0123456789abcdef.000000.json") is None
    assert names.parse_receipt_file_name("step_1.0123456789abcdef.0000001.json") is None
    assert names.parse_receipt_file_name("step_1.0123456789abcdef.000001") is None


def test_record_names_carry_number_and_kind() -> None:
    assert names.record_file_name(12, "mark-bad") == "00000012.mark-bad.json"
    assert names.parse_record_file_name("00000012.mark-bad.json") == (12, "mark-bad")


@pytest.mark.parametrize(
    "file_name",
    [
        "12.pin.json",
        "00000000.pin.json",
        "00000001..json",
        "00000001.pin",
        "0000000a.pin.json",
        "restart.0123456789abcdef.0.json",
        "00000001.Pin.json",
        "00000001.a.b.json",
    ],
)
def test_other_files_are_no_records(file_name: str) -> None:
    assert names.parse_record_file_name(file_name) is None


def test_a_restart_name_is_fixed_by_id_and_epoch() -> None:
    file_name = names.restart_file_name("slurm-1-0", 12)
    assert names.parse_restart_file_name(file_name) == ("23a5c80cf3c7e20f", 12)
    for other in ("restart.23a5c80cf3c7e20f.012.json", "restart.23a5.0.json", "00000001.pin.json"):
        assert names.parse_restart_file_name(other) is None


def test_numbers_beyond_their_digits_are_refused() -> None:
    for number in (0, 10**6):
        with pytest.raises(Malformed, match="6 digits"):
            names.receipt_file_name("a", CONTENT_ID, number)
    for number in (0, 10**8):
        with pytest.raises(Malformed, match="8 digits"):
            names.record_file_name(number, "pin")
    with pytest.raises(Malformed, match="no number"):
        names.record_file_name(1, "restart")


def test_parts_are_named_by_save_and_rank_and_must_fit_a_file_name() -> None:
    assert names.part_file_name("a/b", "save-1", 3) == "a%2fb.save-1.3.json"
    with pytest.raises(Malformed, match="do not fit"):
        names.part_file_name("x" * 200, "s" * 36, "node" * 16)


def test_file_names_take_only_content_ids() -> None:
    with pytest.raises(Malformed, match="content id"):
        names.manifest_file_name("a", "sha256:0123456789abcdef")
    with pytest.raises(Malformed, match="content id"):
        names.manifest_file_name("a", CONTENT_ID.upper())
