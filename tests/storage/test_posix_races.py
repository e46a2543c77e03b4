"""Somebody swaps names for symlinks while we work: nothing outside is read or written."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptgov.errors import StorageError
from ckptgov.storage import _linux
from ckptgov.storage._resolve import Resolution
from ckptgov.storage.contract import TEMP_PREFIX
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.delivery_contract import deliver

SWAPS = 4000
EXCHANGE = 2
AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)


class Swapper:
    """Exchanges pairs of names, atomically and all the time, until it made all its swaps."""

    def __init__(self, *pairs: tuple[Path, Path]) -> None:
        self.pairs = [(os.fsencode(one), os.fsencode(other)) for one, other in pairs]
        self.thread = threading.Thread(target=self.run)
        self.stopping = False
        self.swaps = 0

    def run(self) -> None:
        while not self.stopping:
            for one, other in self.pairs:
                if libc.renameat2(AT_FDCWD, one, AT_FDCWD, other, EXCHANGE):
                    return
                self.swaps += 1

    def __enter__(self) -> Swapper:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping = True
        self.thread.join()


@pytest.fixture(params=[Resolution.OPENAT2, Resolution.WALK])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PosixStorage]:
    if request.param is Resolution.OPENAT2 and not _linux.has_openat2():
        pytest.skip("this kernel has no openat2")
    (tmp_path / "root").mkdir()
    with PosixStorage(tmp_path / "root", resolution=request.param) as storage:
        yield storage


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside/sub/empty").mkdir(parents=True)
    (tmp_path / f"outside/sub/{TEMP_PREFIX}debris").touch()
    for path in ("outside/sub/keep", "outside/keep"):
        (tmp_path / path).write_bytes(b"outside")
    return tmp_path / "outside"


def everything(top: Path) -> dict[str, tuple[int, int, int, bytes]]:
    found = {}
    for path in sorted([top, *top.rglob("*")]):
        look = path.lstat()
        held = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (look.st_ino, look.st_mode, look.st_ctime_ns, held)
    return found


def read(storage: PosixStorage, path: str) -> bytes:
    with storage.open(path) as file:
        return file.read_at(0, 100)


def test_a_directory_swapped_for_a_link_leads_nobody_outside(
    storage: PosixStorage, outside: Path
) -> None:
    root = Path(storage.root)
    storage.publish("d/sub/keep", [b"inside"])
    storage.publish("d/keep", [b"inside"])
    os.symlink(outside, root / "link")
    before = everything(outside)
    kept = os.stat(outside / "keep").st_ino, os.stat(outside / "sub/keep").st_ino
    seen: set[int] = set()
    texts: set[bytes] = set()
    names: set[str] = set()
    told: set[str] = set()
    times: set[int] = set()
    outer_ns = os.stat(outside / "sub/keep").st_mtime_ns

    def work(number: int) -> Iterator[Callable[[], object]]:
        new, made = f"d/sub/{number}", f"d/sub/dir{number}"
        yield lambda: names.update(entry.name for entry in storage.list("d/sub"))
        yield lambda: seen.add(storage.stat("d/sub/keep").inode)
        yield lambda: seen.update(s.inode for s in storage.stat_many("d", ["keep"]) if s)
        yield lambda: texts.add(read(storage, "d/sub/keep"))
        yield lambda: texts.add(read(storage, "d/keep"))
        yield lambda: storage.publish(new, [b"x"])
        yield lambda: storage.replace("d/keep", [b"inside"])
        yield lambda: storage.make_dirs(made)
        yield lambda: storage.remove(new)
        yield lambda: storage.remove_dir(made)
        yield lambda: storage.remove_dir("d/sub/empty")
        yield lambda: storage.sync_dir("d/sub")
        yield lambda: times.add(storage.attributes("d/sub/keep").mtime_ns)
        yield lambda: told.update(pending.path for pending in storage.pending("d"))
        yield lambda: deliver(storage.receive(new, 5), b"inner", 5)
        yield lambda: storage.link("d/sub/keep", f"d/sub/{number}-linked")
        yield lambda: storage.rename_dir(made, f"d/{number}-moved")
        yield lambda: storage.rename_dir(f"d/{number}-moved", made)
        yield lambda: storage.rename_dir("d/sub/empty", "d/stolen")

    done = refused = 0
    with Swapper((root / "d", root / "link")) as swapper:
        for number in itertools.count():
            for call in work(number):
                try:
                    call()
                    done += 1
                except (OSError, StorageError):
                    refused += 1
            if swapper.swaps >= SWAPS and done > 100 and refused > 100:
                break
            assert swapper.thread.is_alive()
    assert texts == {b"inside"}
    assert not seen & set(kept)
    assert "empty" not in names
    assert outer_ns not in times
    assert not any("debris" in path for path in told)
    assert everything(outside) == before


def test_a_file_swapped_for_a_link_is_never_read_outside(
    storage: PosixStorage, outside: Path
) -> None:
    root = Path(storage.root)
    storage.publish("f", [b"inside"])
    os.symlink(outside / "keep", root / "link")
    texts: set[bytes] = set()
    refused = 0
    with Swapper((root / "f", root / "link")) as swapper:
        while swapper.swaps < SWAPS or not texts or not refused:
            try:
                texts.add(read(storage, "f"))
            except StorageError:
                refused += 1
            assert swapper.thread.is_alive()
    assert texts == {b"inside"}


def test_removing_a_file_swapped_for_a_link_leaves_what_it_leads_to(
    storage: PosixStorage, outside: Path
) -> None:
    root = Path(storage.root)
    os.symlink(outside / "keep", root / "link")
    before = everything(outside)
    for _ in range(300):
        storage.publish("f", [b"inside"])
        with Swapper((root / "f", root / "link")), contextlib.suppress(OSError, StorageError):
            storage.remove("f")
        for name in ("f", "link"):
            with contextlib.suppress(OSError):
                os.unlink(root / name)
        os.symlink(outside / "keep", root / "link")
    assert everything(outside) == before
