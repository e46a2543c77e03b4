"""The child that unpickles with inert stand-ins; run as a script by ``pickles.py``, never imported.

Standard library only, and little of it. Every class name in a pickle becomes an inert stand-in,
so nothing from it is imported or called; what it does to memory and time ends at the limits set
for each request. After anything unexpected the child answers and exits.

A request on stdin is: 4 bytes length, that much JSON, then ``length`` bytes of pickle. An answer
on stdout: 4 bytes length, that much JSON, 8 bytes length, that many bytes of unsigned 64-bit pairs.
"""

from __future__ import annotations

import gc
import io
import json
import resource
import signal
import struct
import sys
from _pickle import Unpickler
from array import array
from itertools import chain
from math import prod

TYPE_CHECKING = False  # typing itself would be the child's dearest import
if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MAX_NAMES = 200
_MAX_TEXT = 4096
_MAX_INT = 2**63
_MAX_DEPTH = 16
_MAX_GAPS = 8

Wants = dict[str, object]
Answer = dict[str, object]

_DCP = "torch.distributed.checkpoint."


class Refused(Exception):
    """The pickle is not what it was taken for."""


class Inert:
    """Stands in for an instance of any class: keeps what it is given and does nothing."""

    __slots__ = ("pairs", "state")
    origin = ""
    pairs: dict[object, object] | None
    state: object

    def __new__(cls, *_args: object, **_named: object) -> Inert:
        made = object.__new__(cls)
        made.pairs = None
        made.state = None
        return made

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        if self.pairs is None:
            self.pairs = {}
        self.pairs[key] = value

    def append(self, _item: object) -> None: ...

    def extend(self, _items: object) -> None: ...

    def add(self, _item: object) -> None: ...


class Elements(Inert):
    """Stands in for a storage: which record of the file holds its elements, and of what type."""

    __slots__ = ("key", "kind")
    key: str
    kind: str


class Tensor(Inert):
    """Stands in for what torch rebuilds from a storage; only a lone number is remembered."""

    __slots__ = ("number",)
    origin = "torch._utils._rebuild_tensor_v2"
    number: tuple[str, str, int] | None

    def __new__(cls, *given: object, **_named: object) -> Tensor:
        made = object.__new__(cls)
        made.pairs = None
        made.state = None
        made.number = None
        match given:
            case (Elements() as storage, int(offset), () | (1,), *_) if 0 <= offset < _MAX_INT:
                made.number = (storage.key, storage.kind, offset)
            case _:
                pass
        return made


class InertDict(dict[object, object]):
    """Stands in for mappings of the standard library."""

    origin = "dict"

    def __init__(self, *_args: object) -> None: ...

    def __setstate__(self, _state: object) -> None: ...


class Size:
    """Stands in for torch.Size: calling it gives back the tuple of numbers itself."""

    origin = "torch.Size"

    def __new__(cls, numbers: object = ()) -> object:  # type: ignore[misc]
        if not isinstance(numbers, tuple | list):
            raise Refused("a size is made of something else than numbers")
        return numbers


class Index:
    """Stands in for DCP's MetadataIndex, of which nothing is needed but that it is a key.

    The state's mapping is emptied: the unpickler remembers every one of them to the end, and with
    millions of entries they are most of the memory.
    """

    __slots__ = ()
    origin = _DCP + "metadata.MetadataIndex"

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            state.clear()


class Stored:
    """Stands in for DCP's _StorageInfo: where an entry lies."""

    __slots__ = ("length", "offset", "path")
    origin = _DCP + "filesystem._StorageInfo"

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise Refused("a _StorageInfo is no mapping")
        self.path = state.get("relative_path")
        self.offset = state.get("offset")
        self.length = state.get("length")
        state.clear()


class Chunk:
    """Stands in for DCP's ChunkStorageMetadata: which part of a tensor was saved."""

    __slots__ = ("offsets", "sizes")
    origin = _DCP + "metadata.ChunkStorageMetadata"

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise Refused("a ChunkStorageMetadata is no mapping")
        self.offsets = state.get("offsets")
        self.sizes = state.get("sizes")
        state.clear()


_KNOWN: dict[str, type] = {
    "collections.OrderedDict": InertDict,
    "collections.defaultdict": InertDict,
    Tensor.origin: Tensor,
    Size.origin: Size,
    Index.origin: Index,
    Stored.origin: Stored,
    Chunk.origin: Chunk,
}


