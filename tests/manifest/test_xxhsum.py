from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import xxhash

from ckptgov.errors import UsageError
from ckptgov.manifest.build import build_manifest
from ckptgov.manifest.xxhsum import xxhsum_lines
from ckptgov.model.checkpoint import Manifest, Purpose, Shard, StepKind

NAMES = [
    ".metadata",
    "sub/été.bin",
    " a b ",
    "-x",
    "*y",
    "back\\slash",
    "stdin",
    "sub/stdin",
    "tab\t\r",
    "\udce4\udcf6",
    "XXH128 (q) = x",
]


def manifest_of(paths: list[str], name: str = "step_1") -> Manifest:
    return build_manifest(
        name=name,
        step=1,
        step_kind=StepKind.STEP,
        layout="dcp",
        world_size=None,
        purposes=[Purpose.RESUME],
        shards=[Shard(path, 3, f"xxh3_128:{xxhash.xxh3_128_hexdigest(b'abc')}") for path in paths],
    )


def check(manifest: Manifest, directory: Path) -> subprocess.CompletedProcess[bytes]:
    text = "".join(f"{line}\n" for line in xxhsum_lines(manifest))
    return subprocess.run(
        ["xxhsum", "-c", "-"],
        input=text.encode("utf-8", "surrogateescape"),
        cwd=directory,
        capture_output=True,
        check=False,
    )


needs_xxhsum = pytest.mark.skipif(shutil.which("xxhsum") is None, reason="xxhsum is not installed")


@needs_xxhsum
def test_xxhsum_itself_checks_every_name_it_can_carry(tmp_path: Path) -> None:
    for name in NAMES:
        at = tmp_path / name
        at.parent.mkdir(exist_ok=True)
        at.write_bytes(b"abc")
    done = check(manifest_of(NAMES), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(b": OK\n") == len(NAMES)


@needs_xxhsum
def test_xxhsum_itself_finds_other_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abd")
    assert check(manifest_of(["a"]), tmp_path).returncode == 1


@needs_xxhsum
def test_a_single_file_is_checked_beside_it_by_its_base_name(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"abc")
    whole = manifest_of([""], name="runs/last.ckpt")
    assert [line[32:] for line in xxhsum_lines(whole)] == ["  last.ckpt"]
    assert check(whole, tmp_path).returncode == 0


def test_a_newline_in_a_name_is_refused_before_any_line_is_given_out() -> None:
    with pytest.raises(UsageError, match=r"cannot carry the name 'b\\nc' and 1 more"):
        xxhsum_lines(manifest_of(["a", "b\nc", "d\n"]))
    with pytest.raises(UsageError, match="cannot carry"):
        xxhsum_lines(manifest_of([""], name="x/a\nb"))
