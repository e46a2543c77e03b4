"""The file system behind :mod:`ckptgov.testing.faultfs`: the source, as it is, or as rules say."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import fnmatch
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import mfusepy  # type: ignore[import-untyped]
import msgspec

from ckptgov.testing.faultfs import FiredFile, Rule, RuleFile, fired_file, write_whole

T = TypeVar("T")
_Entry = tuple[str, dict[str, int], int]

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STAT = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_blocks", "st_ino", "st_dev")
_STATFS_SIZES = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_flag", "f_namemax")
_STATFS = (*_STATFS_SIZES, "f_files", "f_ffree", "f_favail")
_HIDDEN = ".fuse_hidden"  # libfuse's names for open files whose own name has gone
_NEVER_PASSED_ON = os.O_DIRECT | os.O_APPEND | os.O_NOCTTY | os.O_CREAT | os.O_EXCL


def serve(source: Path, mountpoint: Path, rules: Path, *, until_eof: bool) -> None:
    """Mount and serve until unmounted or terminated; with ``until_eof`` also until stdin ends."""
    if until_eof:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    never_cached = {"attr_timeout": 0.0, "entry_timeout": 0.0, "negative_timeout": 0.0}
    _Fuse(
        PassThrough(str(source), LiveRules(rules)),
        str(mountpoint),
        foreground=True,
        fsname="faultfs",
        use_ino=True,
        **never_cached,
    )


def _end_with_stdin() -> None:
    # Whoever started us holds the other end: it is gone when this returns, however it died.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class _Fuse(mfusepy.FUSE):  # type: ignore[misc]
    """Passes on what the base class drops: flags of rename, exact times, locks without a name."""

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        self.operations.rename_with_flags(os.fsdecode(old), os.fsdecode(new), flags)
        return 0

    def truncate_fuse_3(self, path: bytes | None, length: int, opened: Any) -> int:
        name = None if path is None else os.fsdecode(path)
        self.operations.truncate(name, length, opened.contents.fh if opened else None)
        return 0

    def utimens_fuse_3(self, path: bytes, times: Any, _: Any) -> int:
        self.operations.set_times(os.fsdecode(path), times)
        return 0

    def flock(self, _: bytes | None, opened: Any, operation: int) -> int:
        self.operations.flock(None, opened.contents.fh, operation)
        return 0


class LiveRules:
    """The rules of a file that may be replaced at any time, and their counts. Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._current = RuleFile(0, ())
        self._matched: list[int] = []
        self._fired: list[int] = []

    def fire(self, op: str, paths: tuple[str, ...], end: int) -> list[Rule]:
        """The rules that this call sets off, counted. ``end``: the offset it reaches."""
        with self._lock:
            self._reload()
            firing = [
                number
                for number, rule in enumerate(self._current.rules)
                if _matches(rule, op, paths, end) and self._is_due(number, rule)
            ]
            if firing:
                self._tell()
            return [self._current.rules[number] for number in firing]

    def _is_due(self, number: int, rule: Rule) -> bool:
        self._matched[number] += 1
        due = self._matched[number] >= rule.nth and self._fired[number] != rule.times
        self._fired[number] += due
        return due

    def _reload(self) -> None:
        found = os.stat(self._file)
        if (found.st_ino, found.st_mtime_ns) == self._seen:
            return
        self._seen = (found.st_ino, found.st_mtime_ns)
        self._current = msgspec.json.decode(self._file.read_bytes(), type=RuleFile)
        self._matched = [0] * len(self._current.rules)
        self._fired = [0] * len(self._current.rules)

    def _tell(self) -> None:
        told = FiredFile(self._current.generation, tuple(self._fired))
        write_whole(fired_file(self._file), msgspec.json.encode(told))


def _matches(rule: Rule, op: str, paths: tuple[str, ...], end: int) -> bool:
    return (
        rule.op in (op, "*")
        and not any(path.rpartition("/")[2].startswith(_HIDDEN) for path in paths)
        and any(fnmatch.fnmatchcase(path, rule.match) for path in paths)
        and (rule.after_bytes is None or end > rule.after_bytes)
    )


