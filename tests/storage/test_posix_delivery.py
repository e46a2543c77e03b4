"""Deliveries to a file system: what a dead, stopped or foreign process leaves, and what fails."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.errors import StorageError, TransientStorageError
from ckptgov.model.files import Attributes
from ckptgov.storage import _linux, _locks, _temporary, _writeback
from ckptgov.storage._locks import Lock
from ckptgov.storage.contract import TEMP_PREFIX, Delivery
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.delivery_contract import deliver

PIECE = 2**20
WANTED = b"".join(bytes([65 + at]) * PIECE for at in range(5))


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[PosixStorage]:
    (tmp_path / "root").mkdir()
    with PosixStorage(tmp_path / "root") as storage:
        storage.make_dirs("d")
        yield storage


def listed(storage: PosixStorage, path: str = "d") -> list[str]:
    return sorted(os.listdir(f"{storage.root}/{path}"))


def temp_of(storage: PosixStorage) -> Path:
    [name] = [name for name in listed(storage) if name.startswith(TEMP_PREFIX)]
    return Path(storage.root) / "d" / name


def finished(storage: PosixStorage) -> Delivery:
    delivery = storage.receive("d/a", len(WANTED))
    deliver(delivery, WANTED, PIECE)
    delivery.finish()
    assert (Path(storage.root) / "d/a").read_bytes() == WANTED
    return delivery


def left(storage: PosixStorage, pieces: int = 3) -> Path:
    """What a delivery that was abandoned leaves."""
    delivery = storage.receive("d/a", len(WANTED))
    deliver(delivery, WANTED[: pieces * PIECE], PIECE)
    delivery.abandon()
    return temp_of(storage)


CHILD = """
import os, sys
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.delivery_contract import deliver

PIECE = 2**20
WANTED = b"".join(bytes([65 + at]) * PIECE for at in range(5))
delivery = PosixStorage(sys.argv[1]).receive("d/a", len(WANTED))
deliver(delivery, WANTED[: 3 * PIECE], PIECE)
os.kill(os.getpid(), int(sys.argv[2]))
deliver(delivery, WANTED, PIECE)
try:
    delivery.finish()
except FileExistsError:
    sys.exit(17)
