"""Overwritten in place: shards written after the marker that vouches for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ckptgov.layouts.proof import late_by_ns
from ckptgov.model.facts import Reason
from ckptgov.model.files import EntryKind, FileStat

S = 10**9


def _stat(birth: int | None, mtime: int) -> FileStat:
    return FileStat(
        kind=EntryKind.FILE,
        bytes=1,
        mtime_ns=mtime,
        ctime_ns=0,
        inode=1,
        device=1,
        mode=0o644,
        uid=0,
        gid=0,
        btime_ns=birth,
    )


@pytest.mark.parametrize(
    ("shard", "marker", "late_ns"),
    [
        # (birth, mtime) here; the marker was renamed into place at 20
        ((10, 30), (19, 20), 10),  # rewritten after the marker
        ((10, 15), (19, 20), 0),  # as it should be
        ((10, 20), (19, 20), 0),  # the same tick
        ((20, 30), (19, 20), 0),  # born in the marker's tick: a plain copy
        ((25, 30), (19, 20), 0),  # born later: a plain copy, marker first
        # carried by a copy at 100
        ((100, 30), (100, 20), 10),
        ((100, 15), (100, 20), 0),
        ((100, 20), (100, 20), 0),
        ((100, 110), (100, 20), 0),  # only the marker's time was carried
        ((100, 30), (19, 20), 0),  # only the shard's time was carried
        # nothing known
        ((None, 30), (19, 20), 0),
        ((10, 30), (None, 20), 0),
    ],
)
def test_only_a_rewrite_or_carried_times_prove_that_a_shard_is_later(
    shard: tuple[int | None, int], marker: tuple[int | None, int], late_ns: int
) -> None:
    assert late_by_ns(_stat(*shard), _stat(*marker)) == late_ns


@pytest.fixture
def run(samples: Path, tmp_path: Path) -> Path:
    """A whole DCP checkpoint in a run of its own, times as they were saved."""
    shutil.copytree(samples / "dcp/fsdp2-4rank", tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def _born(when: int | None) -> Any:
    return lambda path, stat: when


def test_the_torn_sample_is_refused_by_its_carried_times(samples: Path, look: Any) -> None:
    looked = look(samples / "dcp-torn", born=lambda path, stat: stat.mtime_ns + S)
    told = looked.told("overwrite-old-metadata-new-shards")
    assert len(told) == 4
    shard = "overwrite-old-metadata-new-shards/__2_0.distcp"
    assert f"torn {shard}: written after its marker .metadata (by 0.18 s)" in told


def test_the_torn_sample_is_refused_where_it_was_written(samples: Path, look: Any) -> None:
    marker = samples / "dcp-torn/overwrite-old-metadata-new-shards/.metadata"
    before = marker.stat().st_mtime_ns - S
    looked = look(samples / "dcp-torn", born=_born(before))
    assert len(looked.told("overwrite-old-metadata-new-shards")) == 4


def test_as_this_file_system_tells_it_the_torn_sample_is_refused(samples: Path, look: Any) -> None:
    looked = look(samples / "dcp-torn")
    sighting = looked["overwrite-old-metadata-new-shards"]
    if any(note.kind == "no-birth-times" for note in sighting.notes):
        pytest.skip("this file system tells no birth times")
    assert [finding.reason for finding in sighting.findings] == [Reason.TORN] * 4


def test_without_birth_times_the_rule_is_unused_and_says_so(samples: Path, look: Any) -> None:
    looked = look(samples / "dcp-torn", born=_born(None))
    sighting = looked["overwrite-old-metadata-new-shards"]
    assert sighting.findings == ()
    assert [note.kind for note in sighting.notes] == ["no-birth-times"]


def test_within_the_margin_of_a_network_file_system_it_is_only_told(
    samples: Path, look: Any
) -> None:
    def born(path: str, stat: FileStat) -> int:
        return stat.mtime_ns + S

    run = samples / "dcp-torn"
    looked = look(run, born=born, marker_margin_ns=S)
    sighting = looked["overwrite-old-metadata-new-shards"]
    assert sighting.findings == ()
    assert [note.kind for note in sighting.notes] == ["marker-order"] * 4
    narrow = look(run, born=born, marker_margin_ns=S // 100)
    assert narrow.told("overwrite-old-metadata-new-shards")


@pytest.mark.parametrize("flag", ["-r", "-a"])
def test_a_copy_of_a_whole_checkpoint_is_not_refused(
    samples: Path, tmp_path: Path, look: Any, flag: str
) -> None:
    for number in range(5):
        source, target = samples / "dcp/fsdp2-4rank/step_2", tmp_path / f"step_{number}"
        subprocess.run(["cp", flag, str(source), str(target)], check=True)
    looked = look(tmp_path)
    assert looked.whole == [f"step_{number}" for number in range(5)]


@pytest.mark.parametrize("when", [0, 1_700_000_000 * S])
def test_equal_times_prove_nothing(run: Path, look: Any, when: int) -> None:
    for file in (run / "step_2").iterdir():
        os.utime(file, ns=(when, when))
    assert look(run).whole == ["step_2"]


def test_future_times_before_the_marker_are_told_and_not_refused(run: Path, look: Any) -> None:
    ahead = 4_000_000_000 * S
    for file in (run / "step_2").iterdir():
        os.utime(file, ns=(ahead, ahead))
    os.utime(run / "step_2/.metadata", ns=(ahead + S, ahead + S))
    looked = look(run, now_ns=ahead - 7200 * S)
    assert looked.whole == ["step_2"]
    (note,) = [n for n in looked["step_2"].notes if n.kind == "future-time"]
    assert note.text == "5 files are dated up to 7201.00 s in the future"


def test_a_real_rewrite_in_place_is_refused(run: Path, look: Any) -> None:
    def born(path: str, stat: FileStat) -> int:
        return marker_ns - S

    marker_ns = (run / "step_2/.metadata").stat().st_mtime_ns
    shard = run / "step_2/__1_0.distcp"
    content = shard.read_bytes()
    shard.write_bytes(content)
    assert [t.split(":")[0] for t in look(run, born=born).told("step_2")] == [
        "torn step_2/__1_0.distcp"
    ]


def test_lightnings_directory_is_measured_by_meta_pt_too(
    samples: Path, tmp_path: Path, look: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(samples / "lightning/distributed-dir", run)
    name = "last.ckpt"
    meta = (run / name / "meta.pt").stat().st_mtime_ns
    for later, file in enumerate(("__0_0.distcp", "__1_0.distcp", ".metadata"), start=1):
        os.utime(run / name / file, ns=(meta + later * S, meta + later * S))
    # A new index over new shards, and the loop state of the save before.
    looked = look(run, born=lambda path, stat: meta - S if "distcp" in path else stat.mtime_ns)
    assert [t.split(" (")[0] for t in looked.told(name)] == [
        f"torn {name}/__{rank}_0.distcp: written after its marker meta.pt" for rank in (0, 1)
    ]


def test_whether_times_were_carried_is_told(run: Path, look: Any) -> None:
    assert look(run, born=lambda path, stat: stat.mtime_ns + 1)["step_2"].is_carried
    assert not look(run, born=lambda path, stat: stat.mtime_ns)["step_2"].is_carried
    assert not look(run, born=_born(None))["step_2"].is_carried
