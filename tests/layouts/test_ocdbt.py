"""OCDBT manifests and nodes as TensorStore wrote them, and what damage does to them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptgov.layouts.crc32c import crc32c
from ckptgov.layouts.ocdbt import OcdbtError, Reference, read_manifest, read_node

ITEM = "orbax/atomic-rename/1/state"


@pytest.fixture(scope="module")
def manifest(samples: Path) -> bytes:
    return (samples / ITEM / "manifest.ocdbt").read_bytes()


@pytest.fixture(scope="module")
def root(samples: Path, manifest: bytes) -> tuple[Reference, bytes]:
    place = read_manifest(manifest).root
    assert place is not None
    return place, (samples / ITEM / place.path).read_bytes()


def test_crc32c_gives_the_check_value_of_its_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_a_manifest_leads_to_the_root_of_the_newest_version(manifest: bytes) -> None:
    place = read_manifest(manifest).root
    assert place == Reference("", "d/22438974929dd9cdfea7be41d7a82a95", 0, 348)


def test_the_newest_of_several_versions_counts(samples: Path) -> None:
    process = samples / ITEM / "ocdbt.process_0"
    place = read_manifest((process / "manifest.ocdbt").read_bytes()).root
    assert place is not None
    assert (place.path, place.end) == ("d/cdb6538174dda3df8cb7aac99769f1a2", 20710)


def test_a_node_tells_where_each_large_value_lies(root: tuple[Reference, bytes]) -> None:
    node = read_node(root[1], root[0], check_crc=True)
    file = "ocdbt.process_0/d/cdb6538174dda3df8cb7aac99769f1a2"
    assert node.children == ()
    assert [(v.path, v.offset, v.length) for v in node.values] == [
        (file, 0, 10356),
        (file, 10356, 10015),
    ]


def test_paths_in_a_node_hang_from_where_the_node_was_found(root: tuple[Reference, bytes]) -> None:
    place = Reference("elsewhere/", root[0].path, root[0].offset, root[0].length)
    node = read_node(root[1], place, check_crc=True)
    assert node.values[0].path.startswith("elsewhere/ocdbt.process_0/d/")


@pytest.mark.parametrize(
    ("damage", "evidence"),
    [
        (lambda b: b[:-1], "has 114 bytes where its header says 115"),
        (lambda b: b[:10], "is too short"),
        (lambda b: b"\0\0\0\0" + b[4:], "instead of 0cdb3a2a"),
        (lambda b: b[:60] + bytes([b[60] ^ 1]) + b[61:], "CRC-32C does not match"),
    ],
)
def test_a_damaged_manifest_is_refused(manifest: bytes, damage: object, evidence: str) -> None:
    assert callable(damage)
    with pytest.raises(OcdbtError, match=evidence):
        read_manifest(damage(manifest))


def test_a_flipped_bit_in_a_node_is_found_by_its_crc(root: tuple[Reference, bytes]) -> None:
    flipped = root[1][:200] + bytes([root[1][200] ^ 4]) + root[1][201:]
    with pytest.raises(OcdbtError):
        read_node(flipped, root[0], check_crc=True)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200))
def test_hostile_bodies_end_in_the_one_error(body: bytes) -> None:
    for magic, read in (
        (b"\x0c\xdb\x3a\x2a", read_manifest),
        (b"\x0c\xdb\x20\xde", lambda b: read_node(b, Reference("", "d", 0, 0), check_crc=False)),
    ):
        length = (12 + 2 + len(body) + 4).to_bytes(8, "little")
        unsealed = magic + length + b"\0\0" + body
        sealed = unsealed + crc32c(unsealed).to_bytes(4, "little")
        with contextlib.suppress(OcdbtError):
            read(sealed)


def test_a_manifest_that_unpacks_to_nothing_is_refused() -> None:
    import zstandard

    packed = zstandard.ZstdCompressor().compress(b"")
    unsealed = b"\x0c\xdb\x3a\x2a" + (18 + len(packed)).to_bytes(8, "little") + b"\0\x01" + packed
    with pytest.raises(OcdbtError, match="ends at byte 0"):
        read_manifest(unsealed + crc32c(unsealed).to_bytes(4, "little"))