class InertUnpickler(Unpickler):
    """Unpickles without importing or calling anything the pickle names."""

    def __init__(self, stream: io.BufferedReader[Bounded]) -> None:
        super().__init__(stream)
        self.classes: dict[str, type] = _KNOWN.copy()
        self.names: set[str] = set()
        self.storages: list[tuple[str, str, int]] = []

    def find_class(self, module: str, name: str) -> type:
        full = f"{module}.{name}"
        self.names.add(full)
        known = self.classes.get(full)
        if known is None:
            known = type("Inert", (Inert,), {"__slots__": (), "origin": full})
            self.classes[full] = known
        return known

    def persistent_load(self, pid: object) -> Inert:
        match pid:
            case ("storage", kind, str(key), _, int(elements)) if 0 <= elements < _MAX_INT:
                made = Elements()
                made.key = key[:_MAX_TEXT]
                made.kind = str(getattr(kind, "origin", "")).rpartition(".")[2]
                self.storages.append((made.key, made.kind, elements))
                return made
            case _:
                return Inert()


class Bounded(io.RawIOBase):
    """The next ``length`` bytes of a stream, as a stream of their own."""

    def __init__(self, stream: io.FileIO, length: int) -> None:
        self._stream = stream
        self._left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if not self._left:
            return 0
        count = self._stream.readinto(memoryview(buffer)[: self._left]) or 0
        self._left -= count
        return count


def member(thing: object, name: str) -> object:
    """Attribute ``name`` of a stand-in, or key ``name`` of a mapping; None where there is none."""
    if isinstance(thing, Inert):
        thing = thing.state if thing.state is not None else thing.pairs
        if isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[1], dict):
            thing = thing[1]  # (dict, slots) state of a class with slots
    return thing.get(name) if isinstance(thing, dict) else None


def mapping(thing: object, name: str) -> dict[object, object]:
    found = member(thing, name)
    if not isinstance(found, dict):
        raise Refused(f"{name} is not a mapping")
    return found


def count(thing: object, what: str) -> int:
    if type(thing) is not int or not 0 <= thing < _MAX_INT:
        raise Refused(f"{what} is not a count")
    return thing


def numbers(thing: object) -> tuple[int, ...]:
    if not isinstance(thing, tuple | list) or len(thing) > 64:
        raise Refused("a shape is not a short sequence")
    return tuple(count(length, "a length in a shape") for length in thing)


def dcp_facts(root: object, wants: Wants, names: set[str]) -> tuple[Answer, bytes]:
    """The answer about a DCP ``.metadata``."""
    if getattr(root, "origin", "") != _DCP + "metadata.Metadata":
        raise Refused("the pickle holds something else than DCP metadata")
    files, blob = storage_facts(mapping(root, "storage_data"), bool(wants["entries"]))
    tensors = mapping(root, "state_dict_metadata")
    chunks, gaps = chunk_facts(tensors, bool(wants["chunks"]))
    answer: Answer = {
        "files": files,
        "chunks": chunks,
        "gaps": gaps,
        "common_state": any(isinstance(k, str) and k.startswith("common_state") for k in tensors),
        "mcore": _DCP + "planner.SavePlan" in names
        or any(name.startswith("megatron.") for name in names),
    }
    return answer, blob


def storage_facts(stored: dict[object, object], with_entries: bool) -> tuple[object, bytes]:
    ends: dict[str, list[int]] = {}
    entries: dict[str, list[tuple[int, int]]] = {}
    for place in stored.values():
        if not isinstance(place, Stored):
            raise Refused("storage_data holds something else than places")
        path = place.path
        if type(path) is not str or not 0 < len(path) <= _MAX_TEXT:
            raise Refused("a relative_path is not a short text")
        offset = count(place.offset, "an offset")
        length = count(place.length, "a length")
        known = ends.setdefault(path, [0, 0])
        known[0] = max(known[0], offset + length)
        known[1] += 1
        if with_entries:
            entries.setdefault(path, []).append((offset, length))
    blob = b"".join(
        array("Q", chain.from_iterable(sorted(entries[path]))).tobytes() for path in entries
    )
    return [[path, *known] for path, known in ends.items()], blob


def chunk_facts(tensors: dict[object, object], with_chunks: bool) -> tuple[object, list[str]]:
    """(name, elements and the distinct chunks of each tensor where wanted, tensors with gaps)."""
    found: list[object] = []
    gaps: list[str] = []
    shapes: dict[object, int] = {}
    for name, tensor in tensors.items():
        if getattr(tensor, "origin", "") != _DCP + "metadata.TensorStorageMetadata":
            continue
        elements = prod(numbers(member(tensor, "size")))
        chunks: dict[tuple[object, object], int] = {}
        saved = member(tensor, "chunks")
        for chunk in saved if isinstance(saved, list) else ():
            if not isinstance(chunk, Chunk):
                raise Refused("a chunk is something else")
            # Millions of chunks share a few shapes.
            size = shapes.get(chunk.sizes)
            if size is None:
                size = shapes[chunk.sizes] = prod(numbers(chunk.sizes))
            chunks[chunk.sizes, chunk.offsets] = size
        if sum(chunks.values()) < elements and len(gaps) < _MAX_GAPS:
            gaps.append(str(name)[:_MAX_TEXT])
        if with_chunks:
            spelled = {f"{numbers(at)}+{numbers(sizes)}": n for (sizes, at), n in chunks.items()}
            found.append([str(name)[:_MAX_TEXT], elements, spelled])
    return found, gaps


