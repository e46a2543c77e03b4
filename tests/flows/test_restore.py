"""Restore: a checkpoint brought to a directory, from wherever its shards are sound."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.errors import Interrupted, NoneRestorable
from ckptgov.governor import open_governor

SAMPLES = ["dcp/fsdp2-4rank", "deepspeed/zero3", "hf-trainer/ddp2", "lightning/single-file"]


@pytest.fixture
def tiers(cli, tmp_path: Path) -> Callable[..., Path]:
    """Registers an empty directory as a tier."""

    def add(name: str, *options: str) -> Path:
        root = tmp_path / name
        root.mkdir()
        cli.done("tier", "add", name, root, *options)
        return root

    return add


@pytest.fixture
def restore() -> Callable[..., object]:
    """The governor's verb, in this process."""

    def call(target: object, to: Path, **options):
        with open_governor(talk=print) as governor:
            return governor.restore(str(target), to=str(to), **options)

    return call


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where checkpoints are brought to."""
    directory = tmp_path / "out"
    directory.mkdir()
    return directory


@pytest.fixture
def three(cli, samples: Path, tiers, restore) -> dict[str, Path]:
    """Tier to a whole, verified copy of one checkpoint there: NVMe of node a, and two shared."""
    lustre = tiers("lustre")
    shutil.copytree(samples / "dcp/fsdp2-4rank", lustre / "llm")
    cli.done("scan", lustre)
    nvme, nfs = tiers("nvme", "--scope", "node", "--node", "a"), tiers("nfs")
    for root in (nvme, nfs):
        restore("llm", root / "llm")
    return {root.name: root / "llm" / "step_2" for root in (nvme, lustre, nfs)}


def seen(top: Path) -> dict[str, tuple[bytes, int, int]]:
    """Bytes, mode and modification time of every file beneath."""
    return {
        str(path.relative_to(top)): (
            path.read_bytes(),
            path.stat().st_mode,
            path.stat().st_mtime_ns,
        )
        for path in sorted(top.rglob("*"))
        if path.is_file()
    }


def names(top: Path) -> list[str]:
    return sorted(path.name for path in top.iterdir())


def flip(path: Path) -> None:
    """Change one bit; size and times stay, as on a disk that decays."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(stat.st_size // 2)
        byte = file.read(1)[0]
        file.seek(stat.st_size // 2)
        file.write(bytes([byte ^ 4]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def state(cli, run: str, root: Path) -> str:
    """The evidence of the run's newest checkpoint at one place."""
    entry = cli.json("list", run).json["checkpoints"][0]
    (copy,) = [one for one in entry["copies"] if one["root"] == str(root)]
    return copy["evidence"]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_restored_has_equal_bytes_modes_and_times(
    cli, sample, restore, out: Path, name: str
) -> None:
    run = sample(name)
    cli.done("scan", run)
    source = cli.done("latest", run.name).path
    answer = restore(run.name, out)
    brought = Path(answer.path)
    assert brought == out / source.name
    if source.is_dir():
        wanted = seen(source)
        assert seen(brought).items() <= wanted.items()
        assert len(seen(brought)) == answer.shards
    else:
        assert brought.read_bytes() == source.read_bytes()
        assert brought.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert names(out) == [source.name]
    assert cli.done("latest", out).path == brought


def test_the_answer_holds_what_the_loader_wants(cli, sample, restore, out: Path) -> None:
    run = sample("dcp/fsdp2-4rank")
    cli.done("scan", run)
    answer = restore(run.name, out)
    assert (answer.resume.path, answer.resume.parent) == (str(out / "step_2"), str(out))
    assert (answer.resume.step, answer.resume.tag) == (2, "step_2")


def test_the_directory_is_made_where_the_one_above_it_is_there(
    cli, sample, restore, out: Path
) -> None:
    run = sample("dcp/single")
    cli.done("scan", run)
    restore(run.name, out / "new")
    assert len(names(out / "new")) == 1
    answer = cli("latest", run.name, "--stage", out / "a" / "b")
    assert answer.code == 9
    assert "none can be made there" in answer.err


def test_a_flipped_bit_in_the_nearest_copy_is_stepped_around_and_quarantined(
    cli, three: dict[str, Path], restore, out: Path
) -> None:
    wanted = seen(three["lustre"])
    flip(three["nvme"] / "__1_0.distcp")
    answer = restore("llm", out, node="a")
    assert seen(out / "step_2") == wanted
    (fault,) = answer.faults
    assert fault.path == str(three["nvme"] / "__1_0.distcp")
    assert fault.reason == "corrupt"
    assert "quarantined" in fault.evidence
    assert {one.tier for one in answer.sources} == {"nvme", "lustre"}
    assert state(cli, "llm", three["nvme"].parent) == "none"
    assert cli.done("latest", "llm", "--node", "a").path == three["lustre"]


def test_the_nearest_place_is_read_first(three: dict[str, Path], restore, out: Path) -> None:
    assert [one.tier for one in restore("llm", out / "a", node="a").sources] == ["nvme"]
    assert [one.tier for one in restore("llm", out / "b", node="b").sources] == ["lustre"]
    only = restore("llm", out / "c", node="a", from_tier="nfs")
    assert [one.tier for one in only.sources] == ["nfs"]


def test_shards_come_from_three_places_that_each_lack_another(
    cli, three: dict[str, Path], restore, out: Path
) -> None:
    wanted = seen(three["lustre"])
    for rank, path in enumerate(three.values()):
        (path / f"__{rank}_0.distcp").unlink()
    (three["nvme"] / "__3_0.distcp").unlink()
    (three["lustre"] / ".metadata").unlink()
    assert cli("latest", "llm").code == 5
    answer = restore("llm", out, node="a")
    assert seen(out / "step_2") == wanted
    assert len(answer.sources) > 1
    assert sum(one.shards for one in answer.sources) == 5
    staged = cli.done("latest", "llm", "--stage", out / "more")
    assert seen(staged.path) == wanted


def test_a_bad_shard_of_a_copy_with_gaps_is_not_trusted_again(
    cli, three: dict[str, Path], restore, out: Path
) -> None:
    (three["lustre"] / "__0_0.distcp").unlink()
    flip(three["lustre"] / "__1_0.distcp")
    assert [one.reason for one in restore("llm", out / "a").faults] == ["corrupt"]
    again = restore("llm", out / "b")
    assert again.faults == ()
    assert {one.tier: one.shards for one in again.sources} == {"lustre": 3, "nfs": 2}


def test_a_shard_that_no_place_has_sound_is_not_invented(
    cli, three: dict[str, Path], restore, out: Path
) -> None:
    for path in three.values():
        flip(path / "__1_0.distcp")
    answer = cli("latest", "llm", "--stage", out)
    assert answer.code == 9
    assert "no source gave its bytes" in answer.err
    assert not (out / "step_2").exists()
    assert cli("latest", "llm").code == 5


class TestTheTarget:
    def test_that_stands_already_is_compared_and_accepted(
        self, cli, sample, restore, out: Path
    ) -> None:
        run = sample("dcp/single")
        cli.done("scan", run)
        first = restore(run.name, out)
        again = restore(run.name, out)
        assert (first.stood_already, again.stood_already) == (False, True)
        assert (again.sent_bytes, again.path) == (0, first.path)

    @pytest.mark.parametrize("damage", ["flip", "cut", "unlink"])
    def test_with_other_content_is_refused_and_untouched(
        self, cli, sample, restore, out: Path, damage: str
    ) -> None:
        run = sample("dcp/single")
        cli.done("scan", run)
        brought = Path(restore(run.name, out).path)
        victim = next(path for path in brought.iterdir() if path.suffix == ".distcp")
        {"flip": flip, "cut": lambda p: os.truncate(p, 1), "unlink": os.unlink}[damage](victim)
        before = seen(out)
        answer = cli("latest", run.name, "--stage", out)
        assert (answer.code, answer.out) == (6, "")
        assert "not touched" in answer.err
        assert seen(out) == before

    def test_may_not_lie_in_another_run(self, cli, sample, tier: Path) -> None:
        one, other = sample("dcp/single"), sample("dcp/fsdp2-4rank")
        cli.done("scan", tier)
        before = seen(tier)
        answer = cli("latest", one.name, "--stage", other)
        assert answer.code == 6
        assert "of run fsdp2-4rank" in answer.err
        assert seen(tier) == before

    @pytest.mark.parametrize("inside", ["step_2", "step_2/sub", ".ckptgov", ".ckptgov/staging"])
    def test_may_not_lie_in_a_checkpoint_or_among_our_files(self, cli, sample, inside: str) -> None:
        run = sample("dcp/fsdp2-4rank")
        cli.done("scan", run)
        assert cli("latest", run.name, "--stage", run / inside).code == 6

    def test_at_the_runs_own_place_becomes_a_copy_of_the_run(
        self, cli, sample, tiers, tmp_path: Path, forget_catalog
    ) -> None:
        run = sample("dcp/fsdp2-4rank")
        cli.done("scan", run)
        nvme = tiers("nvme", "--scope", "node", "--node", "b")
        staged = cli.json("latest", run.name, "--stage", nvme / run.name, "--node", "b")
        assert staged.chosen == nvme / run.name / "step_2"
        assert cli.done("latest", run.name, "--node", "b").path == staged.chosen
        forget_catalog()
        cli.done("catalog", "rebuild")
        assert cli.done("latest", run.name, "--node", "b").path == staged.chosen


class TestSomeShards:
    def test_only_those_that_match_are_brought(self, cli, sample, restore, out: Path) -> None:
        run = sample("dcp/fsdp2-4rank")
        cli.done("scan", run)
        answer = restore(run.name, out, match=("__1_*", ".meta*"))
        assert answer.matched
        assert names(out / "step_2") == [".metadata", "__1_0.distcp"]
        assert names(out) == ["step_2"]
        restore(run.name, out, match=("__2_*",))
        assert names(out / "step_2") == [".metadata", "__1_0.distcp", "__2_0.distcp"]

    def test_a_star_does_not_cross_directories(self, cli, sample, restore, out: Path) -> None:
        run = sample("torchsnapshot/2rank")
        cli.done("scan", run)
        top = restore(run.name, out / "top", match=("*",))
        every = restore(run.name, out / "all", match=("**",))
        assert all(path.is_file() for path in Path(top.path).iterdir())
        assert every.shards > top.shards

    def test_nothing_that_matches_is_an_error_of_usage(self, cli, sample, out: Path) -> None:
        run = sample("dcp/single")
        cli.done("scan", run)
        for glob in ("nothing", "[z-a]"):
            assert cli("latest", run.name, "--stage", out, "--match", glob).code == 2
        assert names(out) == []
        assert cli("latest", run.name, "--match", "*").code == 2


class TestTheChoice:
    def test_a_step_is_brought_or_told_why_not(self, cli, sample, restore, out: Path) -> None:
        run = sample("dcp/fsdp2-4rank")
        cli.done("scan", run)
        assert restore(run.name, out, step=2).step == 2
        with pytest.raises(NoneRestorable, match="no checkpoint of step 3"):
            restore(run.name, out, step=3)
        cli.done("mark-bad", run.name, "--step", "2", "--reason", "loss spike")
        with pytest.raises(NoneRestorable, match=r"step 2 is not restorable.*loss spike"):
            restore(run.name, out, step=2)

    def test_what_was_never_compared_is_not_restored(self, cli, sample, restore, out: Path) -> None:
        run = sample("dcp/single")
        with pytest.raises(NoneRestorable, match="not sealed"):
            restore(run, out)
        assert cli("latest", run).code == 0
        assert cli("latest", run, "--stage", out).code == 5
        assert names(out) == []

    def test_a_restart_stages_what_was_decided(self, cli, sample, out: Path) -> None:
        run = sample("dcp/fsdp2-4rank")
        cli.done("scan", run)
        first = cli.json("latest", run.name, "--restart-id", "r1", "--stage", out / "a")
        cli.done("mark-bad", run.name, "--step", "2", "--reason", "loss spike")
        second = cli.json("latest", run.name, "--restart-id", "r1", "--stage", out / "b")
        assert (first.chosen, second.chosen) == (out / "a" / "step_2", out / "b" / "step_2")
        assert second.json["restart"]["decided_here"] is False

    def test_a_dry_run_tells_the_sources_and_writes_nothing(
        self, three: dict[str, Path], restore, out: Path
    ) -> None:
        answer = restore("llm", out / "new", node="a", dry_run=True)
        assert [(one.tier, one.shards) for one in answer.sources] == [("nvme", 5)]
        assert (answer.path, answer.eta_s) == (str(out / "new" / "step_2"), None)
        assert names(out) == []


def test_json_is_one_document_with_the_staged_path_and_the_sources(
    cli, three: dict[str, Path], out: Path
) -> None:
    answer = cli.json("latest", "llm", "--node", "a", "--stage", out)
    document = answer.json
    assert answer.chosen == out / "step_2"
    assert document["resume_args"]["parent"] == str(out)
    assert [(one["tier"], one["shards"]) for one in document["sources"]] == [("nvme", 5)]
    assert document["whole"] is True
    assert {one["tier"] for one in document["copies"]} == set(three)


def test_hard_links_share_the_bytes_where_one_file_system_has_both(
    three: dict[str, Path], restore, out: Path
) -> None:
    wanted = seen(three["nvme"])
    answer = restore("llm", out, node="a", hardlink=True)
    assert seen(out / "step_2") == wanted
    assert (answer.sent_bytes, answer.stood_already) == (0, False)
    shard = "__1_0.distcp"
    assert (out / "step_2" / shard).stat().st_ino == (three["nvme"] / shard).stat().st_ino
    assert names(out) == ["step_2"]


def test_links_of_a_try_that_was_stopped_are_not_taken_for_copies(
    three: dict[str, Path], restore, out: Path
) -> None:
    with pytest.raises(Interrupted):
        restore("llm", out, node="a", hardlink=True, stop=lambda: True)
    assert any(path.stat().st_nlink > 1 for path in out.rglob("*.distcp"))
    restore("llm", out, node="a")
    shard = "__1_0.distcp"
    assert (out / "step_2" / shard).stat().st_ino != (three["nvme"] / shard).stat().st_ino
    assert names(out) == ["step_2"]


def test_a_hard_link_to_wrong_bytes_is_not_kept(three: dict[str, Path], restore, out: Path) -> None:
    wanted = seen(three["lustre"])
    flip(three["nvme"] / "__1_0.distcp")
    answer = restore("llm", out, node="a", hardlink=True)
    assert seen(out / "step_2") == wanted
    assert [one.reason for one in answer.faults] == ["corrupt"]


BIG = 24 * 2**20


@pytest.fixture
def big(cli, tier: Path) -> Path:
    """A run whose restore takes a while: three shards by a declared rule."""
    run = tier / "big"
    cli.done("tier", "add", "slow", tier)
    words = ["--expect-glob", "step_*/*.bin", "--expect-count", "3"]
    cli.done("run", "create", "big", "--root", run, *words)
    (run / "step_1").mkdir(parents=True)
    for number in range(3):
        content = random.Random(number).randbytes(BIG)
        (run / "step_1" / f"{number}.bin").write_bytes(content)
    cli.done("scan", run)
    return run


def test_killed_in_between_the_next_try_resumes_and_is_right(
    cli, spawn, big: Path, out: Path
) -> None:
    wanted = seen(big / "step_1")
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    resumed = 0
    for number in range(6):
        to = out / str(number)
        to.mkdir()
        child: subprocess.Popen[bytes] = spawn("latest", "big", "--stage", to)
        _wait_for_staging(to, child)
        _wait_a_while(dice.uniform(0, 0.15))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert not (to / "step_1").exists() or seen(to / "step_1") == wanted
        answer = cli.json("latest", "big", "--stage", to)
        assert seen(to / "step_1") == wanted
        assert names(to) == ["step_1"]
        left = answer.json["sent_bytes"] + answer.json["resumed_bytes"]
        assert left <= 3 * BIG
        resumed += answer.json["sent_bytes"] < 3 * BIG
    assert resumed > 0


def _wait_for_staging(to: Path, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and child.poll() is None:
        if any(path.is_file() for path in to.rglob("*")):
            return


def _wait_a_while(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_terminated_it_says_so_and_leaves_what_arrived(spawn, big: Path, out: Path) -> None:
    child = spawn("latest", "big", "--stage", out, "--json")
    _wait_for_staging(out, child)
    child.send_signal(signal.SIGTERM)
    text, _ = child.communicate()
    if child.returncode == 0:  # it was quicker
        return
    assert child.returncode == 143
    assert json.loads(text)["error"]["exit_code"] == 143
    assert not (out / "step_1").exists()