class PassThrough(mfusepy.Operations):  # type: ignore[misc]
    """Each call goes to the same name below ``source``; handles are descriptors of this process.

    Calls on an open file are matched by the name it was opened with.
    """

    use_ns = True
    flag_nopath = True  # with the next one: calls on open files work after their name has gone
    flag_nullpath_ok = True

    def __init__(self, source: str, rules: LiveRules) -> None:
        self._source = source
        self._rules = rules
        self._names: dict[int, str] = {}

    def _at(self, path: str) -> str:
        return self._source + path

    def _name(self, path: str | None, handle: int | None) -> str:
        return path if path is not None else self._names.get(handle or -1, "/?")

    def _call(
        self, op: str, act: Callable[[], T], *paths: str, end: int = 0
    ) -> tuple[T, list[Rule]]:
        rules = self._rules.fire(op, tuple(path.lstrip("/") for path in paths), end)
        for rule in rules:
            time.sleep(rule.delay_ms / 1000)
            _fail(rule, done=False)
        result = act()
        for rule in rules:
            _fail(rule, done=True)
        return result, rules

    # looking

    def getattr(self, path: str | None, handle: int | None = None) -> dict[str, int]:
        def look() -> os.stat_result:
            return os.fstat(handle) if path is None and handle else os.lstat(self._at(path or "/"))

        found, _ = self._call("getattr", look, self._name(path, handle))
        told = {name: int(getattr(found, name)) for name in _STAT}
        times = {"st_atime": found.st_atime_ns, "st_mtime": found.st_mtime_ns}
        return told | times | {"st_ctime": found.st_ctime_ns}

    def opendir(self, path: str) -> int:
        handle = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY)
        self._names[handle] = path
        return handle

    def readdir(self, path: str | None, handle: int) -> list[_Entry]:
        found, rules = self._call("readdir", lambda: _entries(handle), self._name(path, handle))
        kept = len(found) - sum(rule.drop_entries for rule in rules)
        here = {"st_ino": os.fstat(handle).st_ino, "st_mode": stat.S_IFDIR}
        return [(".", here, 0), ("..", here, 0), *found[: max(kept, 0)]]

    def releasedir(self, path: str | None, handle: int) -> None:
        self._close(handle)

    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    def statfs(self, path: str) -> dict[str, int]:
        found, _ = self._call("statfs", lambda: os.statvfs(self._at(path)), path)
        return {name: getattr(found, name) for name in _STATFS}

    # files

    def create(self, path: str, mode: int, flags: int) -> int:
        flags = flags & ~os.O_DIRECT & ~os.O_APPEND | os.O_CREAT
        handle, _ = self._call("create", lambda: os.open(self._at(path), flags, mode), path)
        self._names[handle] = path
        return handle

    def open(self, path: str, flags: int) -> int:
        flags &= ~_NEVER_PASSED_ON
        handle, _ = self._call("open", lambda: os.open(self._at(path), flags), path)
        self._names[handle] = path
        return handle

    def read(self, path: str | None, size: int, offset: int, handle: int) -> bytes:
        name = self._name(path, handle)
        piece, rules = self._call(
            "read", lambda: os.pread(handle, size, offset), name, end=offset + size
        )
        return _flipped(piece, rules)

    def write(self, path: str | None, piece: bytes, offset: int, handle: int) -> int:
        # What is written depends on the rules, so they are asked before the write is made.
        name, end = self._name(path, handle), offset + len(piece)
        rules = self._rules.fire("write", (name.lstrip("/"),), end)
        for rule in rules:
            time.sleep(rule.delay_ms / 1000)
            _fail(rule, done=False)
        written = os.pwrite(handle, _flipped(piece, rules), offset)
        for rule in rules:
            _fail(rule, done=True)
        return written

    def truncate(self, path: str | None, length: int, handle: int | None = None) -> None:
        target = handle if path is None and handle else self._at(path or "/")
        self._call("truncate", lambda: os.truncate(target, length), self._name(path, handle))

    def fallocate(self, path: str | None, mode: int, offset: int, size: int, handle: int) -> None:
        def act() -> None:
            c_offset, c_size = ctypes.c_int64(offset), ctypes.c_int64(size)
            _checked(_libc.fallocate(handle, mode, c_offset, c_size))

        self._call("fallocate", act, self._name(path, handle), end=offset + size)

    def fsync(self, path: str | None, datasync: int, handle: int) -> None:
        sync = os.fdatasync if datasync else os.fsync
        self._call("fsync", lambda: sync(handle), self._name(path, handle))

    def flush(self, path: str | None, handle: int) -> None:
        # close() of one of several descriptors: what the source has to say about that.
        self._call("flush", lambda: os.close(os.dup(handle)), self._name(path, handle))

    def release(self, path: str | None, handle: int) -> None:
        self._call("release", lambda: self._close(handle), self._name(path, handle))

    def flock(self, path: str | None, handle: int, operation: int) -> None:
        self._call("flock", lambda: fcntl.flock(handle, operation), self._name(path, handle))

    def _close(self, handle: int) -> None:
        self._names.pop(handle, None)
        os.close(handle)

    # names

    def fsyncdir(self, path: str | None, datasync: int, handle: int) -> None:
        self._call("fsyncdir", lambda: os.fsync(handle), self._name(path, handle))

    def mkdir(self, path: str, mode: int) -> None:
        self._call("mkdir", lambda: os.mkdir(self._at(path), mode), path)

    def rmdir(self, path: str) -> None:
        self._call("rmdir", lambda: os.rmdir(self._at(path)), path)

    def unlink(self, path: str) -> None:
        self._call("unlink", lambda: os.unlink(self._at(path)), path)

    def symlink(self, path: str, text: str) -> None:
        self._call("symlink", lambda: os.symlink(text, self._at(path)), path)

    def link(self, path: str, source: str) -> None:
        self._call("link", lambda: os.link(self._at(source), self._at(path)), source, path)

    def rename_with_flags(self, old: str, new: str, flags: int) -> None:
        def act() -> None:
            old_raw, new_raw = os.fsencode(self._at(old)), os.fsencode(self._at(new))
            _checked(_libc.renameat2(_AT_FDCWD, old_raw, _AT_FDCWD, new_raw, flags))

        self._call("rename", act, old, new)

    def rename(self, old: str, new: str) -> None:
        self.rename_with_flags(old, new, 0)

    # attributes

    def chmod(self, path: str, mode: int) -> None:
        self._call("chmod", lambda: os.chmod(self._at(path), mode), path)

    def chown(self, path: str, uid: int, gid: int) -> None:
        self._call("chown", lambda: os.lchown(self._at(path), uid, gid), path)

    def set_times(self, path: str, times: Any) -> None:
        # By the kernel's own structure: "now" and "leave it" are marked in its nanoseconds.
        def act() -> None:
            raw = os.fsencode(self._at(path))
            _checked(_libc.utimensat(_AT_FDCWD, raw, times, _AT_SYMLINK_NOFOLLOW))

        self._call("utimens", act, path)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        raise NotImplementedError  # set_times is called instead; this one makes it known to libfuse


def _entries(handle: int) -> list[_Entry]:
    """What a directory holds, by name. An entry told without its inode would not be shown."""
    with os.scandir(handle) as found:
        looks = [(entry.name, entry.stat(follow_symlinks=False)) for entry in found]
    return [
        (name, {"st_ino": look.st_ino, "st_mode": look.st_mode}, 0)
        for name, look in sorted(looks)
        if not name.startswith(_HIDDEN)
    ]


def _fail(rule: Rule, *, done: bool) -> None:
    if rule.errno is not None and rule.done == done:
        number = int(getattr(errno, rule.errno))
        raise OSError(number, os.strerror(number))


def _flipped(piece: bytes, rules: list[Rule]) -> bytes:
    if piece and any(rule.flip for rule in rules):
        return bytes([piece[0] ^ 1]) + piece[1:]
    return piece
