from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptgov.errors import StorageError
from ckptgov.storage import mounts
from ckptgov.storage.mounts import Mount, filesystem_of, mount_under, parse_mount_id, parse_mounts
from ckptgov.storage.posix import PosixStorage

LINES = {
    "22 27 0:21 / /proc rw,relatime - proc proc rw": (22, "/proc", "proc", "proc"),
    "27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw": (
        27,
        "/",
        "ext4",
        "/dev/vda",
    ),
    "40 27 0:9 / /mnt/fs1 rw - lustre 10.0.0.1@o2ib:/fs1 rw,flock": (
        40,
        "/mnt/fs1",
        "lustre",
        "10.0.0.1@o2ib:/fs1",
    ),
    "41 27 0:9 /sub /mnt/a\\040b\\134c\\011d rw - nfs4 host:/x\\040y rw": (
        41,
        "/mnt/a b\\c\td",
        "nfs4",
        "host:/x y",
    ),
    "42 27 0:9 / /mnt/\udcff rw - fuse.juicefs JuiceFS:a rw": (
        42,
        "/mnt/\udcff",
        "fuse.juicefs",
        "JuiceFS:a",
    ),
    "43 27 0:9 / /mnt/empty rw - tmpfs  rw": (43, "/mnt/empty", "tmpfs", ""),
}


@pytest.mark.parametrize(("line", "wanted"), LINES.items())
def test_a_line_of_mountinfo_is_understood(line: str, wanted: tuple[int, str, str, str]) -> None:
    mount_id, mount_point, type_, source = wanted
    mount = Mount(mount_id=mount_id, mount_point=mount_point, type=type_, source=source)
    assert parse_mounts(f"{line}\n") == (mount,)


@pytest.mark.parametrize(
    "line", ["", "x", "1 2 3", "1 2 0:1 / /x rw", "x 2 0:1 / /x rw - a b c", "- -"]
)
def test_a_line_that_makes_no_sense_is_left_out(line: str) -> None:
    assert parse_mounts(f"{line}\n") == ()


MOUNTS = parse_mounts(
    "1 0 8:1 / / rw - ext4 /dev/root rw\n"
    "2 1 0:5 / /mnt/fs rw - lustre mgs:/fs rw\n"
    "3 2 0:6 / /mnt/fs/deep rw - nfs4 host:/ rw\n"
    "4 1 0:7 / /mnt/fs rw - tmpfs over rw\n"
)


@pytest.mark.parametrize(
    ("path", "mount_id"),
    [
        ("/", 1),
        ("/mnt", 1),
        ("/mnt/fs", 4),
        ("/mnt/fs/x", 4),
        ("/mnt/fsx", 1),
        ("/mnt/fs/deep/x", 3),
    ],
)
def test_the_longest_mount_point_above_a_path_holds_it(path: str, mount_id: int) -> None:
    found = mount_under(MOUNTS, path)
    assert found is not None
    assert found.mount_id == mount_id


@pytest.mark.parametrize(
    ("type_", "is_network", "granularity_ns"),
    [
        ("ext4", False, 10**7),
        ("xfs", False, 10**7),
        ("btrfs", False, 10**7),
        ("tmpfs", False, 10**7),
        ("ext3", False, 10**9),
        ("fuseblk", False, 10**9),
        ("never-heard-of", False, 10**9),
        ("vfat", False, 2 * 10**9),
        ("exfat", False, 2 * 10**9),
        ("nfs", True, 10**9),
        ("nfs4", True, 10**9),
        ("lustre", True, 10**9),
        ("gpfs", True, 10**9),
        ("cifs", True, 10**9),
        ("smb3", True, 10**9),
        ("beegfs", True, 10**9),
        ("ceph", True, 10**9),
        ("9p", True, 10**9),
        ("wekafs", True, 10**9),
        ("gfs2", True, 10**9),
        ("fuse", True, 10**9),
        ("fuse.juicefs", True, 10**9),
        ("fuse.s3fs", True, 10**9),
    ],
)
def test_types_tell_whether_others_write_and_how_exact_times_are(
    type_: str, is_network: bool, granularity_ns: int
) -> None:
    mount = Mount(mount_id=1, mount_point="/x", type=type_, source="s")
    found = mounts.describe(mount)
    assert (found.is_network, found.granularity_ns) == (is_network, granularity_ns)


def test_the_mount_id_of_a_descriptor_is_read() -> None:
    assert parse_mount_id("pos:\t0\nflags:\t012000000\nmnt_id:\t27\nino:\t2\n") == 27
    assert parse_mount_id("pos:\t0\n") is None


def test_a_path_on_proc_lies_on_proc() -> None:
    assert filesystem_of("/proc/self/status").type == "proc"
    assert filesystem_of("/proc").mount_point == "/proc"


def test_a_link_is_followed_to_what_it_leads_to(tmp_path: Path) -> None:
    os.symlink("/proc", tmp_path / "l")
    assert filesystem_of(str(tmp_path / "l")).type == "proc"


def test_a_storage_tells_the_mount_of_its_root(tmp_path: Path) -> None:
    with PosixStorage(tmp_path) as storage:
        found = storage.filesystem()
    assert found == filesystem_of(str(tmp_path))
    assert tmp_path.is_relative_to(found.mount_point)


def test_without_mount_ids_the_path_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = filesystem_of(str(tmp_path))
    monkeypatch.setattr(mounts, "parse_mount_id", lambda _: None)
    assert filesystem_of(str(tmp_path)) == wanted


def test_what_was_open_before_something_was_mounted_over_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "parse_mounts", lambda _: MOUNTS)
    monkeypatch.setattr(mounts, "parse_mount_id", lambda _: 2)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert mounts.filesystem_of_fd(fd, "/mnt/fs/run").type == "lustre"
    finally:
        os.close(fd)


def test_a_missing_path_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        filesystem_of(str(tmp_path / "absent"))


def test_a_machine_without_proc_is_an_error_and_not_an_absent_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(path: str, **_: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr("builtins.open", absent)
    with pytest.raises(StorageError):
        filesystem_of(str(tmp_path))


def test_a_kernel_that_does_not_tell_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "parse_mounts", lambda _: ())
    with pytest.raises(StorageError):
        filesystem_of(str(tmp_path))
