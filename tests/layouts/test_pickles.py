"""Pickles are read for facts; crafted ones execute nothing and end quickly in Malformed."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ckptgov.errors import Malformed, TransientStorageError
from ckptgov.layouts.pickles import MAX_PICKLE_BYTES, REUSE_BELOW_BYTES, PickleReader
from ckptgov.model.files import OpenFile

Opener = Callable[[bytes], OpenFile]

DCP = "torch.distributed.checkpoint."


@pytest.fixture
def reader() -> Iterator[PickleReader]:
    made = PickleReader()
    yield made
    made.close()


class _Reduces:
    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


def _size(number: int) -> bytes:
    return struct.pack("<Q", number)


def _doubling(times: int) -> bytes:
    """A tuple that holds itself twice, so often that its hash takes for ever, as a key."""
    return b"\x80\x04}K\x01" + b"2\x86" * times + b"K\x01s."


HOSTILE = {
    "a huge memo index": b"\x80\x02" + b"K\x01r\xff\xff\xff\x7f.",
    "a huge memo index in memory": b"\x80\x02" + b"K\x01r" + struct.pack("<I", 60_000_000) + b".",
    "a hash bomb": _doubling(60),
    "2 GiB of bytes claimed": b"\x80\x04\x8e" + _size(2**31) + b"x.",
    "2 GiB of text claimed": b"\x80\x04\x8d" + _size(2**31) + b"x.",
    "2 GiB of bytearray claimed": b"\x80\x05\x96" + _size(2**31) + b"x.",
    "a frame beyond the end": b"\x80\x04\x95" + _size(2**40) + b"K\x01.",
    "a number of a million digits": b"I" + b"9" * 10**6 + b"\n.",
    "no stop": b"\x80\x04" + b"]" * 1000,
    "nothing": b"",
    "a cut": pickle.dumps({"a": "x" * 1000})[:-20],
    "noise": bytes(range(256)) * 4,
    "protocol 99": b"\x80\x63.",
    "an extension code": b"\x80\x02\x82\x01.",
    "out-of-band buffers": b"\x80\x05\x97.",
    "state for a class": b"\x80\x04ccollections\nOrderedDict\n}b.",
    "a call of a number": b"\x80\x04K\x01)R.",
}


@pytest.mark.parametrize("crafted", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_crafted_pickle_is_malformed_quickly(reader: PickleReader, crafted: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(Malformed, match="evil"):
        reader.torch_pickle(crafted, name="evil", keys=["step"])
    reader.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent_s < 2  # the limit is 0.8 s; what is above is the child's own start


def test_the_child_of_a_crafted_pickle_stays_below_200_mb(reader: PickleReader) -> None:
    reader.torch_pickle(pickle.dumps(1), name="first", keys=[])
    assert reader._child is not None
    pid = reader._child.pid
    with pytest.raises(Malformed):
        reader.torch_pickle(HOSTILE["a huge memo index in memory"], name="evil", keys=[])
    assert reader._child is None
    assert not Path(f"/proc/{pid}").exists()
    reader.torch_pickle(pickle.dumps(1), name="first", keys=[])
    limits = Path(f"/proc/{reader._child.pid}/limits").read_text()
    address_space = next(line for line in limits.splitlines() if "address space" in line)
    assert int(address_space.split()[3]) < 200 * 2**20


def test_deep_nesting_is_malformed_or_harmless(reader: PickleReader) -> None:
    deep = b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b"."
    reader.torch_pickle(deep, name="deep", keys=["a.b.c"])
    hashed = b"\x80\x04}K\x01" + b"\x85" * 500_000 + b"K\x01s."
    with pytest.raises(Malformed):
        reader.torch_pickle(hashed, name="deep", keys=[])


@pytest.mark.parametrize(
    "pickled",
    [
        pickle.dumps(_Reduces(os.system, "touch {marker}"), protocol=2),
        pickle.dumps(_Reduces(os.system, "touch {marker}"), protocol=4),
        b"cposix\nsystem\n(S'touch {marker}'\ntR.",
        b"(S'touch {marker}'\niposix\nsystem\n.",
        b"(cposix\nsystem\nS'touch {marker}'\no.",
        b"\x80\x04c__builtin__\nexec\n\x8c\x2fopen('{marker}','w')\x85R.",
    ],
    ids=["reduce 2", "reduce 4", "global", "inst", "obj", "exec"],
)
def test_nothing_a_pickle_names_is_called(
    reader: PickleReader, pickled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The same length, so that counted strings stay right.
    crafted = pickled.replace(b"{marker}", b"executed")
    with pytest.raises(Malformed) if b"exec\n" in pickled else _nothing():
        reader.torch_pickle(crafted, name="evil", keys=["step"])
    assert list(tmp_path.iterdir()) == []


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_nothing_a_pickle_names_is_imported(
    reader: PickleReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap.py").write_text("open('sprung', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    read = reader.torch_pickle(b"\x80\x04ctrap\nTrap\n)\x81.", name="evil", keys=[])
    assert read.names_seen == ("trap.Trap",)
    assert not (tmp_path / "sprung").exists()


def test_scalars_are_found_by_dotted_keys(reader: PickleReader) -> None:
    state = {
        "global_steps": 7,
        "lr": 0.5,
        "note": "x",
        "flag": True,
        "a.b": 1,
        "args": {"world_size": 4, "deep": {"er": 5}},
        "tensor": [1, 2],
        "huge": 10**40,
        "od": OrderedDict(k=3),
    }
    keys = [*state, "args.world_size", "args.deep.er", "od.k", "absent", "args.absent"]
    read = reader.torch_pickle(pickle.dumps(state), name="p", keys=keys)
    assert read.scalars == {
        "global_steps": 7,
        "lr": 0.5,
        "note": "x",
        "flag": True,
        "a.b": 1,
        "args.world_size": 4,
        "args.deep.er": 5,
        "od.k": 3,
    }
    assert read.keys == frozenset(state)


def test_the_members_of_an_unknown_class_are_found(reader: PickleReader) -> None:
    namespace = (
        b"\x80\x04}X\x04\x00\x00\x00argscargparse\nNamespace\n)\x81}X\x02\x00\x00\x00tpK\x08sbs."
    )
    read = reader.torch_pickle(namespace, name="p", keys=["args.tp"])
    assert read.scalars == {"args.tp": 8}


def test_one_child_answers_many_small_questions(reader: PickleReader) -> None:
    pids = set()
    for number in range(5):
        read = reader.torch_pickle(pickle.dumps({"n": number}), name="p", keys=["n"])
        assert read.scalars == {"n": number}
        assert reader._child is not None
        pids.add(reader._child.pid)
    assert len(pids) == 1


def test_a_question_after_a_crafted_pickle_is_answered(reader: PickleReader) -> None:
    with pytest.raises(Malformed):
        reader.torch_pickle(HOSTILE["a hash bomb"], name="evil", keys=[])
    read = reader.torch_pickle(pickle.dumps({"n": 1}), name="p", keys=["n"])
    assert read.scalars == {"n": 1}


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_that_was_stopped_from_outside_is_no_fault_of_the_pickle(
    reader: PickleReader, sent: signal.Signals
) -> None:
    reader.torch_pickle(pickle.dumps(1), name="p", keys=[])
    assert reader._child is not None
    os.kill(reader._child.pid, sent)
    with pytest.raises(TransientStorageError, match="stopped") as caught:
        reader.torch_pickle(pickle.dumps(1), name="p", keys=[])
    assert caught.value.exit_code == 9


def test_an_index_tells_files_entries_and_chunks(
    reader: PickleReader, dcp_index, open_bytes: Opener
) -> None:
    dcp_index.tensor("w", rows=8, chunks=[(0, 4), (4, 4)])
    dcp_index.stored("w", "__0_0.distcp", 0, 100)
    dcp_index.stored("w", "__1_0.distcp", 50, 70)
    dcp_index.stored("v", "__1_0.distcp", 0, 50)
    index = reader.dcp_metadata(
        open_bytes(dcp_index.pickled()), name="m", with_entries=True, with_chunks=True
    )
    assert index.files == {"__0_0.distcp": (100, 1), "__1_0.distcp": (120, 2)}
    assert index.entries["__1_0.distcp"].tolist() == [0, 50, 50, 70]
    assert index.chunks == {"w": (32, {"(0, 0)+(4, 4)": 16, "(4, 0)+(4, 4)": 16})}
    assert index.gaps == ()


def test_a_tensor_that_was_not_saved_whole_is_a_gap(
    reader: PickleReader, dcp_index, open_bytes: Opener
) -> None:
    dcp_index.tensor("whole", rows=8, chunks=[(0, 8)])
    dcp_index.tensor("half", rows=8, chunks=[(0, 4), (0, 4)])
    index = reader.dcp_metadata(open_bytes(dcp_index.pickled()), name="m")
    assert index.gaps == ("half",)


@pytest.mark.parametrize("path", ["../x.distcp", "/etc/passwd", "a//b", ".", "a/../b", "a\0b"])
def test_an_index_that_names_a_file_elsewhere_is_malformed(
    reader: PickleReader, dcp_index, open_bytes: Opener, path: str
) -> None:
    dcp_index.stored("w", path, 0, 10)
    with pytest.raises(Malformed, match="outside its directory"):
        reader.dcp_metadata(open_bytes(dcp_index.pickled()), name="m")


@pytest.mark.parametrize(
    ("path", "offset", "length"),
    [("a", -1, 5), ("a", 0, 2**63), ("a", "0", 5), (7, 0, 5), ("", 0, 5), ("a", True, 5)],
)
def test_an_index_with_impossible_places_is_malformed(
    reader: PickleReader,
    dcp_index,
    open_bytes: Opener,
    path: object,
    offset: object,
    length: object,
) -> None:
    dcp_index.stored("w", path, offset, length)
    with pytest.raises(Malformed, match="m: "):
        reader.dcp_metadata(open_bytes(dcp_index.pickled()), name="m")


@pytest.mark.parametrize("pickled", [pickle.dumps({}), pickle.dumps([1]), b"\x80\x04N."])
def test_another_pickle_is_no_index(
    reader: PickleReader, open_bytes: Opener, pickled: bytes
) -> None:
    with pytest.raises(Malformed, match="something else than DCP metadata"):
        reader.dcp_metadata(open_bytes(pickled), name="m")


def test_every_cut_of_an_index_is_malformed(
    reader: PickleReader, dcp_index, open_bytes: Opener
) -> None:
    dcp_index.tensor("w", rows=8, chunks=[(0, 8)])
    dcp_index.stored("w", "__0_0.distcp", 0, 100)
    whole = dcp_index.pickled()
    for length in range(0, len(whole), 41):
        with pytest.raises(Malformed):
            reader.dcp_metadata(open_bytes(whole[:length]), name="m")


def test_a_file_that_shrinks_while_it_is_read_is_malformed(
    reader: PickleReader, dcp_index, open_bytes: Opener
) -> None:
    dcp_index.stored("w", "__0_0.distcp", 0, 100)
    file = open_bytes(dcp_index.pickled())
    stat = file.stat()
    file.content = file.content[:-10]  # type: ignore[attr-defined]
    file.stat = lambda: stat  # type: ignore[method-assign]
    with pytest.raises(Malformed, match="shorter"):
        reader.dcp_metadata(file, name="m")


def test_an_answer_out_of_proportion_is_malformed(reader: PickleReader) -> None:
    storage = _text("storage") + b"cx\ny\n" + b"X" + struct.pack("<I", 4000) + b"k" * 4000
    first = b"(" + storage + b"q\x01" + _text("cpu") + b"K\x01tQ"
    again = b"(" + storage[:-4005] + b"h\x01" + _text("cpu") + b"K\x01tQ"
    crafted = b"\x80\x04" + first + again * 1000 + b"."
    with pytest.raises(Malformed, match="out of proportion"):
        reader.torch_pickle(crafted, name="evil", keys=[])


def test_a_large_pickle_that_fails_at_once_says_why(reader: PickleReader) -> None:
    with pytest.raises(Malformed, match="big: UnpicklingError"):
        reader.torch_pickle(b"\xff" * (8 * 2**20), name="big", keys=[])


def test_a_pickle_of_impossible_size_is_not_even_read(
    reader: PickleReader, open_bytes: Opener
) -> None:
    file = open_bytes(b"")
    stat = replace(file.stat(), bytes=MAX_PICKLE_BYTES + 1)
    file.stat = lambda: stat  # type: ignore[method-assign]
    with pytest.raises(Malformed, match="too many"):
        reader.dcp_metadata(file, name="m")
    assert reader._child is None


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_bytes_make_reading_an_index_raise_anything_else(
    data: st.DataObject, open_bytes: Opener
) -> None:
    raw = bytearray(_large_index(tensors=1))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    reader = PickleReader()
    try:
        reader.dcp_metadata(open_bytes(bytes(raw)), name="m", with_entries=True, with_chunks=True)
    except Malformed:
        pass
    finally:
        reader.close()


def test_a_large_index_is_read_in_proportion_and_its_child_not_kept(
    reader: PickleReader, open_bytes: Opener
) -> None:
    pickled = _large_index(tensors=12_000)
    assert len(pickled) > 20 * REUSE_BELOW_BYTES
    started = time.monotonic()
    index = reader.dcp_metadata(open_bytes(pickled), name="m")
    assert index.files["__7_0.distcp"] == (60_000_000, 12_000)
    assert index.gaps == ()
    assert time.monotonic() - started < 30  # about 1 s; it hangs or it does not
    assert reader._child is None


def _large_index(tensors: int) -> bytes:
    """An index of tensors of 32 x 4 in 8 chunks each, in the opcodes that torch's pickles have."""
    classes = [
        (DCP + "metadata", "Metadata"),
        (DCP + "metadata", "MetadataIndex"),
        (DCP + "filesystem", "_StorageInfo"),
        ("torch", "Size"),
        (DCP + "metadata", "TensorStorageMetadata"),
        (DCP + "metadata", "ChunkStorageMetadata"),
    ]
    out = [b"\x80\x04"]
    out += [_text(module) + _text(name) + b"\x93\x940" for module, name in classes]
    out += [_new(0), b"}\x94(", _text("storage_data"), b"}\x94("]
    names = [f"model.layers.{n // 8}.attention.q_proj.weight.{n}" for n in range(tensors)]
    for number, name in enumerate(names):
        for rank in range(8):
            key = {"fqn": _text(name), "offset": _sizes(4 * rank, 0), "index": _number(rank)}
            place = {
                "relative_path": _text(f"__{rank}_0.distcp"),
                "offset": _number(5000 * number),
                "length": _number(5000),
            }
            out += [_new(1), _state(key), _new(2), _state(place)]
    out += [b"u", _text("state_dict_metadata"), b"}\x94("]
    chunks = b"".join(
        _new(5) + _state({"offsets": _sizes(4 * k, 0), "sizes": _sizes(4, 4)}) for k in range(8)
    )
    whole = _state({"size": _sizes(32, 4), "chunks": b"]\x94(" + chunks + b"e"})
    for name in names:
        out += [_text(name), _new(4), whole]
    return b"".join([*out, b"uub."])


def _new(number: int) -> bytes:
    # Every text of a class was memoized by two: module, name, class.
    return b"h" + bytes([3 * number + 2]) + b")\x81\x94"


def _text(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode() + b"\x94"


def _number(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def _sizes(*lengths: int) -> bytes:
    numbers = b"".join(map(_number, lengths))
    return b"h" + bytes([3 * 3 + 2]) + numbers + b"\x86\x94\x85\x94R\x94"


def _state(members: dict[str, bytes]) -> bytes:
    inner = b"".join(_text(name) + value for name, value in members.items())
    return b"}\x94(" + inner + b"ub"
