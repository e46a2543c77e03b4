"""Looking at directories through a real reader, and building DCP indexes without torch."""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ckptgov.layouts.base import LookSettings, Tree
from ckptgov.layouts.registry import examine
from ckptgov.layouts.survey import survey
from ckptgov.model.checkpoint import Expect
from ckptgov.model.facts import Depth, Sighting, Survey
from ckptgov.model.files import Entry, EntryKind, FileStat, OpenFile, Reader
from ckptgov.storage.posix import PosixStorage

FAR_FUTURE_NS = 4 * 10**18
"""A now after which no file of a test is dated."""


@dataclass(frozen=True)
class Looked:
    """What a look at one run root found, every candidate examined."""

    survey: Survey
    sightings: tuple[Sighting, ...]

    def __getitem__(self, name: str) -> Sighting:
        (only,) = [sighting for sighting in self.sightings if sighting.name == name]
        return only

    @property
    def whole(self) -> list[str]:
        return [sighting.name for sighting in self.sightings if not sighting.findings]

    def told(self, name: str) -> list[str]:
        """Findings as ``reason path: evidence``."""
        return [f"{f.reason} {f.path}: {f.evidence}" for f in self[name].findings]


Look = Callable[..., Looked]


class Birthed:
    """A reader whose files were born when ``born`` says, whatever the file system knows."""

    def __init__(self, reader: Reader, born: Callable[[str, FileStat], int | None]) -> None:
        self._reader = reader
        self._born = born

    def list(self, path: str) -> Sequence[Entry]:
        return self._reader.list(path)

    def stat(self, path: str) -> FileStat:
        stat = self._reader.stat(path)
        return replace(stat, btime_ns=self._born(path, stat))

    def read_link(self, path: str) -> str:
        return self._reader.read_link(path)

    def open(self, path: str) -> OpenFile:
        return self._reader.open(path)


@pytest.fixture
def look() -> Iterator[Look]:
    """Survey and examine a run root: ``look(path, depth=..., born=..., rules=...)``."""
    storages: list[PosixStorage] = []

    def run(
        path: Path,
        *,
        depth: Depth = Depth.DEEP,
        born: Callable[[str, FileStat], int | None] | None = None,
        rules: tuple[Expect, ...] = (),
        now_ns: int = FAR_FUTURE_NS,
        marker_margin_ns: int = 0,
    ) -> Looked:
        storages.append(PosixStorage(path))
        reader: Reader = storages[-1]
        settings = LookSettings(now_ns=now_ns, marker_margin_ns=marker_margin_ns, rules=rules)
        with Tree(Birthed(reader, born) if born else reader, "", settings) as tree:
            seen = survey(tree)
            sightings = tuple(examine(tree, f, depth, siblings=seen.found) for f in seen.found)
        return Looked(seen, sightings)

    yield run
    for storage in storages:
        storage.close()


_DCP = "torch.distributed.checkpoint."
_CLASSES = (
    (_DCP + "metadata", "Metadata"),
    (_DCP + "metadata", "MetadataIndex"),
    (_DCP + "metadata", "TensorStorageMetadata"),
    (_DCP + "metadata", "BytesStorageMetadata"),
    (_DCP + "metadata", "ChunkStorageMetadata"),
    (_DCP + "filesystem", "_StorageInfo"),
    ("torch", "Size"),
)


class TorchNames:
    """Stand-ins under torch's own names, importable only while something is pickled."""

    def __init__(self) -> None:
        self.modules: dict[str, types.ModuleType] = {}
        for module, name in _CLASSES:
            made = self.modules.setdefault(module, types.ModuleType(module))
            base = (tuple,) if name == "Size" else ()
            members: dict[str, Any] = {"__module__": module, "__qualname__": name}
            if base:
                members["__reduce__"] = lambda self: (type(self), (tuple(self),))
            setattr(made, name, type(name, base, members))

    def make(self, module: str, name: str, **state: object) -> object:
        made = getattr(self.modules[_DCP + module], name)()
        made.__dict__.update(state)
        return made

    def size(self, *lengths: int) -> object:
        return self.modules["torch"].Size(lengths)

    @contextmanager
    def importable(self) -> Iterator[None]:
        before = {name: sys.modules.get(name) for name in self.modules}
        sys.modules.update(self.modules)
        try:
            yield
        finally:
            for name, module in before.items():
                if module is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = module


class DcpIndexBuilder:
    """Builds a ``.metadata`` as torch pickles it: tensors of ``rows`` x 4, cut in chunks."""

    def __init__(self) -> None:
        self._names = TorchNames()
        self._tensors: dict[str, object] = {}
        self._stored: dict[object, object] = {}

    def tensor(self, name: str, *, rows: int, chunks: Sequence[tuple[int, int]]) -> None:
        """``chunks`` are (first row, rows) of the parts that were saved."""
        names = self._names
        parts = [
            names.make(
                "metadata",
                "ChunkStorageMetadata",
                offsets=names.size(first, 0),
                sizes=names.size(count, 4),
            )
            for first, count in chunks
        ]
        self._tensors[name] = names.make(
            "metadata", "TensorStorageMetadata", size=names.size(rows, 4), chunks=parts
        )

    def stored(self, name: str, path: object, offset: object, length: object) -> None:
        """One entry of a shard file."""
        names = self._names
        index = names.make("metadata", "MetadataIndex", fqn=name, offset=names.size(0, 0), index=0)
        self._stored[index] = names.make(
            "filesystem", "_StorageInfo", relative_path=path, offset=offset, length=length
        )

    def pickled(self) -> bytes:
        root = self._names.make(
            "metadata",
            "Metadata",
            state_dict_metadata=self._tensors,
            planner_data=None,
            storage_data=self._stored,
        )
        out = io.BytesIO()
        with self._names.importable():
            pickle.Pickler(out, protocol=4).dump(root)
        return out.getvalue()


@pytest.fixture
def dcp_index() -> DcpIndexBuilder:
    return DcpIndexBuilder()


@pytest.fixture
def torch_file() -> Callable[..., bytes]:
    """A torch.save file of ``state`` with one tensor record."""

    def build(state: object) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as packed:
            packed.writestr("archive/data.pkl", pickle.dumps(state, protocol=2))
            packed.writestr("archive/data/0", bytes(256))
            packed.writestr("archive/version", b"3\n")
        return out.getvalue()

    return build


class BytesFile:
    """Bytes as an open file."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def stat(self) -> FileStat:
        return _stat_of(len(self.content))

    def read_at(self, offset: int, length: int) -> bytes:
        return self.content[offset : offset + length]

    def read_into(self, buffer: memoryview, offset: int) -> int:
        piece = self.read_at(offset, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def sync(self) -> None: ...

    def drop_cache(self, offset: int, length: int) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> BytesFile:
        return self

    def __exit__(self, *_: object) -> None: ...


def _stat_of(size: int) -> FileStat:
    return FileStat(
        kind=EntryKind.FILE,
        bytes=size,
        mtime_ns=0,
        ctime_ns=0,
        inode=1,
        device=1,
        mode=0o644,
        uid=0,
        gid=0,
    )


@pytest.fixture
def open_bytes() -> Callable[[bytes], OpenFile]:
    return BytesFile
