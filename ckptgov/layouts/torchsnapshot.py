"""torchsnapshot: a manifest of every tensor and object, and the files they lie in.

``.snapshot_metadata`` (JSON, which is also the YAML it is documented as) is written last, by rank
0 after a barrier, but in place: killed in it, the file is there and empty (torchsnapshot/
snapshot.py). It maps each entry to a file and, where entries share one, to a byte range.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from msgspec import Struct

from ckptgov.layouts.base import Claim, Tree, join, split
from ckptgov.layouts.content import json_object
from ckptgov.layouts.dcp import found_dir
from ckptgov.layouts.names import step_of_name
from ckptgov.layouts.proof import Proof
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

_MARKER = ".snapshot_metadata"
_BATCHED = "batched"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
_OWN_FILE_TYPES = ("Tensor", "object")


class _File(Struct):
    """What the manifest says of one file: its exact size, or that it is a torch zip."""

    bytes: int | None = None
    is_zip: bool = False


class TorchsnapshotLayout:
    """A directory that ``torchsnapshot.Snapshot.take`` wrote."""

    name = "torchsnapshot"

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """By the manifest; without it by the file names of batched tensors in a step."""
        if not tree.is_file(join(directory, _MARKER)) and not _is_unfinished(tree, directory):
            return None
        return Claim((found_dir(directory, self.name),), whole=True)

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """Every file of the manifest with its size; objects are torch zips."""
        proof = Proof(tree, found)
        proof.need(_MARKER, is_marker=True)
        metadata = json_object(proof, _MARKER)
        if metadata is None:
            return proof.sighting()
        manifest = metadata.get("manifest")
        if not isinstance(manifest, dict):
            proof.refuse(Reason.TORN, _MARKER, "has no manifest of entries")
            return proof.sighting()
        files = _files_of(manifest.values())
        for path, file in sorted(files.items()):
            proof.need(path, bytes=file.bytes, because=f"{_MARKER} names it")
            if file.is_zip:
                proof.prove_zip(path, depth)
        proof.written_after(_MARKER, files)
        world_size = metadata.get("world_size")
        ranks = world_size if type(world_size) is int and world_size > 0 else None
        return proof.sighting(world_size=ranks, reshardable=_fits_any(manifest, ranks))

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """torchsnapshot has none."""
        return ()


def _is_unfinished(tree: Tree, directory: str) -> bool:
    batched = join(directory, _BATCHED)
    if step_of_name(split(directory)[1]) is None or not tree.is_dir(batched):
        return False
    return any(map(_UUID.fullmatch, tree.files(batched)))


def _files_of(entries: Iterable[object]) -> dict[str, _File]:
    files: dict[str, _File] = {}
    for entry in _stored(entries):
        location = entry.get("location")
        if not isinstance(location, str):
            continue
        file = files.setdefault(location, _File())
        match entry:
            case {"byte_range": [int(), int(end)]}:
                file.bytes = max(file.bytes or 0, end)
            case {"serializer": "torch_save"}:
                file.is_zip = True
            case {"serializer": "buffer_protocol", "dtype": str(dtype), "shape": [*shape]}:
                file.bytes = _tensor_bytes(dtype, shape)
    return files


def _stored(entries: Iterable[object]) -> Iterator[Mapping[str, object]]:
    """Entries that lie in a file: the manifest's own, and the parts of sharded and chunked ones."""
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        if entry.get("type") in _OWN_FILE_TYPES or "location" in entry:
            yield entry
        for part in (*_list(entry.get("shards")), *_list(entry.get("chunks"))):
            tensor = part.get("tensor") if isinstance(part, dict) else None
            if isinstance(tensor, dict):
                yield tensor


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _tensor_bytes(dtype: str, shape: Sequence[object]) -> int | None:
    """Exact bytes of a raw tensor; None for a type or shape that is not known here."""
    item_bytes = _ITEM_BYTES.get(dtype.removeprefix("torch."))
    sizes = [size for size in shape if type(size) is int and 0 <= size < 2**48]
    if item_bytes is None or len(sizes) != len(shape) or len(sizes) > 64:
        return None
    return prod(sizes) * item_bytes


def _fits_any(manifest: Mapping[str, object], world_size: int | None) -> bool | None:
    """Sharded and replicated entries load on any number of ranks; a rank's own may not."""
    if world_size == 1:
        return True
    entries = [entry for entry in manifest.values() if isinstance(entry, dict)]
    private = [e for e in entries if e.get("type") in (*_OWN_FILE_TYPES, "ChunkedTensor")]
    return None if any(entry.get("replicated") is False for entry in private) else True


LAYOUT = TorchsnapshotLayout()
