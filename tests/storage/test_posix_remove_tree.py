"""What a file system does to a removal of a tree: mounts, depth, what resists, swaps in between."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptgov.errors import PathEscapes, StorageError, TransientStorageError
from ckptgov.storage import _linux, _remove_tree
from ckptgov.storage.posix import PosixStorage


@pytest.fixture(params=[True, False], ids=["openat2", "by steps"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PosixStorage]:
    if request.param and not _linux.has_openat2():
        pytest.skip("this kernel has no openat2")
    monkeypatch.setattr(_linux, "has_openat2", lambda: request.param)
    (tmp_path / "root").mkdir()
    with PosixStorage(tmp_path / "root") as storage:
        yield storage


@pytest.fixture
def bound(storage: PosixStorage, tmp_path: Path) -> Iterator[Path]:
    """A directory outside that is mounted in the tree too: it has the same device."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    outside, inside = tmp_path / "outside", Path(storage.root) / "t/d/mounted"
    outside.mkdir()
    (outside / "canary").write_bytes(b"mine")
    inside.mkdir(parents=True)
    done = subprocess.run(["mount", "--bind", outside, inside], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    yield outside
    subprocess.run(["umount", inside], check=True)


def test_what_is_mounted_in_a_tree_is_left_and_the_rest_goes(
    storage: PosixStorage, bound: Path
) -> None:
    storage.publish("t/a", [b"x"])
    storage.publish("t/d/b", [b"x"])
    removed = storage.remove_tree("t")
    assert (removed.files, removed.left) == (2, ("t/d/mounted",))
    assert isinstance(removed.error, StorageError)
    assert "mounted" in removed.error.message
    assert (bound / "canary").read_bytes() == b"mine"


def test_a_tree_that_is_a_mount_point_is_not_even_entered(
    storage: PosixStorage, bound: Path
) -> None:
    with pytest.raises(PathEscapes):
        storage.remove_tree("t/d/mounted")
    assert (bound / "canary").read_bytes() == b"mine"


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize("source", ["t", "t/d", "t/d/mounted"])
def test_a_directory_with_a_mount_in_it_is_not_moved(storage: PosixStorage, source: str) -> None:
    with pytest.raises(StorageError, match="mount"):
        storage.rename_dir(source, "free")
    assert (Path(storage.root) / "t/d/mounted/canary").exists()


def test_a_tree_too_deep_is_left_where_it_is_too_deep(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_remove_tree, "MAX_DEPTH", 3)
    storage.publish("t/a/b/c/d/deep", [b"x"])
    storage.publish("t/a/b/shallow", [b"x"])
    removed = storage.remove_tree("t")
    assert (removed.files, removed.left) == (1, ("t/a/b/c",))
    assert storage.stat("t/a/b/c/d/deep").bytes == 1


def _resisting(monkeypatch: pytest.MonkeyPatch, call: str, name: str, code: int) -> None:
    real: Callable[..., None] = getattr(os, call)

    def refuse(path: str, **options: object) -> None:
        if path == name:
            raise OSError(code, os.strerror(code))
        real(path, **options)

    monkeypatch.setattr(os, call, refuse)


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EACCES, errno.EIO, errno.EPERM])
def test_what_resists_is_told_and_the_rest_goes(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A09: ``.nfs`` names are what a client keeps of a file that another process has open."""
    for path in ("t/a", "t/d/.nfs0001", "t/d/b", "t/e/c"):
        storage.publish(path, [b"x"])
    with monkeypatch.context() as patch:
        _resisting(patch, "unlink", ".nfs0001", code)
        removed = storage.remove_tree("t")
    assert (removed.files, removed.left) == (3, ("t/d/.nfs0001",))
    assert isinstance(removed.error, StorageError)
    assert isinstance(removed.error, TransientStorageError) == (code in (errno.EBUSY, errno.EIO))
    assert storage.remove_tree("t").left == ()
    assert list(storage.list("")) == []


def test_what_comes_as_we_leave_goes_too(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("t/d/a", [b"x"])
    real, late = os.rmdir, Path(storage.root) / "t/d/late"
    came: list[str] = []

    def rmdir(path: str, **options: object) -> None:
        if path == "d" and not came:
            came.append(path)
            late.write_bytes(b"x")
        real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rmdir", rmdir)
    assert storage.remove_tree("t").files == 2
    assert list(storage.list("")) == []


def test_a_directory_that_never_gets_empty_is_told(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("t/d/a", [b"x"])
    _resisting(monkeypatch, "rmdir", "d", errno.ENOTEMPTY)
    removed = storage.remove_tree("t")
    assert (removed.files, removed.left) == (1, ("t/d",))


def test_many_files_far_away_go_at_a_time(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PosixStorage, "_is_network", lambda _: True)
    for number in range(300):
        storage.publish(f"t/d/{number}", [b"xy"])
    told: list[int] = []
    removed = storage.remove_tree("t", gone=told.append)
    assert (removed.files, removed.bytes, removed.left) == (300, 600, ())
    assert sum(told) == 300


def test_bytes_that_another_name_holds_are_not_counted(storage: PosixStorage) -> None:
    storage.publish("t/a", [b"12345"])
    storage.link("t/a", "t/b")
    storage.publish("t/c", [b"123"])
    storage.link("t/c", "outside")
    assert storage.remove_tree("t").bytes == 5
