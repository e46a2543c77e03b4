"""What a path lies on: file system type, mount, and how far its times can be trusted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from msgspec import Struct

from ckptgov.errors import StorageError
from ckptgov.storage._oserrors import translated
from ckptgov.storage._paths import printable

_TICK_NS = 10_000_000  # stamps come from the kernel's tick: 10 ms at CONFIG_HZ=100
_SECOND_NS = 1_000_000_000

_TICKING = {"ext4", "xfs", "btrfs", "tmpfs", "ramfs", "overlay", "f2fs", "bcachefs", "zfs"}
_TWO_SECONDS = {"vfat", "msdos", "exfat"}  # FAT stores even seconds

# Types that other machines may write to as well. Plain "fuse" tells no subtype: be careful.
_NETWORK = re.compile(
    r"nfs4?|pnfs|lustre|gpfs|cifs|smb3|smbfs|ncpfs|beegfs|ceph|9p|virtiofs|afs|kafs|coda"
    r"|glusterfs|orangefs|pvfs2|wekafs|panfs|ocfs2|gfs2|lizardfs|moosefs|vast|quobyte|scoutfs"
    r"|dvs|fuse(\..+)?"
)


class FileSystem(Struct, frozen=True, kw_only=True):
    """The mount a root lies on.

    ``granularity_ns``: two writes closer together than this may leave the same mtime, so a token
    must be older than that to prove anything. ``mount_point`` other than the expected one means
    that the tier is not mounted. ``is_network``: other machines, with other clocks, write too.
    """

    type: str
    source: str
    mount_point: str
    is_network: bool
    granularity_ns: int


class Mount(Struct, frozen=True, kw_only=True):
    """One line of mountinfo (proc_pid_mountinfo(5))."""

    mount_id: int
    mount_point: str
    type: str
    source: str


def filesystem_of(path: str) -> FileSystem:
    """What ``path`` lies on, symlinks followed.

    Raises:
        FileNotFoundError: there is no such path.
        StorageError: the kernel does not tell.
    """
    real = os.path.realpath(path)
    with translated(path):
        fd = os.open(real, os.O_PATH)
    try:
        return filesystem_of_fd(fd, real)
    finally:
        os.close(fd)


def filesystem_of_fd(fd: int, real_path: str) -> FileSystem:
    """The same for what is open already, also if something was mounted over it since."""
    mounts = parse_mounts(_read("/proc/self/mountinfo"))
    mount_id = parse_mount_id(_read(f"/proc/self/fdinfo/{fd}"))
    found = next((mount for mount in mounts if mount.mount_id == mount_id), None)
    found = found or mount_under(mounts, real_path)
    if found is None:
        raise StorageError(f"{printable(real_path)}: no mount in mountinfo holds this path")
    return describe(found)


def mounts_at_or_below(real_path: str) -> tuple[str, ...]:
    """Mount points that are a path without symlinks, or lie beneath it."""
    below = f"{real_path.rstrip('/')}/"
    mounts = parse_mounts(_read("/proc/self/mountinfo"))
    return tuple(one.mount_point for one in mounts if f"{one.mount_point}/".startswith(below))


def describe(mount: Mount) -> FileSystem:
    """What the type of a mount tells."""
    return FileSystem(
        type=mount.type,
        source=mount.source,
        mount_point=mount.mount_point,
        is_network=_NETWORK.fullmatch(mount.type) is not None,
        granularity_ns=_granularity_ns(mount.type),
    )


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Every line of a mountinfo file, in its order; lines that make no sense are left out."""
    return tuple(mount for line in text.splitlines() if (mount := _parse_line(line)))


def parse_mount_id(text: str) -> int | None:
    """The mount that an fdinfo file names."""
    found = re.search(r"^mnt_id:\s*(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def mount_under(mounts: Iterable[Mount], real_path: str) -> Mount | None:
    """The mount with the longest mount point above the path; the later one of several."""
    path = f"{real_path}/"
    best = None
    for mount in mounts:
        above = path.startswith(f"{mount.mount_point.rstrip('/')}/")
        if above and (best is None or len(mount.mount_point) >= len(best.mount_point)):
            best = mount
    return best


def _parse_line(line: str) -> Mount | None:
    # id parent major:minor root mount_point options [optional…] - type source super_options
    mounted, dash, filesystem = line.partition(" - ")
    left, right = mounted.split(" "), filesystem.split(" ")
    if not dash or len(left) < 6 or len(right) < 2 or not left[0].isdecimal():
        return None
    return Mount(
        mount_id=int(left[0]),
        mount_point=_unescape(left[4]),
        type=_unescape(right[0]),
        source=_unescape(right[1]),
    )


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes for blank, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _granularity_ns(type_: str) -> int:
    if type_ in _TICKING:
        return _TICK_NS
    return 2 * _SECOND_NS if type_ in _TWO_SECONDS else _SECOND_NS


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        # Also where it is absent: "no /proc" must not read as "no such root".
        raise StorageError(f"{path}: {error.strerror}", hint="mount /proc") from error
