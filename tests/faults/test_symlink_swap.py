"""P8: another process swaps directories for symlinks to a canary tree while removals run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ckptgov.errors import CkptgovError
from ckptgov.storage import _linux
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.removals import Stage

FILES = {
    **{f"a/b/shard_{n}.bin": b"%d" % n for n in range(12)},
    **{f"c/shard_{n}.bin": b"%d" % n for n in range(12)},
}

_SWAPPER = textwrap.dedent(
    """
    import contextlib, os, random, sys, time
    canary, *paths = sys.argv[1:]
    swaps = 0
    while True:
        for path in random.sample(paths, len(paths)):
            aside = path + ".swapped"
            with contextlib.suppress(OSError):
                os.rename(path, aside)
                os.symlink(canary, path)
                swaps += 1
            time.sleep(random.random() / 5000)
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.rename(aside, path)
        os.pwrite(1, b"%12d" % swaps, 0)
        if swaps % 7 == 0:
            time.sleep(random.random() / 20)  # now and then something is removed undisturbed
    """
)


class Canary:
    """A tree that looks just like what is removed."""

    def __init__(self, top: Path) -> None:
        self.top = top
        for path, raw in FILES.items():
            for prefix in ("", "b/", "a/"):
                file = top / prefix / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(raw)
        (top / ".ckptgov/trash").mkdir(parents=True)
        self._before = self._seen()

    def _seen(self) -> dict[str, tuple[int, int]]:
        return {
            str(path.relative_to(self.top)): (path.lstat().st_ino, path.lstat().st_mtime_ns)
            for path in self.top.rglob("*")
        }

    def require_untouched(self) -> None:
        assert self._seen() == self._before, "something beyond a symlink was touched"


@contextmanager
def swapping(canary: Path, *paths: Path, count_file: Path) -> Iterator[Callable[[], int]]:
    """Swap them all the time; yields how often that was done."""
    with count_file.open("w+b") as counted:
        process = subprocess.Popen(
            [sys.executable, "-c", _SWAPPER, canary, *paths], stdout=counted.fileno()
        )
        try:
            yield lambda: int(os.pread(counted.fileno(), 12, 0) or b"0")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.mark.timeout(3600)
def test_a_removal_never_goes_through_a_directory_that_became_a_link(
    tmp_path: Path, full_sweep: bool
) -> None:
    root = tmp_path / "tier"
    root.mkdir()
    canary = Canary(tmp_path / "canary")
    run = root / "run"
    with PosixStorage(root) as storage:
        stage = Stage(storage)
        trash = run / ".ckptgov/trash"
        trash.mkdir()
        targets = (run / "step_1", run / "step_1/a", run / "step_1/a/b", run / "step_1/c", trash)
        with swapping(canary.top, *targets, count_file=tmp_path / "count") as swaps:
            while swaps() < (10_000 if full_sweep else 300):
                with suppress(CkptgovError, OSError):
                    _removed(stage)
                _clear(storage, run)
                canary.require_untouched()
        _clear(storage, run)
        assert _removed(stage) == ()  # undisturbed it comes to its end
    canary.require_untouched()


def _removed(stage: Stage) -> tuple[str, ...]:
    manifest = stage.seal("step_1", FILES)
    moved = stage.move(manifest)
    return stage.purge(manifest, moved.trash).left


def _clear(storage: PosixStorage, run: Path) -> None:
    for path in (run / "step_1", run / ".ckptgov/trash"):
        if path.is_symlink():  # the last swap, where nobody swaps any more
            with suppress(OSError):
                path.unlink()
    for left in ("step_1", "step_1.swapped", ".ckptgov/trash.swapped", ".ckptgov/manifests"):
        with suppress(CkptgovError, OSError):
            storage.remove_tree(f"run/{left}")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("has_openat2", [True, False], ids=["openat2", "by steps"])
def test_a_tree_is_removed_beneath_itself_whatever_is_swapped(
    tmp_path: Path, full_sweep: bool, monkeypatch: pytest.MonkeyPatch, has_openat2: bool
) -> None:
    if has_openat2 and not _linux.has_openat2():
        pytest.skip("this kernel has no openat2")
    monkeypatch.setattr(_linux, "has_openat2", lambda: has_openat2)
    root = tmp_path / "tier"
    root.mkdir()
    canary = Canary(tmp_path / "canary")
    tree = root / "tree"
    gone = 0
    with (
        PosixStorage(root) as storage,
        swapping(
            canary.top, tree, tree / "a", tree / "a/b", tree / "c", count_file=tmp_path / "count"
        ) as swaps,
    ):
        while swaps() < (10_000 if full_sweep else 300) or not gone:
            with suppress(CkptgovError, OSError):
                for path, raw in FILES.items():
                    with suppress(FileExistsError):
                        storage.publish(f"tree/{path}", [raw])
            with suppress(CkptgovError, OSError):
                gone += storage.remove_tree("tree").files
                gone += storage.remove_tree("tree.swapped").files
            canary.require_untouched()
    canary.require_untouched()
