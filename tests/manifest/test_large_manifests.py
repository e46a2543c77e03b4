"""100,000 shards: a generous look at time and memory, to catch what is not linear."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from ckptgov.manifest.build import build_manifest
from ckptgov.manifest.forms.manifests import decode_manifest, encode_manifest
from ckptgov.model.checkpoint import Purpose, Shard, StepKind


@pytest.fixture(scope="module")
def raw() -> bytes:
    return encode_manifest(
        build_manifest(
            name="step_1",
            step=1,
            step_kind=StepKind.STEP,
            layout="dcp",
            world_size=100_000,
            purposes=[Purpose.RESUME],
            shards=[Shard(f"rank_{n:06d}.pt", n, f"xxh3_128:{n:032x}") for n in range(100_000)],
        )
    )


def test_decoding_takes_seconds_at_most(raw: bytes) -> None:
    began = time.process_time()
    assert len(decode_manifest(raw, where="here").shards) == 100_000
    assert time.process_time() - began < 15


def test_decoding_takes_a_small_multiple_of_the_file_in_memory(raw: bytes) -> None:
    tracemalloc.start()
    try:
        decode_manifest(raw, where="here")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20 * len(raw)
