from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.errors import PathEscapes, StorageError
from ckptgov.storage import _linux, _resolve
from ckptgov.storage._resolve import Resolution
from ckptgov.storage._stat import lstat
from ckptgov.storage.contract import Storage
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.storage_contract import SourceBroke, StorageContract, breaking


class PosixContract(StorageContract):
    resolution = Resolution.AUTO

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        with PosixStorage(tmp_path, resolution=self.resolution) as storage:
            yield storage

    def put_link(self, storage: Storage, path: str, text: str) -> None:
        os.symlink(text, f"{storage.root}/{path}")

    def put_fifo(self, storage: Storage, path: str) -> None:
        os.mkfifo(f"{storage.root}/{path}")

    def break_listing(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.scandir

        class Breaking:
            def __init__(self, fd: int) -> None:
                self.entries = real(fd)

            def __enter__(self) -> Iterator[os.DirEntry[str]]:
                first = next(self.entries)

                def entries() -> Iterator[os.DirEntry[str]]:
                    yield first
                    raise OSError(5, "Input/output error")

                return entries()

            def __exit__(self, *_: object) -> None:
                self.entries.close()

        monkeypatch.setattr(os, "scandir", Breaking)


class TestPosixStorage(PosixContract):
    pass


@pytest.mark.skipif(not _linux.has_openat2(), reason="this kernel has no openat2")
class TestPosixStorageByOpenat2(PosixContract):
    resolution = Resolution.OPENAT2


class TestPosixStorageByWalking(PosixContract):
    resolution = Resolution.WALK


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[PosixStorage]:
    (tmp_path / "root").mkdir(mode=0o755)
    with PosixStorage(tmp_path / "root") as storage:
        yield storage


@pytest.fixture
def denied(storage: PosixStorage, tmp_path: Path) -> Iterator[str]:
    """A directory that holds a file, and whose permissions bind this process too."""
    storage.publish("d/a", [b"x"])
    (tmp_path / "root/d").chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield "d"
    finally:
        if is_root:
            os.seteuid(0)
        (tmp_path / "root/d").chmod(0o755)


# the root


def test_a_missing_root_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PosixStorage(tmp_path / "absent")


def test_a_root_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(NotADirectoryError):
        PosixStorage(tmp_path / "f")


def test_the_root_is_told_as_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with PosixStorage(".") as storage:
        assert storage.root == str(tmp_path)


def test_the_root_stays_the_one_that_was_opened(storage: PosixStorage, tmp_path: Path) -> None:
    storage.publish("d/a", [b"x"])
    (tmp_path / "root").rename(tmp_path / "moved")
    (tmp_path / "root").mkdir()
    assert storage.stat("d/a").bytes == 1
    storage.publish("d/b", [b"x"])
    assert sorted(os.listdir(tmp_path / "moved/d")) == ["a", "b"]


def test_a_closed_storage_answers_nothing(storage: PosixStorage) -> None:
    storage.publish("a", [b"x"])
    storage.close()
    storage.close()
    for call in (storage.list, storage.stat, storage.open, storage.remove, storage.sync_dir):
        with pytest.raises(StorageError):
            call("a")


def test_no_descriptor_is_left_open(storage: PosixStorage, tmp_path: Path) -> None:
    os.symlink("d", tmp_path / "root/l")
    os.mkfifo(tmp_path / "root/p")
    storage.publish("d/e/a", [b"x"])
    before = len(os.listdir("/proc/self/fd"))
    for path in ("", "d", "d/e", "d/e/a", "l/e/a", "absent", "p", "l/../../.."):
        for call in (
            storage.list,
            storage.stat,
            storage.read_link,
            lambda path: storage.open(path).close(),
            lambda path: storage.make_dirs(path, like="d"),
            lambda path: storage.stat_many(path, ["a"]),
            lambda path: storage.publish(path, [b"x"]),
            lambda path: storage.publish(f"{path}/new", breaking(b"x")),
        ):
            with contextlib.suppress(OSError, StorageError, SourceBroke):
                call(path)
    assert len(os.listdir("/proc/self/fd")) == before


# permissions and modes


def test_permission_denied_is_an_error_and_never_an_empty_listing(
    storage: PosixStorage, denied: str
) -> None:
    for call in (storage.list, storage.sync_dir):
        with pytest.raises(StorageError) as caught:
            call(denied)
        assert isinstance(caught.value.__cause__, PermissionError)
        assert caught.value.hint


def test_permission_denied_is_never_an_absent_file(storage: PosixStorage, denied: str) -> None:
    for call in (storage.stat, storage.open, storage.remove):
        with pytest.raises(StorageError):
            call(f"{denied}/a")
    with pytest.raises(StorageError):
        storage.stat_many(denied, ["a", "absent"])


def test_a_root_that_may_not_be_opened_is_an_error(storage: PosixStorage, denied: str) -> None:
    with pytest.raises(StorageError):
        PosixStorage(f"{storage.root}/{denied}")


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(storage: PosixStorage, path: str) -> int:
    return stat.S_IMODE(os.stat(f"{storage.root}/{path}").st_mode)


@pytest.mark.usefixtures("umask")
def test_published_files_have_the_default_mode_and_are_never_executable(
    storage: PosixStorage,
) -> None:
    storage.publish("d/a", [b"x"])
    assert mode(storage, "d/a") == 0o640
    assert mode(storage, "d") == 0o750


@pytest.mark.usefixtures("umask")
def test_new_directories_take_after_their_example(storage: PosixStorage) -> None:
    (Path(storage.root) / "old").mkdir()
    (Path(storage.root) / "old").chmod(0o2775)
    storage.make_dirs("old/new/newer", like="old")
    assert mode(storage, "old/new") == mode(storage, "old/new/newer") == 0o2775


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_new_directories_take_owner_and_group_where_allowed(storage: PosixStorage) -> None:
    storage.make_dirs("old")
    os.chown(f"{storage.root}/old", 65534, 65533)
    storage.make_dirs("new/newer", like="old")
    for path in ("new", "new/newer"):
        found = storage.stat(path)
        assert (found.uid, found.gid) == (65534, 65533)


def test_not_being_allowed_to_give_files_away_is_no_failure(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.make_dirs("old")
    if os.geteuid() == 0:
        os.chown(f"{storage.root}/old", 65534, 65533)
    (Path(storage.root) / "old").chmod(0o770)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    storage.make_dirs("new", like="old")
    assert mode(storage, "new") == 0o770
    assert storage.stat("new").uid == os.geteuid()


def test_what_exists_keeps_its_mode(storage: PosixStorage) -> None:
    storage.make_dirs("old")
    storage.make_dirs("there/below")
    (Path(storage.root) / "old").chmod(0o777)
    (Path(storage.root) / "there").chmod(0o711)
    storage.make_dirs("there/below/new", like="old")
    assert mode(storage, "there") == 0o711
    assert mode(storage, "there/below/new") == 0o777


def test_replacing_keeps_the_mode(storage: PosixStorage) -> None:
    storage.publish("a", [b"x"])
    (Path(storage.root) / "a").chmod(0o664)
    storage.replace("a", [b"y"])
    assert mode(storage, "a") == 0o664


# links and special files


@pytest.mark.parametrize("resolution", [Resolution.AUTO, Resolution.WALK])
def test_reading_a_fifo_does_not_block(storage: PosixStorage, resolution: Resolution) -> None:
    os.mkfifo(f"{storage.root}/p")
    with (
        PosixStorage(storage.root, resolution=resolution) as other,
        pytest.raises(StorageError, match="not a regular file"),
    ):
        other.open("p")


def test_a_fifo_is_not_opened_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "p")
    opened: list[int] = []
    real = os.open

    def noted(name: str, flags: int, *, dir_fd: int) -> int:
        opened.append(flags)
        return real(name, flags, dir_fd=dir_fd)

    with PosixStorage(tmp_path, resolution=Resolution.WALK) as storage:
        monkeypatch.setattr(os, "open", noted)
        with pytest.raises(StorageError):
            storage.open("p")
    assert opened
    assert all(flags & os.O_PATH for flags in opened)


def test_a_fifo_that_takes_the_place_of_a_file_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").touch()
    os.mkfifo(tmp_path / "p")
    real = os.open

    def swapping(name: str, flags: int, *, dir_fd: int) -> int:
        if not flags & os.O_PATH:
            os.replace(tmp_path / "p", tmp_path / "f")
        return real(name, flags, dir_fd=dir_fd)

    with PosixStorage(tmp_path, resolution=Resolution.WALK) as storage:
        monkeypatch.setattr(os, "open", swapping)
        with pytest.raises(StorageError, match="not a regular file"):
            storage.open("f")


@pytest.mark.parametrize("resolution", [Resolution.OPENAT2, Resolution.WALK])
def test_links_of_proc_lead_nowhere(resolution: Resolution) -> None:
    with PosixStorage("/proc/self", resolution=resolution) as storage:
        for path in ("root/etc/passwd", "cwd", "exe", "fd/0"):
            with pytest.raises(StorageError):
                storage.open(path)


# times


def test_a_look_tells_what_lstat_tells_and_the_birth_time(storage: PosixStorage) -> None:
    storage.publish("a", [b"12345"])
    fd = os.open(storage.root, os.O_RDONLY)
    try:
        plain, full = lstat(fd, "a"), _linux.statx(fd, b"a")
    finally:
        os.close(fd)
    assert plain is not None
    if full is None or full.btime_ns is None:
        pytest.skip("this file system tells no birth times")
    for field in ("kind", "bytes", "mtime_ns", "ctime_ns", "inode", "device", "mode", "uid"):
        assert getattr(plain, field) == getattr(full, field)
    assert (plain.gid, plain.links) == (full.gid, full.links)
    assert full.btime_ns <= full.mtime_ns
    assert storage.stat("a") == full


def test_a_kernel_without_statx_leaves_the_birth_time_out(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_linux, "_statx_call", lambda: None)
    storage.publish("a", [b"12345"])
    assert storage.stat("a").btime_ns is None
    assert storage.stat("a").bytes == 5
    with pytest.raises(FileNotFoundError):
        storage.stat("b")


# resolution


def test_a_kernel_without_openat2_is_walked(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_linux, "has_openat2", lambda: False)
    storage.publish("d/e/a", [b"x"])
    os.symlink("/", f"{storage.root}/d/l")
    assert storage.stat("d/e/a").bytes == 1
    with pytest.raises(PathEscapes):
        storage.stat("d/l/etc")
    with pytest.raises(StorageError, match="openat2"):
        PosixStorage(storage.root, resolution=Resolution.OPENAT2)


def test_a_link_that_vanishes_while_it_is_read_is_looked_at_again(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish("a", [b"x"])
    os.symlink("a", f"{storage.root}/l")
    real = os.readlink

    def swapping(name: str, *, dir_fd: int) -> str:
        os.rename(f"{storage.root}/a", f"{storage.root}/l")
        return real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", swapping)
    fd = os.open(storage.root, _resolve.DIR_PATH)
    try:
        file = _resolve.walk(fd, ("l",), os.O_RDONLY, True)
        assert os.read(file, 9) == b"x"
        os.close(file)
    finally:
        os.close(fd)


def test_listing_one_step_below_the_root_needs_no_ctypes(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    program = (
        "import sys\n"
        "from ckptgov.storage.posix import PosixStorage\n"
        f"storage = PosixStorage({str(tmp_path)!r})\n"
        "print(storage.list(''), storage.list('d'), storage.stat_many('d', ['x']))\n"
        "assert 'ctypes' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
