"""PyTorch distributed checkpoints: shards of ``torch.save`` entries, then the ``.metadata`` pickle.

Megatron-core's torch_dist format is the same with ``common.pt`` and ``metadata.json`` around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckptgov.testing.builders.damage import WRITTEN_AT_NS, date_files
from ckptgov.testing.builders.pickles import Global, Instance, Reduced, Tensor, pickle_bytes
from ckptgov.testing.builders.torch_zip import torch_file_bytes, write_torch_file

_METADATA = "torch.distributed.checkpoint.metadata"
_COLUMNS = 8
_TENSORS = ("model.weight", "optim.state.weight.exp_avg")
_OBJECT = "optim.param_groups.weight.lr"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One item of a shard; ``rows`` is None for a pickled object."""

    fqn: str
    rows: tuple[int, int] | None
    file: str
    offset: int
    length: int


def dcp_files(
    *, ranks: int = 2, seed: str = "", rows: int = 8, name: str = "step"
) -> dict[str, bytes]:
    """The files of one save, ``.metadata`` last.

    Weights and optimizer state are split over the ranks, ``rows`` rows of 8 values each; rank 0
    also holds a pickled object. Sizes depend on ``ranks`` and ``rows`` only, contents on ``seed``
    too; ``name`` is the directory the writer was told, which torch records.
    """
    files: dict[str, bytes] = {}
    entries: list[_Entry] = []
    for rank in range(ranks):
        file = f"__{rank}_0.distcp"
        files[file] = _shard(file, rank, rows, seed, entries)
    files[".metadata"] = _metadata(entries, name)
    return files


def write_dcp(
    directory: Path,
    *,
    ranks: int = 2,
    seed: str | None = None,
    rows: int = 8,
    at_ns: int | None = WRITTEN_AT_NS,
) -> Path:
    """Write a whole DCP checkpoint; ``seed`` defaults to the directory's name."""
    directory.mkdir(parents=True, exist_ok=True)
    seed = directory.name if seed is None else seed
    for name, body in dcp_files(ranks=ranks, seed=seed, rows=rows, name=directory.name).items():
        (directory / name).write_bytes(body)
    date_files(directory, ".metadata", at_ns=at_ns)
    return directory


def write_megatron(
    run: Path, iteration: int, *, ranks: int = 2, at_ns: int | None = WRITTEN_AT_NS
) -> Path:
    """Write ``iter_NNNNNNN`` in torch_dist format below ``run`` and move the tracker to it."""
    directory = write_dcp(run / f"iter_{iteration:07d}", ranks=ranks)
    common = {"iteration": iteration, "checkpoint_version": 3.0, "args": {"lr": 0.001}}
    write_torch_file(directory / "common.pt", common)
    about = {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
    }
    (directory / "metadata.json").write_text(json.dumps(about))
    (run / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    date_files(directory, ".metadata", "metadata.json", at_ns=at_ns)
    return directory


def _shard(file: str, rank: int, rows: int, seed: str, entries: list[_Entry]) -> bytes:
    items: list[tuple[str, tuple[int, int] | None]] = []
    if rank == 0:
        items.append((_OBJECT, None))
    items += [(fqn, (rank * rows, rows)) for fqn in _TENSORS]
    out = bytearray()
    for fqn, where in items:
        value: object = 0.001 if where is None else Tensor((rows, _COLUMNS))
        body = torch_file_bytes(value, seed=f"{seed}/{fqn}/{rank}")
        entries.append(_Entry(fqn=fqn, rows=where, file=file, offset=len(out), length=len(body)))
        out += body
    return bytes(out)


def _metadata(entries: Sequence[_Entry], name: str) -> bytes:
    names = list(dict.fromkeys(entry.fqn for entry in entries))
    described = {fqn: _described([e for e in entries if e.fqn == fqn]) for fqn in names}
    meta: dict[str, object] = {
        "checkpoint_id": Reduced(Global("pathlib", "PosixPath"), ("ckpt", name)),
        "save_id": None,
        "load_id": None,
        "modules": [],
    }
    state = {
        "state_dict_metadata": described,
        "planner_data": {fqn: tuple(fqn.split(".")) for fqn in names},
        "storage_data": _storage(entries),
        "storage_meta": _of("StorageMeta", meta),
        "version": "1.0.0",
    }
    return pickle_bytes(_of("Metadata", state), protocol=4)


def _described(parts: Sequence[_Entry]) -> Instance:
    chunks = [_chunk(*entry.rows) for entry in parts if entry.rows is not None]
    if not chunks:
        return Instance(Global(_METADATA, "BytesStorageMetadata"))
    total = sum(entry.rows[1] for entry in parts if entry.rows is not None)
    properties = (
        Global("torch", "float32"),
        Reduced(Global("torch.serialization", "_get_layout"), ("torch.strided",)),
        False,
        Reduced(Global(_METADATA, "_MEM_FORMAT_ENCODING"), (0,)),
        False,
    )
    state = {
        "properties": _of("TensorProperties", properties),
        "size": _size(total, _COLUMNS),
        "chunks": chunks,
    }
    return _of("TensorStorageMetadata", state)


def _chunk(first: int, rows: int) -> Instance:
    state = {"offsets": _size(first, 0), "sizes": _size(rows, _COLUMNS)}
    return _of("ChunkStorageMetadata", state)


def _storage(entries: Iterable[_Entry]) -> dict[Instance, Instance]:
    seen: dict[str, int] = {}
    storage: dict[Instance, Instance] = {}
    for entry in entries:
        key: dict[str, object] = {"fqn": entry.fqn}
        if entry.rows is not None:
            # MetadataIndex leaves its defaults (None) to the class when it is pickled.
            key["offset"] = _size(entry.rows[0], 0)
            key["index"] = seen.get(entry.fqn, 0)
            seen[entry.fqn] = seen.get(entry.fqn, 0) + 1
        where = {"relative_path": entry.file, "offset": entry.offset, "length": entry.length}
        stored = Global("torch.distributed.checkpoint.filesystem", "_StorageInfo")
        storage[_of("MetadataIndex", key)] = Instance(stored, where)
    return storage


def _of(name: str, state: object) -> Instance:
    return Instance(Global(_METADATA, name), state)


def _size(*lengths: int) -> Reduced:
    return Reduced(Global("torch", "Size"), (lengths,))
