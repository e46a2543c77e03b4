"""What a failing or odd system call leaves behind."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptgov.errors import StorageError, TransientStorageError
from ckptgov.storage import _linux, _write
from ckptgov.storage.contract import TEMP_PREFIX
from ckptgov.storage.posix import PosixStorage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[PosixStorage]:
    with PosixStorage(tmp_path) as storage:
        storage.make_dirs("d")
        yield storage


class Failing:
    """Stands for an ``os`` call that fails for regular files, or for directories."""

    def __init__(self, real: Callable[..., object], code: int, *, directories: bool) -> None:
        self.real = real
        self.code = code
        self.directories = directories
        self.calls = 0

    def __call__(self, fd: int, *arguments: object) -> object:
        found = os.fstat(fd).st_mode
        if stat.S_ISDIR(found) != self.directories:
            return self.real(fd, *arguments)
        self.calls += 1
        if self.real is os_close:
            self.real(fd)
        raise OSError(self.code, os.strerror(self.code))


os_close = os.close


def fail(
    monkeypatch: pytest.MonkeyPatch, name: str, code: int, *, directories: bool = False
) -> Failing:
    failing = Failing(getattr(os, name), code, directories=directories)
    monkeypatch.setattr(os, name, failing)
    return failing


def listed(storage: PosixStorage, path: str = "d") -> list[str]:
    return sorted(os.listdir(f"{storage.root}/{path}"))


@pytest.mark.parametrize("call", ["write", "fsync", "close"])
@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.EIO, TransientStorageError), (errno.ENOSPC, StorageError)],
    ids=["EIO", "ENOSPC"],
)
def test_a_failed_write_fsync_or_close_leaves_nothing_and_is_not_tried_again(
    storage: PosixStorage,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    kind: type[StorageError],
) -> None:
    failing = fail(monkeypatch, call, code)
    with pytest.raises(StorageError) as caught:
        storage.publish("d/a", [b"bytes"])
    monkeypatch.undo()
    assert type(caught.value) is kind
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == code
    assert f"{storage.root}/d/a" in str(caught.value)
    assert failing.calls == 1
    assert listed(storage) == []


@pytest.mark.parametrize("call", ["write", "fsync", "close"])
def test_a_failed_replacement_leaves_the_old_file(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    storage.publish("d/a", [b"old"])
    fail(monkeypatch, call, errno.EDQUOT)
    with pytest.raises(StorageError):
        storage.replace("d/a", [b"new"])
    monkeypatch.undo()
    assert listed(storage) == ["a"]
    assert (Path(storage.root) / "d/a").read_bytes() == b"old"


def test_a_name_that_could_not_be_made_durable_is_withdrawn(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = fail(monkeypatch, "fsync", errno.EIO, directories=True)
    with pytest.raises(TransientStorageError):
        storage.publish("d/a", [b"bytes"])
    monkeypatch.undo()
    assert failing.calls == 1
    assert listed(storage) == []


def test_only_our_own_file_is_withdrawn(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            (Path(storage.root) / "d/new").write_bytes(b"theirs")
            os.replace(f"{storage.root}/d/new", f"{storage.root}/d/a")
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", overtaken)
    with pytest.raises(StorageError):
        storage.publish("d/a", [b"ours"])
    assert (Path(storage.root) / "d/a").read_bytes() == b"theirs"


def test_a_directory_without_fsync_of_its_own_is_accepted(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "fsync", errno.EINVAL, directories=True)
    storage.publish("d/a", [b"bytes"])
    assert listed(storage) == ["a"]


def test_a_directory_that_could_not_be_made_durable_is_withdrawn(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "fsync", errno.EIO, directories=True)
    with pytest.raises(TransientStorageError):
        storage.make_dirs("d/new")
    assert listed(storage) == []


def test_a_directory_that_another_process_made_first_is_entered(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.mkdir

    def late(name: str, mode: int, *, dir_fd: int) -> None:
        real(name, 0o700, dir_fd=dir_fd)
        real(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", late)
    storage.publish("new/er/a", [b"x"])
    assert listed(storage, "new/er") == ["a"]
    assert stat.S_IMODE(os.stat(f"{storage.root}/new").st_mode) == 0o700


def test_bytes_are_synced_before_the_name_and_the_name_before_the_return(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def noted_fsync(fd: int) -> None:
        events.append("names" if stat.S_ISDIR(os.fstat(fd).st_mode) else "bytes")
        fsync(fd)

    def noted_link(*arguments: object, **options: object) -> None:
        events.append("link")
        link(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    storage.publish("d/a", [b"bytes"])
    assert events == ["bytes", "link", "names"]


def test_each_new_directory_is_synced_with_its_parent(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    storage.make_dirs("d/e/f")
    assert synced == {storage.stat(path).inode for path in ("d", "d/e", "d/e/f")}


@pytest.mark.parametrize("call", ["remove", "remove_dir"])
def test_a_removal_is_made_durable(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    storage.publish("d/a", [b"x"])
    storage.make_dirs("d/e")
    failing = fail(monkeypatch, "fsync", errno.EIO, directories=True)
    with pytest.raises(TransientStorageError):
        getattr(storage, call)("d/a" if call == "remove" else "d/e")
    assert failing.calls == 1


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_without_hard_links_a_rename_that_refuses_taken_names_serves(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_links)
    storage.publish("d/a", [b"bytes"])
    assert listed(storage) == ["a"]
    monkeypatch.setattr(_write, "lstat", lambda *_: None)  # taken a moment after the first look
    with pytest.raises(FileExistsError):
        storage.publish("d/a", [b"other"])
    assert (Path(storage.root) / "d/a").read_bytes() == b"bytes"
    assert listed(storage) == ["a"]


def test_a_tier_that_cannot_refuse_taken_names_is_refused(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(_linux, "rename_new", unable)
    with pytest.raises(StorageError, match="neither hard links") as caught:
        storage.publish("d/a", [b"bytes"])
    assert caught.value.hint
    assert listed(storage) == []


def test_a_link_whose_answer_was_lost_and_that_was_sent_again_succeeded(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def twice(*arguments: object, **options: object) -> None:
        for _ in range(2):
            real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", twice)
    assert storage.publish("d/a", [b"bytes"]).bytes == 5
    assert listed(storage) == ["a"]


def test_a_name_changed_as_it_was_published_is_not_told_as_ours(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            (Path(storage.root) / "d/new").write_bytes(b"theirs")
            os.replace(f"{storage.root}/d/new", f"{storage.root}/d/a")

    monkeypatch.setattr(os, "fsync", overtaken)
    with pytest.raises(StorageError, match="someone else"):
        storage.publish("d/a", [b"ours"])


def test_a_taken_temporary_name_is_neither_written_through_nor_told_as_a_taken_path(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    os.symlink("victim", f"{storage.root}/d/{TEMP_PREFIX}{os.getpid()}-{bytes(8).hex()}")
    with pytest.raises(StorageError, match="temporary name"):
        storage.publish("d/a", [b"ours"])
    assert "victim" not in listed(storage)


def test_a_directory_of_someone_else_is_not_changed_in_the_place_of_a_new_one(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.mkdir

    def swapped(name: str, mode: int, *, dir_fd: int) -> None:
        real(name, 0o700, dir_fd=dir_fd)  # seen by us as another user's: a directory moved in

    monkeypatch.setattr(os, "mkdir", swapped)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    (Path(storage.root) / "d").chmod(0o777)
    storage.make_dirs("new", like="d")
    assert stat.S_IMODE(os.stat(f"{storage.root}/new").st_mode) == 0o700


def test_an_open_file_blocks_like_any_other(storage: PosixStorage) -> None:
    storage.publish("d/a", [b"x"])
    with storage.open("d/a") as file:
        assert os.get_blocking(file._fd)


def test_an_interrupt_leaves_nothing(storage: PosixStorage) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.publish("d/a", chunks())
    assert listed(storage) == []


def test_short_writes_are_continued(storage: PosixStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, piece: real(fd, piece[:3]))
    storage.publish("d/a", [b"0123456789", b"abc"])
    assert (Path(storage.root) / "d/a").read_bytes() == b"0123456789abc"


def test_large_files_are_written_out_as_they_come(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[tuple[int, int]] = []
    real = _linux.start_writeback

    def noted(fd: int, offset: int, length: int) -> None:
        ranges.append((offset, length))
        real(fd, offset, length)

    monkeypatch.setattr(_write, "_WRITEBACK_BYTES", 8)
    monkeypatch.setattr(_linux, "start_writeback", noted)
    storage.publish("d/a", [b"01234"] * 5)
    assert ranges == [(0, 10), (10, 10)]
    assert (Path(storage.root) / "d/a").read_bytes() == b"01234" * 5


def test_short_reads_are_continued(storage: PosixStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.publish("d/a", [b"0123456789"])
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 3), at))
    monkeypatch.setattr(os, "preadv", lambda fd, rooms, at: preadv(fd, [rooms[0][:3]], at))
    with storage.open("d/a") as file:
        assert file.read_at(1, 8) == b"12345678"
        buffer = bytearray(20)
        assert file.read_into(memoryview(buffer), 2) == 8
    assert buffer == b"23456789".ljust(20, b"\0")


def test_reads_fill_a_buffer_of_any_item_size(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("d/a", [b"0123456789"])
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, rooms, at: preadv(fd, [rooms[0][:1]], at))
    buffer = bytearray(8)
    with storage.open("d/a") as file, memoryview(buffer).cast("i") as view:
        assert file.read_into(view, 0) == 8
    assert buffer == b"01234567"


def test_a_read_that_fails_is_told_with_its_path(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("d/a", [b"x"])
    with storage.open("d/a") as file:
        fail(monkeypatch, "pread", errno.ESTALE)
        with pytest.raises(TransientStorageError, match="d/a"):
            file.read_at(0, 1)
        fail(monkeypatch, "preadv", errno.EIO)
        with pytest.raises(TransientStorageError):
            file.read_into(memoryview(bytearray(1)), 0)


def test_a_failed_sync_is_never_retried(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("d/a", [b"x"])
    with storage.open("d/a") as file:
        failing = fail(monkeypatch, "fsync", errno.EIO)
        with pytest.raises(TransientStorageError):
            file.sync()
        monkeypatch.undo()
        with pytest.raises(StorageError, match="an earlier fsync failed"):
            file.sync()
    assert failing.calls == 1


def test_a_closed_file_answers_nothing(storage: PosixStorage) -> None:
    storage.publish("d/a", [b"x"])
    file = storage.open("d/a")
    file.close()
    for call in (file.stat, file.sync, lambda: file.read_at(0, 1)):
        with pytest.raises(StorageError):
            call()
    file.drop_cache(0, 1)


def test_an_interrupted_call_is_made_again_a_bounded_number_of_times() -> None:
    calls: list[int] = []

    def interrupted() -> int:
        calls.append(1)
        ctypes.set_errno(errno.EINTR)
        return 7 if len(calls) == 5 else -1

    assert _linux._checked(interrupted) == 7
    calls.extend([1] * 5)
    with pytest.raises(InterruptedError):
        _linux._checked(interrupted)
    assert len(calls) < 200