def torch_facts(root: object, wants: Wants, unpickler: InertUnpickler) -> Answer:
    """The answer about a torch ``data.pkl``."""
    keys = wants["keys"]
    scalars: Answer = {}
    for key in keys if isinstance(keys, list) else ():
        found, value = lookup(root, key)
        if found:
            scalars[key] = value
    own = [k for k in root if isinstance(k, str)] if isinstance(root, dict) else []
    kept_as = wants.get("scores_of")
    return {
        "scalars": scalars,
        "keys": [key[:_MAX_TEXT] for key in own[:_MAX_NAMES]],
        "storages": unpickler.storages,
        "scores": scores_of(root, kept_as) if isinstance(kept_as, str) else [],
    }


def scores_of(root: object, name: str) -> list[tuple[str, object]]:
    """What Lightning's checkpoint callbacks keep the file ``name`` for: (monitor, its score).

    A score is a number, or (record key, type name, index) of the one that holds it.
    """
    found: list[tuple[str, object]] = []
    callbacks = member(root, "callbacks")
    for state in callbacks.values() if isinstance(callbacks, dict) else ():
        monitor, kept = member(state, "monitor"), member(state, "best_k_models")
        if type(monitor) is not str or not isinstance(kept, dict):
            continue
        for path, score in kept.items():
            if type(path) is str and ("/" + path.replace("\\", "/")).endswith("/" + name):
                value = score.number if isinstance(score, Tensor) else score
                if is_score(value) and len(found) < _MAX_NAMES:
                    found.append((monitor, value))
    return found


def is_score(value: object) -> bool:
    if type(value) is int:
        return -_MAX_INT <= value < _MAX_INT
    return type(value) in (float, tuple)


def lookup(root: object, key: str) -> tuple[bool, object]:
    """(whether the scalar at a dotted key is there, its value)."""
    value = member(root, key)
    if value is None and "." in key:
        value = root
        for part in key.split(".")[:_MAX_DEPTH]:
            value = member(value, part)
    if type(value) is int:
        return -_MAX_INT <= value < _MAX_INT, value
    if type(value) is str:
        return len(value) <= _MAX_TEXT, value
    return type(value) in (bool, float), value


def set_limits(wants: Wants) -> None:
    memory = count(wants["memory_bytes"], "memory_bytes")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        memory = min(memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
    # Its signal kills also in the middle of one long C call, which no handler could interrupt.
    signal.setitimer(signal.ITIMER_PROF, count(wants["cpu_ms"], "cpu_ms") / 1000)


def respond(wants: Wants, stream: io.BufferedReader[Bounded]) -> tuple[Answer, bytes]:
    unpickler = InertUnpickler(stream)
    root = unpickler.load()
    while stream.read(2**20):
        pass
    blob = b""
    if wants["kind"] == "dcp":
        answer, blob = dcp_facts(root, wants, unpickler.names)
    else:
        answer = torch_facts(root, wants, unpickler)
    answer["names"] = [name[:_MAX_TEXT] for name in sorted(unpickler.names)[:_MAX_NAMES]]
    return answer, blob


def send(answer: Answer, blob: bytes = b"") -> None:
    text = json.dumps(answer).encode()
    out = sys.stdout.buffer
    out.write(struct.pack("<I", len(text)) + text + struct.pack("<Q", len(blob)))
    out.write(blob)
    out.flush()


def read_exactly(source: io.FileIO, length: int) -> bytes:
    found = b""
    while len(found) < length:
        more = source.read(length - len(found))
        if not more:
            break
        found += more
    return found


def serve_one(source: io.FileIO, head: bytes) -> None:
    wants = json.loads(read_exactly(source, struct.unpack("<I", head)[0]))
    set_limits(wants)
    body = io.BufferedReader(Bounded(source, count(wants["length"], "length")), 2**17)
    send(*respond(wants, body))


def main() -> int:
    gc.disable()  # what is read once and thrown away has no use for it
    with open(0, "rb", buffering=0, closefd=False) as source:
        while head := read_exactly(source, 4):
            try:
                serve_one(source, head)
            except Refused as error:
                send({"error": str(error)})
                return 1
            except Exception as error:  # whatever a crafted pickle made go wrong is its fault
                send({"error": f"{type(error).__name__}: {error}"[:500]})
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
