"""Paths and URLs under one set of calls."""

from __future__ import annotations

import pytest

from ckptgov.work import addresses


@pytest.mark.parametrize(
    ("root", "below", "joined"),
    [
        ("/a", "b/c", "/a/b/c"),
        ("/", "b", "/b"),
        ("/a", "", "/a"),
        ("s3://bucket", "b c/d", "s3://bucket/b%20c/d"),
        ("s3://bucket/p", "50%", "s3://bucket/p/50%25"),
        ("memory://x", "b c", "memory://x/b c"),
        ("/a", "b c%", "/a/b c%"),
    ],
)
def test_joining_and_taking_apart_are_each_others_reverse(root, below, joined):
    assert addresses.join(root, below) == joined
    assert addresses.relative(joined, root) == below


@pytest.mark.parametrize(
    ("address", "root"),
    [
        ("/ab", "/a"),
        ("/a", "/a/b"),
        ("s3://bucket-two/a", "s3://bucket"),
        ("s3://bucket/a", "/bucket"),
        ("/bucket/a", "s3://bucket"),
    ],
)
def test_what_only_begins_alike_is_not_below(address, root):
    assert addresses.relative(address, root) is None


@pytest.mark.parametrize(
    ("address", "above", "name"),
    [
        ("/a/b", "/a", "b"),
        ("/", "/", ""),
        ("s3://bucket/a/b%20c", "s3://bucket/a", "b c"),
        ("s3://bucket/a", "s3://bucket", "a"),
        ("s3://bucket", "s3://bucket", "bucket"),
        ("hdfs:///a/b", "hdfs:///a", "b"),
        ("hdfs:///a", "hdfs:///a", "a"),
    ],
)
def test_every_address_has_one_above_until_the_top(address, above, name):
    assert addresses.parent(address) == above
    assert addresses.name_of(address) == name


def test_a_store_is_opened_above_names_that_keys_carry_escaped():
    assert addresses.unescaped_root("s3://bucket/a/b%20c/d") == "s3://bucket/a"
    assert addresses.unescaped_root("s3://bucket/a") == "s3://bucket/a"
    assert addresses.unescaped_root("/a%b") == "/a%b"