"""
"""Delivers three of five pieces, sends itself a signal, and goes on if it still can."""


def child(storage: PosixStorage, number: signal.Signals) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, storage.root, str(int(number))])


# taking up


def test_after_a_kill_only_what_is_missing_is_sent(storage: PosixStorage) -> None:
    assert child(storage, signal.SIGKILL).wait() == -signal.SIGKILL
    assert temp_of(storage).stat().st_size == 3 * PIECE
    delivery = finished(storage)
    assert (delivery.sent_bytes, delivery.resumed_bytes) == (2 * PIECE, 3 * PIECE)
    assert listed(storage) == ["a"]


def test_a_stopped_process_is_not_robbed(storage: PosixStorage) -> None:
    with child(storage, signal.SIGSTOP) as stopped:
        try:
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
            [held] = storage.pending("d")
            assert held.is_held
            with pytest.raises(StorageError, match="in use"):
                storage.forget(held)
            delivery = finished(storage)
            assert (delivery.sent_bytes, delivery.resumed_bytes) == (5 * PIECE, 0)
            stopped.send_signal(signal.SIGCONT)
            assert stopped.wait() == 17
        finally:
            stopped.kill()
    assert (Path(storage.root) / "d/a").read_bytes() == WANTED
    assert listed(storage) == ["a"]


def test_a_flipped_byte_is_written_anew(storage: PosixStorage) -> None:
    with left(storage).open("r+b") as file:
        file.seek(PIECE + 7)
        file.write(b"?")
    delivery = finished(storage)
    assert (delivery.sent_bytes, delivery.resumed_bytes) == (3 * PIECE, 2 * PIECE)


def test_what_stands_is_read_past_the_page_cache(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(storage)
    dropped: list[tuple[int, int, int]] = []
    read: list[int] = []
    fadvise, preadv = os.posix_fadvise, os.preadv

    def noted(fd: int, offset: int, length: int, advice: int) -> None:
        dropped.append((offset, length, advice))
        fadvise(fd, offset, length, advice)

    def reading(fd: int, rooms: list[memoryview], offset: int) -> int:
        assert dropped[-1] == (offset, PIECE, os.POSIX_FADV_DONTNEED)
        read.append(offset)
        return preadv(fd, rooms, offset)

    monkeypatch.setattr(os, "posix_fadvise", noted)
    monkeypatch.setattr(os, "preadv", reading)
    delivery = storage.receive("d/a", len(WANTED))
    assert delivery.matches(PIECE, memoryview(WANTED)[PIECE : 2 * PIECE])
    assert read == [PIECE]
    delivery.discard()


def test_a_piece_that_only_partly_stands_is_sent(storage: PosixStorage) -> None:
    os.truncate(left(storage), 2 * PIECE + 5)
    delivery = finished(storage)
    assert delivery.resumed_bytes == 2 * PIECE


def test_what_is_longer_than_the_file_is_not_taken_up(storage: PosixStorage) -> None:
    old = left(storage, pieces=5)
    delivery = storage.receive("d/a", 4 * PIECE)
    assert not delivery.stands(0, PIECE)
    delivery.discard()
    assert listed(storage) == [old.name]


def test_without_locks_nothing_is_taken_up_nor_left(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = left(storage)

    def unable(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_locks.fcntl, "flock", unable)
    delivery = storage.receive("d/a", len(WANTED))
    deliver(delivery, WANTED[:PIECE], PIECE)
    assert not any(pending.is_held for pending in storage.pending(""))
    assert delivery.resumed_bytes == 0
    delivery.abandon()
    assert listed(storage) == [old.name]


def test_a_published_file_under_a_temporary_name_is_never_written_to(
    storage: PosixStorage,
) -> None:
    old = left(storage)
    os.link(old, f"{storage.root}/d/published")
    before = (Path(storage.root) / "d/published").read_bytes()
    delivery = storage.receive("d/a", len(WANTED))
    assert not delivery.stands(0, PIECE)
    delivery.write(0, memoryview(b"?" * PIECE))
    delivery.discard()
    assert (Path(storage.root) / "d/published").read_bytes() == before


def test_a_link_or_fifo_under_a_temporary_name_is_left_alone(storage: PosixStorage) -> None:
    old = left(storage)
    victim = Path(storage.root) / "victim"
    victim.write_bytes(b"v" * PIECE)
    for make in (lambda: os.symlink(victim, old), lambda: os.mkfifo(old)):
        old.unlink()
        make()
        assert finished(storage).resumed_bytes == 0
        os.unlink(f"{storage.root}/d/a")
        assert list(storage.pending("")) == []
    assert victim.read_bytes() == b"v" * PIECE


def test_what_a_link_under_a_temporary_name_leads_to_is_not_even_opened(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = left(storage)
    victim = Path(storage.root) / "victim"
    os.rename(old, victim)
    os.symlink(victim, old)
    real, opened = os.open, []

    def noted(*arguments: object, **options: object) -> int:
        fd = real(*arguments, **options)
        opened.append(os.readlink(f"/proc/self/fd/{fd}"))
        return fd

    monkeypatch.setattr(os, "open", noted)
    finished(storage)
    assert opened
    assert str(victim) not in opened


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away takes root")
def test_a_file_of_another_user_is_not_taken_up(storage: PosixStorage) -> None:
    os.chown(left(storage), 65534, 65534)
    assert finished(storage).resumed_bytes == 0


def test_a_file_whose_owner_finished_before_it_was_locked_is_not_taken_up(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = left(storage)
    real = _temporary.lock_file

    def late(fd: int, *, shared: bool = False) -> Lock:
        if old.exists():
            os.rename(old, f"{storage.root}/d/b")
        return real(fd, shared=shared)

    monkeypatch.setattr(_temporary, "lock_file", late)
    delivery = storage.receive("d/a", len(WANTED))
    assert not delivery.stands(0, PIECE)
    delivery.write(0, memoryview(b"?" * PIECE))
    delivery.discard()
    assert (Path(storage.root) / "d/b").read_bytes() == WANTED[: 3 * PIECE]


def test_a_new_file_that_another_process_locked_first_is_left_to_it(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([Lock.HELD, Lock.OURS])
    monkeypatch.setattr(_temporary, "lock_file", lambda _: next(answers))
    delivery = storage.receive("d/a", 1)
    delivery.write(0, memoryview(b"x"))
    delivery.finish()
    assert len(listed(storage)) == 2
    assert (Path(storage.root) / "d/a").read_bytes() == b"x"


def test_a_file_of_one_piece_leaves_nothing(storage: PosixStorage) -> None:
    delivery = storage.receive("d/a", PIECE)
    delivery.write(0, memoryview(WANTED)[:PIECE])
    delivery.abandon()
    assert listed(storage) == []


def test_a_delivery_abandoned_before_its_first_byte_leaves_nothing(storage: PosixStorage) -> None:
    storage.receive("d/a", len(WANTED)).abandon()
    assert listed(storage) == []


def test_a_large_directory_is_listed_once(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_temporary, "_MANY_NAMES", 1)
    left(storage)
    with PosixStorage(storage.root) as other:
        real, calls = os.listdir, []

        def counted(fd: int) -> list[str]:
            calls.append(fd)
            return real(fd)

        monkeypatch.setattr(os, "listdir", counted)
        for name in ("d/a", "d/b"):
            delivery = other.receive(name, len(WANTED))
            assert delivery.stands(0, PIECE) == (name == "d/a")
            delivery.write(0, memoryview(WANTED)[:PIECE])
            delivery.abandon()
        assert other.receive("d/b", len(WANTED)).stands(0, PIECE)
        assert len(calls) == 1


# attributes and modes


def test_modes_and_times_are_exact(storage: PosixStorage) -> None:
    for mode, mtime_ns in ((0o400, 1), (0o777, 1_700_000_000_123_456_789), (0o4755, -1)):
        given = Attributes(mode=mode, uid=os.geteuid(), gid=os.getegid(), mtime_ns=mtime_ns)
        delivery = storage.receive("d/a", 3, attributes=given)
        delivery.write(0, memoryview(b"abc"))
        told, _ = delivery.finish()
        found = os.stat(f"{storage.root}/d/a")
        assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (mode & 0o777, mtime_ns)
        assert told.mtime_ns == mtime_ns
        os.unlink(f"{storage.root}/d/a")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away takes root")
def test_owner_and_group_travel_where_allowed(storage: PosixStorage) -> None:
    given = Attributes(mode=0o640, uid=1234, gid=2345, mtime_ns=5)
    delivery = storage.receive("d/a", 0, attributes=given)
    delivery.finish()
    assert storage.attributes("d/a") == given


def test_an_owner_that_may_not_be_set_is_left(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(fd: int, uid: int, gid: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)
    given = Attributes(mode=0o640, uid=1234, gid=2345, mtime_ns=5)
    storage.receive("d/a", 0, attributes=given).finish()
    found = storage.attributes("d/a")
    assert (found.mode, found.mtime_ns, found.uid) == (0o640, 5, os.geteuid())


def test_a_time_that_the_fsync_moved_is_set_again(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def late(fd: int) -> None:
        real(fd)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            calls.append(fd)
            if len(calls) == 1:
                os.utime(fd)

    monkeypatch.setattr(os, "fsync", late)
    given = Attributes(mode=0o640, uid=os.geteuid(), gid=os.getegid(), mtime_ns=12345)
    storage.receive("d/a", 0, attributes=given).finish()
    assert storage.attributes("d/a").mtime_ns == 12345
    assert len(calls) == 2


def test_bytes_on_their_way_are_for_their_owner_only(storage: PosixStorage) -> None:
    given = Attributes(mode=0o600, uid=os.geteuid(), gid=os.getegid(), mtime_ns=5)
    delivery = storage.receive("d/a", 1, attributes=given)
    assert stat.S_IMODE(temp_of(storage).stat().st_mode) == 0o600
    delivery.discard()


# failures


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> list[int]:
    """Let an ``os`` call fail for regular files; the descriptors it was asked for."""
    real, asked = getattr(os, name), []

    def fail(fd: int, *arguments: object, **options: object) -> object:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return real(fd, *arguments, **options)
        asked.append(fd)
        if name == "close":
            real(fd)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, fail)
    return asked


@pytest.mark.parametrize("call", ["pwrite", "fsync", "close", "utime"])
def test_a_failure_is_told_once_and_nothing_is_left(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    given = Attributes(mode=0o600, uid=os.geteuid(), gid=os.getegid(), mtime_ns=5)
    delivery = storage.receive("d/a", len(WANTED), attributes=given)
    asked = failing(monkeypatch, call, errno.EIO)

    def work() -> None:
        deliver(delivery, WANTED, PIECE)
        delivery.finish()

    with pytest.raises(TransientStorageError, match="d/a") as caught:
        work()
    assert isinstance(caught.value.__cause__, OSError)
    for again in (lambda: delivery.write(0, memoryview(b"x")), delivery.finish):
        with pytest.raises(StorageError, match="over"):
            again()
    delivery.abandon()
    monkeypatch.undo()
    assert len(asked) == (2 if call == "close" else 1)  # the other one gives the lock back
    assert listed(storage) == []


def test_an_error_that_writeback_tells_is_not_lost(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(_writeback, "WINDOW_BYTES", PIECE)
    monkeypatch.setattr(_linux, "await_writeback", broken)
    delivery = storage.receive("d/a", len(WANTED))
    delivery.write(0, memoryview(WANTED)[:PIECE])
    with pytest.raises(TransientStorageError):
        delivery.write(PIECE, memoryview(WANTED)[PIECE : 2 * PIECE])
    assert listed(storage) == []


def test_at_most_two_windows_have_not_left(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int, int]] = []
    monkeypatch.setattr(_writeback, "WINDOW_BYTES", 2 * PIECE)
    monkeypatch.setattr(_linux, "start_writeback", lambda _, *at: calls.append(("start", *at)))
    monkeypatch.setattr(_linux, "await_writeback", lambda _, *at: calls.append(("await", *at)))
    delivery = storage.receive("d/a", len(WANTED))
    delivery.write(0, memoryview(WANTED))  # also in one piece
    delivery.discard()
    assert calls == [
        ("start", 0, 2 * PIECE),
        ("start", 2 * PIECE, 2 * PIECE),
        ("await", 0, 2 * PIECE),
    ]


def test_room_is_reserved_at_once_and_without_writing(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: list[int] = []
    real = _linux.allocate

    def noted(fd: int, length: int) -> None:
        reserved.append(length)
        real(fd, length)

    monkeypatch.setattr(_linux, "allocate", noted)
    delivery = storage.receive("d/a", len(WANTED))
    delivery.write(0, memoryview(WANTED)[:PIECE])
    delivery.write(PIECE, memoryview(WANTED)[PIECE : 2 * PIECE])
    assert reserved == [len(WANTED)]
    assert temp_of(storage).stat().st_size == 2 * PIECE
    delivery.discard()


def test_where_no_room_can_be_reserved_it_is_written_all_the_same(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(fd: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(_linux, "allocate", unable)
    assert finished(storage).sent_bytes == len(WANTED)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_full_tier_says_so_before_anything_is_sent(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode()}")
    try:
        with PosixStorage(tmp_path) as storage:
            delivery = storage.receive("a", 9 * PIECE)
            with pytest.raises(StorageError, match="a: No space left") as caught:
                delivery.write(0, memoryview(WANTED)[:PIECE])
            assert caught.value.hint
            assert delivery.sent_bytes == 0
            delivery.abandon()
            assert os.listdir(tmp_path) == []
            fits = storage.receive("a", 5 * PIECE)
            deliver(fits, WANTED, PIECE)
            fits.finish()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_interrupt_leaves_the_bytes_for_later(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(fd: int, piece: memoryview, offset: int) -> int:
        raise KeyboardInterrupt

    delivery = storage.receive("d/a", len(WANTED))
    deliver(delivery, WANTED[: 3 * PIECE], PIECE)
    monkeypatch.setattr(os, "pwrite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        delivery.write(3 * PIECE, memoryview(WANTED)[:PIECE])
    monkeypatch.undo()
    with pytest.raises(StorageError):
        delivery.write(3 * PIECE, memoryview(WANTED)[:PIECE])
    delivery.abandon()
    assert finished(storage).resumed_bytes == 3 * PIECE


def test_a_foreign_writer_to_the_temporary_file_is_seen_by_its_size(storage: PosixStorage) -> None:
    delivery = storage.receive("d/a", 3)
    delivery.write(0, memoryview(b"abc"))
    with temp_of(storage).open("ab") as file:
        file.write(b"d")
    with pytest.raises(StorageError, match="4 bytes stand where 3 were written"):
        delivery.finish()
    assert listed(storage) == []


def test_a_temporary_name_taken_away_is_no_absent_file(storage: PosixStorage) -> None:
    delivery = storage.receive("d/a", 3)
    delivery.write(0, memoryview(b"abc"))
    temp_of(storage).unlink()
    with pytest.raises(StorageError, match="took the temporary name away"):
        delivery.finish()


def test_short_writes_are_continued(storage: PosixStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, piece, at: real(fd, piece[:100_000], at))
    finished(storage)


def test_the_lock_is_held_until_the_temporary_name_is_gone(
    storage: PosixStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, held = os.link, []

    def looking(*arguments: object, **options: object) -> None:
        held.extend(pending.is_held for pending in storage.pending("d"))
        real(*arguments, **options)

    monkeypatch.setattr(os, "link", looking)
    finished(storage)
    assert held == [True]


def test_no_descriptor_is_left_open(storage: PosixStorage) -> None:
    before = len(os.listdir("/proc/self/fd"))
    finished(storage)
    left_behind = storage.receive("d/b", len(WANTED))
    left_behind.write(0, memoryview(b"x"))
    left_behind.abandon()
    storage.receive("d/c", 1).discard()
    forgotten = storage.receive("d/d", 1)
    del forgotten
    for call in (
        lambda: storage.receive("d/a", 1),
        lambda: storage.receive("absent/../x", 1),
        lambda: storage.rename_dir("d", "d/e"),
        lambda: storage.link("d/a", "d/a"),
    ):
        with pytest.raises((OSError, StorageError)):
            call()
    for pending in storage.pending(""):
        storage.forget(pending)
    assert len(os.listdir("/proc/self/fd")) == before
    assert listed(storage) == ["a"]


def test_a_directory_moved_while_it_receives_takes_the_file_along(storage: PosixStorage) -> None:
    delivery = storage.receive("d/a", 1)
    delivery.write(0, memoryview(b"x"))
    storage.rename_dir("d", "moved")
    os.symlink("moved", f"{storage.root}/d")
    delivery.finish()
    assert listed(storage, "moved") == ["a"]


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
    finished(storage)
    assert events == ["bytes", "link", "names"]
