"""Sealed checkpoints made quickly: small files, their manifest, and what a scan would record.

For tests that need many of them or one every few milliseconds; no layout examines them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import xxhash

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, RunRootFacts
from ckptgov.manifest.build import build_manifest
from ckptgov.manifest.forms.manifests import encode_manifest
from ckptgov.model.checkpoint import Evidence, Manifest, Purpose, RunIdentity, Shard, StepKind
from ckptgov.model.copies import CopyState
from ckptgov.ops.record import sealed_facts
from ckptgov.storage.posix import PosixStorage
from ckptgov.work.runstore import store_at
from ckptgov.work.tier import mint_identity, read_identity

SHARDS = ("rank_0.bin", "rank_1.bin")


def put_place(
    catalog: Catalog, root: Path, *, tier: str, node: str | None = None, uuid: str
) -> PlaceFacts:
    """A tier's root with its identity, known to the catalog; the caller configures the tier."""
    root.mkdir(parents=True, exist_ok=True)
    own = catalog.identity()
    with PosixStorage(root) as storage:
        if read_identity(storage) is None:
            mint_identity(
                storage, tier=tier, catalog=own.uuid, epoch=own.epoch, new_id=lambda: uuid
            )
    place = PlaceFacts(
        place=uuid,
        tier=tier,
        node=node,
        root=str(root),
        fs_type="ext4",
        source="/dev/sda1",
        first_seen_at_ns=len(catalog.places()) + 1,
    )
    catalog.put_place(place)
    return place


def put_run(catalog: Catalog, name: str, run_id: str, places: Sequence[PlaceFacts]) -> None:
    """A run at some places, under its own name below each root, with its identity there."""
    identity = RunIdentity(run_id=run_id, name=name)
    catalog.put_run(identity, 1)
    for place in places:
        os.makedirs(os.path.join(place.root, name), exist_ok=True)
        with PosixStorage(place.root) as storage:
            store = store_at(storage, name)
            store.create(identity)
        catalog.put_run_root(
            RunRootFacts(run_id=run_id, place=place.place, path=name, sidecar=store.sidecar)
        )


def manifest_of_step(
    step: int, *, name: str | None = None, shards: Sequence[str] = SHARDS, seed: str = ""
) -> Manifest:
    """The manifest of a small checkpoint; ``seed`` makes other bytes of the same names."""
    return build_manifest(
        name=name or f"step_{step}",
        step=step,
        step_kind=StepKind.STEP,
        layout="declared",
        world_size=len(shards),
        purposes=tuple(Purpose),
        shards=[
            Shard(path, len(raw), f"xxh3_128:{xxhash.xxh3_128_hexdigest(raw)}")
            for path in shards
            for raw in (_bytes_of(step, path, seed),)
        ],
    )


def _bytes_of(step: int, path: str, seed: str) -> bytes:
    return f"{step} {path} {seed}\n".encode() * 8


def write_shards(
    root: str | Path, manifest: Manifest, *, only: Sequence[str] | None = None, seed: str = ""
) -> Path:
    """The files of a manifest below a run root."""
    directory = Path(root) / manifest.name
    directory.mkdir(parents=True, exist_ok=True)
    for shard in manifest.shards:
        if only is None or shard.path in only:
            assert manifest.step is not None
            (directory / shard.path).write_bytes(_bytes_of(manifest.step, shard.path, seed))
    return directory


def record_sealed(
    catalog: Catalog,
    run_id: str,
    manifest: Manifest,
    places: Sequence[str],
    *,
    at_ns: int = 10,
    line: int = 1,
    attempt: int = 0,
    only: Sequence[str] | None = None,
    state: CopyState = CopyState.VERIFIED,
    is_new: bool = True,
) -> None:
    """What a scan records of a verified checkpoint; ``only``: each place has these shards."""
    coverage = None
    if only is not None:
        bits = bytearray((len(manifest.shards) + 7) // 8)
        for index, shard in enumerate(manifest.shards):
            if shard.path in only:
                bits[index // 8] |= 1 << (index % 8)
        coverage = bytes(bits)
    with catalog.transaction():
        if is_new:
            catalog.put_sealed(
                sealed_facts(run_id, manifest, line=line, attempt=attempt, sealed_at_ns=at_ns),
                encode_manifest(manifest),
            )
        for place in places:
            copy = PlacedCopy(
                run_id=run_id,
                content_id=manifest.content_id,
                place=place,
                name=manifest.name,
                state=state,
                coverage=coverage,
                evidence=Evidence.DIGEST if state is CopyState.VERIFIED else Evidence.NONE,
                verified_at_ns=at_ns,
            )
            catalog.put_copy(copy, at_ns)
