"""Amounts as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptgov.config.units import (
    HIGHEST_BYTES,
    bytes_text,
    duration_text,
    parse_bytes,
    parse_rate,
    parse_requests,
    rate_text,
)
from ckptgov.errors import UsageError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("1B", 1),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("50TB", 50 * 10**12),
        ("1.5 GiB", 3 * 2**29),
        ("2PB", 2 * 10**15),
        ("0.5kB", 500),
    ],
)
def test_an_amount_is_decimal_or_binary(text, count):
    assert parse_bytes(text) == count
    if not text.isdecimal():
        assert parse_rate(text + "/s") == count


@pytest.mark.parametrize("text", ["", "kB", "1e9", "1,5GB", "1 GB x", "GB1", "\u0661", "1GB/min"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(UsageError):
        parse_bytes(text)
    with pytest.raises(UsageError):
        parse_rate(text)


def test_a_bare_rate_is_in_bytes():
    assert parse_rate("200000000") == 200_000_000


def test_calls_are_per_second():
    assert parse_requests("500/s") == parse_requests("500") == 500


@given(st.integers(1, HIGHEST_BYTES))
def test_what_is_written_reads_the_same(count):
    assert parse_bytes(bytes_text(count)) == count
    assert parse_rate(rate_text(count)) == count


@pytest.mark.parametrize(
    ("count", "text"), [(10**9, "1GB"), (2**20, "1MiB"), (1500, "1500B"), (2 * 10**12, "2TB")]
)
def test_the_largest_exact_unit_is_written(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(3600.0, "1h"), (90.0, "90s"), (86400.0, "1d")])
def test_a_length_of_time_is_written_in_its_largest_unit(seconds, text):
    assert duration_text(seconds) == text
