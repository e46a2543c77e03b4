from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.testing import faultfs
from ckptgov.testing.faultfs import Faults, Rule, faulty_mount

pytestmark = pytest.mark.skipif(
    faultfs.reason_to_skip() is not None, reason=str(faultfs.reason_to_skip())
)

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
MIB = 2**20


class Mount:
    """A mount that its tests share; each works in a directory of its own."""

    def __init__(self, source: Path, seen: Path, faults: Faults) -> None:
        self.source, self.seen, self.faults = source, seen, faults


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    base = tmp_path_factory.mktemp("fault")
    (base / "source").mkdir()
    with faulty_mount(base / "source", base / "seen") as faults:
        yield Mount(base / "source", base / "seen", faults)


@pytest.fixture
def mount(mounted: Mount, request: pytest.FixtureRequest) -> Iterator[Mount]:
    name = request.node.originalname
    (mounted.source / name).mkdir(exist_ok=True)
    yield Mount(mounted.source / name, mounted.seen / name, mounted.faults)
    mounted.faults.clear()


def rename(old: Path, new: Path, flags: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags)
    return 0 if done == 0 else ctypes.get_errno()


def refused(call: object) -> int | None:
    try:
        call()  # type: ignore[operator]
    except OSError as error:
        return error.errno
    return None


def test_the_source_is_seen_as_it_is(mount: Mount) -> None:
    (mount.source / "a").write_bytes(b"12345")
    (mount.source / "a").chmod(0o640)
    os.utime(mount.source / "a", ns=(7, 1_234_567_890_123_456_789))
    seen, real = (mount.seen / "a").stat(), (mount.source / "a").stat()
    for name in ("st_size", "st_mode", "st_uid", "st_gid", "st_ino", "st_nlink", "st_mtime_ns"):
        assert getattr(seen, name) == getattr(real, name)
    assert os.listdir(mount.seen) == ["a"]
    assert (mount.seen / "a").read_bytes() == b"12345"


def test_what_is_done_there_is_done_to_the_source(mount: Mount) -> None:
    (mount.seen / "d").mkdir()
    (mount.seen / "d/a").write_bytes(b"new")
    (mount.seen / "d/a").chmod(0o600)
    os.utime(mount.seen / "d/a", ns=(7, 1_234_567_890_123_456_789))
    os.link(mount.seen / "d/a", mount.seen / "linked")
    (mount.seen / "l").symlink_to("nowhere")
    looked = (mount.source / "linked").stat()
    assert (looked.st_mode & 0o777, looked.st_mtime_ns, looked.st_nlink) == (
        0o600,
        1_234_567_890_123_456_789,
        2,
    )
    assert (mount.source / "d/a").read_bytes() == b"new"
    assert os.readlink(mount.source / "l") == "nowhere"
    (mount.seen / "d/a").unlink()
    (mount.seen / "d").rmdir()
    assert sorted(os.listdir(mount.source)) == ["l", "linked"]


def test_a_rename_that_must_not_replace_does_not(mount: Mount) -> None:
    for name in "ab":
        (mount.seen / name).write_bytes(name.encode())
    assert rename(mount.seen / "a", mount.seen / "b", RENAME_NOREPLACE) == errno.EEXIST
    assert rename(mount.seen / "a", mount.seen / "c", RENAME_NOREPLACE) == 0
    assert (mount.source / "b").read_bytes() == b"b"
    assert (mount.source / "c").read_bytes() == b"a"


def test_names_can_be_exchanged(mount: Mount) -> None:
    for name in "ab":
        (mount.seen / name).write_bytes(name.encode())
    assert rename(mount.seen / "a", mount.seen / "b", RENAME_EXCHANGE) == 0
    assert (mount.source / "a").read_bytes() == b"b"
    assert (mount.source / "b").read_bytes() == b"a"


def test_a_removed_file_that_is_open_stays_usable_and_unlisted(mount: Mount) -> None:
    with (mount.seen / "a").open("w+b", buffering=0) as file:
        file.write(b"12345")
        (mount.seen / "a").unlink()
        file.truncate(3)
        os.fsync(file.fileno())
        assert os.fstat(file.fileno()).st_size == 3
        assert os.listdir(mount.seen) == []
    assert os.listdir(mount.seen) == []


def test_locks_exclude(mount: Mount) -> None:
    (mount.seen / "a").touch()
    with (mount.seen / "a").open() as one, (mount.seen / "a").open() as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_rule_fires_once_at_its_call_and_name(mount: Mount) -> None:
    mount.faults.inject([Rule(op="fsync", match="*/b", errno="EIO", nth=2)])
    with (mount.seen / "a").open("wb") as other, (mount.seen / "b").open("wb") as file:
        answers = [refused(lambda: os.fsync(other.fileno()))]
        answers += [refused(lambda: os.fsync(file.fileno())) for _ in range(4)]
    assert answers == [None, None, errno.EIO, None, None]
    assert mount.faults.fired == (1,)


