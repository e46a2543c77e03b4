"""What the tests of movers share: shards and manifests of bytes given in the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ckptgov.manifest.build import build_manifest
from ckptgov.manifest.digest import digest_file
from ckptgov.model.checkpoint import Manifest, Purpose, Shard, StepKind
from ckptgov.storage.memory import MemoryStorage


@pytest.fixture
def shard_of() -> Callable[[str, bytes], Shard]:
    """The manifest's entry for these bytes."""

    def entry(path: str, content: bytes) -> Shard:
        storage = MemoryStorage()
        storage.put_file("shard", content)
        with storage.open("shard") as file:
            return digest_file(file).shard(path)

    return entry


@pytest.fixture
def manifest_of(shard_of: Callable[[str, bytes], Shard]) -> Callable[..., Manifest]:
    """The manifest of a checkpoint of these files."""

    def build(files: Mapping[str, bytes], name: str = "step_1") -> Manifest:
        return build_manifest(
            name=name,
            step=1,
            step_kind=StepKind.STEP,
            layout="dcp",
            world_size=None,
            purposes=(Purpose.RESUME, Purpose.WEIGHTS),
            shards=[shard_of(path, content) for path, content in files.items()],
        )

    return build
