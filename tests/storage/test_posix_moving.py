"""What a file system makes of ``pending``, ``rename_dir`` and ``link``."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.errors import PathEscapes, StorageError, TransientStorageError
from ckptgov.storage import _entries, _linux
from ckptgov.storage.contract import TEMP_PREFIX
from ckptgov.storage.posix import PosixStorage

PIECE = 2**20


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[PosixStorage]:
    (tmp_path / "root").mkdir()
    with PosixStorage(tmp_path / "root") as storage:
        storage.make_dirs("d")
        yield storage


def listed(storage: PosixStorage, path: str = "d") -> list[str]:
    return sorted(os.listdir(f"{storage.root}/{path}"))


def test_what_is_pending_is_told_with_size_and_time(storage: PosixStorage) -> None:
    delivery = storage.receive("d/a", 5 * PIECE)
    delivery.write(0, memoryview(bytes(3 * PIECE)))
    delivery.abandon()
    [name] = listed(storage)
    temp = Path(storage.root) / "d" / name
    os.utime(temp, ns=(5, 6))
    [pending] = storage.pending("")
    assert (pending.handle, pending.bytes, pending.started_at_ns, pending.is_held) == (
        f"d/{temp.name}",
        3 * PIECE,
        6,
        False,
    )


def test_looking_for_pending_ones_follows_no_link(storage: PosixStorage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{TEMP_PREFIX}x").touch()
    os.symlink(outside, f"{storage.root}/l")
    os.symlink(outside / f"{TEMP_PREFIX}x", f"{storage.root}/{TEMP_PREFIX}l")
    assert list(storage.pending("")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_directory_that_may_not_be_looked_into_is_an_error(storage: PosixStorage) -> None:
    os.chmod(f"{storage.root}/d", 0)
    os.seteuid(65534)
    try:
        with pytest.raises(StorageError):
            storage.pending("")
    finally:
        os.seteuid(0)


def test_a_deep_tree_is_no_problem(storage: PosixStorage) -> None:
    deep = "/".join(["x"] * 1500)
    subprocess.run(["mkdir", "-p", f"{storage.root}/{deep}"], check=True)
    assert list(storage.pending("")) == []
    subprocess.run(["rm", "-rf", f"{storage.root}/x"], check=True)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
@pytest.mark.parametrize("blind", [False, True], ids=["looked", "appeared after the look"])
def test_a_file_system_without_the_flag_still_refuses_what_holds_anything(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch, code: int, blind: bool
) -> None:
    """NFS and Lustre have no RENAME_NOREPLACE; rename(2) itself replaces empty directories only."""

    def unable(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(_linux, "move_new", unable)
    storage.publish("d/mine", [b"x"])
    storage.publish("full/theirs", [b"y"])
    storage.publish("file", [b"z"])
    if blind:
        look = _entries.lstat
        monkeypatch.setattr(
            _entries, "lstat", lambda fd, name: None if name in ("full", "file") else look(fd, name)
        )
    for taken in ("full", "file"):
        with pytest.raises(FileExistsError):
            storage.rename_dir("d", taken)
    assert listed(storage, "full") == ["theirs"]
    storage.rename_dir("d", "new")
    assert listed(storage, "new") == ["mine"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_tier_without_hard_links_says_so(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def unable(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    storage.publish("d/a", [b"x"])
    monkeypatch.setattr(os, "link", unable)
    with pytest.raises(StorageError, match="no hard link") as caught:
        storage.link("d/a", "d/b")
    assert caught.value.hint


def test_another_file_system_in_between_is_no_escape(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def across(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    storage.publish("d/a", [b"x"])
    monkeypatch.setattr(os, "link", across)
    monkeypatch.setattr(_linux, "move_new", across)
    for call in (lambda: storage.link("d/a", "d/b"), lambda: storage.rename_dir("d", "e")):
        with pytest.raises(StorageError, match="mounted in between") as caught:
            call()
        assert not isinstance(caught.value, PathEscapes)


def test_moved_and_linked_names_are_made_durable(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("d/e/a", [b"x"])
    storage.make_dirs("new")
    real, synced = os.fsync, []

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}").removeprefix(storage.root))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    storage.rename_dir("d/e", "new/e")
    assert set(synced) == {"/d", "/new"}
    synced.clear()
    storage.link("new/e/a", "d/b")
    assert synced == ["/d"]


def test_a_link_that_could_not_be_made_durable_is_withdrawn(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("d/a", [b"x"])

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(TransientStorageError):
        storage.link("d/a", "d/b")
    assert listed(storage) == ["a"]


def test_a_link_whose_answer_was_lost_and_that_was_sent_again_succeeded(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("d/a", [b"x"])
    real = os.link

    def twice(*arguments: object, **options: object) -> None:
        for _ in range(2):
            real(*arguments, **options)

    monkeypatch.setattr(os, "link", twice)
    storage.link("d/a", "d/b")
    assert listed(storage) == ["a", "b"]