def test_a_sticky_rule_fires_until_it_is_cleared(mount: Mount) -> None:
    mount.faults.inject([Rule(op="mkdir", errno="EROFS", times=-1)])
    answers = [refused((mount.seen / "d").mkdir) for _ in range(3)]
    assert answers == [errno.EROFS] * 3
    mount.faults.clear()
    assert refused((mount.seen / "d").mkdir) is None
    assert mount.faults.fired == ()


def test_a_full_disk_is_full_from_a_byte_on(mount: Mount) -> None:
    mount.faults.inject([Rule(op="write", errno="ENOSPC", after_bytes=MIB, times=-1)])
    with (mount.seen / "a").open("wb", buffering=0) as file:
        assert refused(lambda: file.write(bytes(MIB))) is None
        assert refused(lambda: file.write(b"x")) == errno.ENOSPC
    assert (mount.source / "a").stat().st_size == MIB


@pytest.mark.parametrize(
    ("op", "act"),
    [
        ("create", lambda seen: (seen / "new").touch()),
        ("open", lambda seen: (seen / "old").open("rb")),
        ("read", lambda seen: (seen / "old").read_bytes()),
        ("flush", lambda seen: (seen / "old").open("rb").close()),
        ("rename", lambda seen: (seen / "old").rename(seen / "new")),
        ("link", lambda seen: os.link(seen / "old", seen / "new")),
        ("unlink", lambda seen: (seen / "old").unlink()),
        ("rmdir", lambda seen: (seen / "dir").rmdir()),
        ("readdir", os.listdir),
        ("getattr", os.stat),
        ("truncate", lambda seen: os.truncate(seen / "old", 0)),
        ("chmod", lambda seen: (seen / "old").chmod(0o600)),
        ("utimens", lambda seen: os.utime(seen / "old")),
        ("symlink", lambda seen: (seen / "new").symlink_to("x")),
        ("statfs", os.statvfs),
    ],
)
def test_every_call_can_fail(mount: Mount, op: str, act: object) -> None:
    (mount.source / "dir").mkdir(exist_ok=True)
    (mount.source / "old").write_bytes(b"x")
    mount.faults.inject([Rule(op=op, errno="ESTALE", times=-1)])
    assert refused(lambda: act(mount.seen)) == errno.ESTALE  # type: ignore[operator]
    assert mount.faults.fired[0] > 0
    assert sorted(os.listdir(mount.source)) == ["dir", "old"]


def test_syncing_a_directory_can_fail(mount: Mount) -> None:
    mount.faults.inject([Rule(op="fsyncdir", errno="EIO")])
    handle = os.open(mount.seen, os.O_RDONLY)
    try:
        answers = [refused(lambda: os.fsync(handle)) for _ in range(2)]
    finally:
        os.close(handle)
    assert answers == [errno.EIO, None]


def test_an_answer_can_be_lost_after_the_deed(mount: Mount) -> None:
    (mount.source / "a").touch()
    mount.faults.inject([Rule(op="rename", errno="EIO", done=True)])
    assert refused(lambda: (mount.seen / "a").rename(mount.seen / "b")) == errno.EIO
    assert os.listdir(mount.source) == ["b"]


def test_bits_flip_on_the_way_in_and_out(mount: Mount) -> None:
    mount.faults.inject([Rule(op="write", flip=True)])
    (mount.seen / "a").write_bytes(b"\0\0")
    assert (mount.source / "a").read_bytes() == b"\1\0"
    mount.faults.inject([Rule(op="read", flip=True)])
    assert (mount.seen / "a").read_bytes() == b"\0\0"
    mount.faults.clear()
    assert (mount.seen / "a").read_bytes() == b"\1\0"


def test_a_listing_can_be_short(mount: Mount) -> None:
    for name in "abc":
        (mount.source / name).touch()
    mount.faults.inject([Rule(op="readdir", drop_entries=2, times=-1)])
    assert os.listdir(mount.seen) == ["a"]


def test_an_unknown_errno_is_refused_before_anything_changes(mount: Mount) -> None:
    with pytest.raises(ValueError, match="EWHATEVER"):
        mount.faults.inject([Rule(errno="EWHATEVER")])
    (mount.seen / "a").touch()


def test_afterwards_nothing_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with faulty_mount(tmp_path / "source", tmp_path / "seen"):
        assert os.path.ismount(tmp_path / "seen")
        left_open = (tmp_path / "seen" / "a").open("wb")
    assert not os.path.ismount(tmp_path / "seen")
    with pytest.raises(OSError, match=r"connected|aborted"):
        os.fsync(left_open.fileno())
    with pytest.raises(OSError, match=r"connected|aborted"):
        left_open.close()
