"""Du summed up by team, run, tier, age and state, with who owns what and which runs are dead."""

from __future__ import annotations

import os
import pwd
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.governor import open_governor
from ckptgov.model.clock import SystemClock
from ckptgov.model.retention import RunLife
from ckptgov.model.usage import Age, DuAnswer, RunUsage
from ckptgov.ops.context import Context
from ckptgov.ops.du import du
from ckptgov.testing.builders import truncate, write_hf_trainer
from ckptgov.wire import decode_movement
from ckptgov.wire import usage as documents

DAY_S = 86_400.0


@contextmanager
def opened(by_s: float = 0.0) -> Iterator[Context]:
    class Shifted(SystemClock):
        def now_ns(self) -> int:
            return super().now_ns() + int(by_s * 1e9)

    with open_governor(clock=Shifted()) as governor:
        yield governor.context


def measured(by_s: float = 0.0, **only: str) -> DuAnswer:
    with opened(by_s) as context:
        return du(context, **only)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def runs(cli, tier: Path, tmp_path: Path) -> Path:
    """Two teams; one run lies on two tiers, one has a torn checkpoint and a left-over."""
    cli.done("tier", "add", "lustre", tier, "--ingest")
    for name, steps in (("a/one", (100, 200)), ("a/two", (5,)), ("b/one", (7,))):
        for step in steps:
            write_hf_trainer(tier / name / f"checkpoint-{step}", step)
        cli.done("run", "create", name, "--root", tier / name)
    truncate(write_hf_trainer(tier / "a/two/checkpoint-9", 9) / "optimizer.pt", by_bytes=5)
    left = tier / "b/one/tmp-checkpoint-8/x.bin"
    left.parent.mkdir()
    left.write_bytes(b"x" * 70)
    cli("scan")
    (tmp_path / "s3").mkdir()
    cli.done("tier", "add", "s3", tmp_path / "s3")
    cli.done("flush", "a/one", "--to", "s3", "--step", "100")
    return tier


def sums(cli, by: str) -> dict[str | None, dict[str, int]]:
    told = cli.json("du", "--by", by).json["by"]
    assert told["by"] == by
    return {one["key"]: one for one in told["sums"]}


class TestSums:
    def test_by_team(self, cli, runs: Path) -> None:
        told = sums(cli, "team")
        flushed = size_of(runs / "a/one/checkpoint-100")
        whole = sum(
            size_of(runs / "a" / run) - size_of(runs / "a" / run / ".ckptgov")
            for run in ("one", "two")
        )
        assert told["a"]["bytes"] == whole + flushed
        assert told["a"]["copies"] == 5
        assert (told["b"]["copies"], told["b"]["left_bytes"]) == (1, 70)

    def test_by_run_with_life_owner_and_last_step(self, cli, runs: Path) -> None:
        told = sums(cli, "run")
        assert set(told) == {"a/one", "a/two", "b/one"}
        rows = {
            row.split("\t")[0]: row.split("\t") for row in cli("du", "--by", "run").out.split("\n")
        }
        me = pwd.getpwuid(os.getuid()).pw_name
        assert rows["a/one"][-3:] == ["live", me, "200"]

    def test_by_tier(self, cli, runs: Path) -> None:
        told = sums(cli, "tier")
        assert told["s3"]["bytes"] == size_of(runs / "a/one/checkpoint-100")
        assert told["s3"]["copies"] == 1

    def test_by_state_with_left_overs(self, cli, runs: Path) -> None:
        told = sums(cli, "state")
        assert told["verified"]["copies"] == 5
        assert told["unsealed"]["copies"] == 1
        assert told["framework-staging"]["left_bytes"] == 70

    def test_by_age(self, cli, runs: Path) -> None:
        assert sums(cli, "age")["under-1d"]["copies"] == 6

    def test_largest_first_and_all_ways_come_to_the_same(self, cli, runs: Path) -> None:
        totals = set()
        for by in ("team", "run", "tier", "age", "state"):
            told = cli.json("du", "--by", by).json["by"]["sums"]
            sizes = [one["bytes"] + one["trash_bytes"] + one["left_bytes"] for one in told]
            assert sizes == sorted(sizes, reverse=True)
            totals.add(sum(sizes))
        assert len(totals) == 1

    def test_another_word_is_refused(self, cli, runs: Path) -> None:
        assert cli("du", "--by", "colour").code == 2


class TestAges:
    @pytest.mark.parametrize(
        ("days", "age"),
        [
            (0.9, Age.DAY),
            (1.1, Age.WEEK),
            (6.9, Age.WEEK),
            (7.1, Age.MONTH),
            (30.1, Age.QUARTER),
            (90.1, Age.OLDER),
        ],
    )
    def test_a_checkpoint_is_as_old_as_its_seal(self, runs: Path, days: float, age: Age) -> None:
        for tier in measured(days * DAY_S).tiers:
            for state in tier.states:
                assert [one.age for one in state.ages] == [age]
                assert sum(one.bytes for one in state.ages) == state.bytes
                assert sum(one.checkpoints for one in state.ages) == state.checkpoints


class TestRuns:
    def told(self, answer: DuAnswer) -> dict[str, RunUsage]:
        return {one.run: one for one in answer.runs}

    def test_a_run_not_heard_of_for_two_weeks_is_dead_and_named(self, cli, runs: Path) -> None:
        assert {one.life for one in measured(13 * DAY_S).runs} == {RunLife.LIVE}
        dead = self.told(measured(15 * DAY_S))["a/one"]
        assert dead.life is RunLife.DEAD
        assert (dead.last_step, dead.checkpoints, dead.team) == (200, 2, "a")
        both = [size_of(runs / f"a/one/checkpoint-{step}") for step in (100, 200)]
        assert dead.bytes == sum(both)

    def test_how_long_is_its_policys_matter(self, cli, runs: Path, home: Path) -> None:
        (home / "policies").mkdir()
        (home / "policies/b.yaml").write_text("policy: b\nteam: b\nlifecycle: {dead_after: 3d}\n")
        told = self.told(measured(4 * DAY_S))
        assert (told["a/one"].life, told["b/one"].life) == (RunLife.LIVE, RunLife.DEAD)
        (home / "policies/b.yaml").write_text("policy: b\nwrong: 1\n")
        assert self.told(measured(4 * DAY_S))["b/one"].life is RunLife.LIVE

    def test_a_lower_step_saved_later_is_a_sign_of_life(self, cli, runs: Path) -> None:
        write_hf_trainer(runs / "a/one/checkpoint-150", 150)
        with open_governor(clock=_Ahead()) as governor:
            governor.scan([])
        told = self.told(measured(15 * DAY_S))
        assert (told["a/one"].life, told["a/two"].life) == (RunLife.LIVE, RunLife.DEAD)

    def test_dead_ones_are_talked_about(self, cli, runs: Path, monkeypatch) -> None:
        now_ns = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now_ns + int(15 * DAY_S * 1e9))
        words = cli("du").err
        me = pwd.getpwuid(os.getuid()).pw_name
        assert f"dead: a/one of {me}: " in words
        assert "last step 200" in words

    def test_an_owner_that_no_file_system_here_tells_is_empty(
        self, runs: Path, tmp_path: Path
    ) -> None:
        runs.rename(tmp_path / "moved")
        (tmp_path / "s3").rename(tmp_path / "moved-too")
        assert {one.owner for one in measured().runs} == {""}


class _Ahead(SystemClock):
    def now_ns(self) -> int:
        return super().now_ns() + int(10 * DAY_S * 1e9)


def test_no_run_is_held_whole(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as context:
        monkeypatch.setattr(
            type(context.catalog), "checkpoints", lambda *_: pytest.fail("loads a whole run")
        )
        monkeypatch.setattr(
            type(context.catalog), "copies", lambda *_: pytest.fail("loads a whole run")
        )
        assert du(context).error is None


def test_the_document_reads_back(runs: Path) -> None:
    answer = measured(15 * DAY_S)
    back = decode_movement.du(documents.du(answer))
    assert back == answer


def test_a_document_of_an_older_service_reads_as_well(runs: Path) -> None:
    document = documents.du(measured())
    del document["runs"]
    for tier in document["tiers"]:
        for member in ("files", "free_files", "quota_files", "grows_bytes_per_day", "full_in_days"):
            del tier[member]
        for state in tier["states"]:
            del state["ages"]
    back = decode_movement.du(document)
    assert back.runs == ()
    assert back.tiers[0].states[0].ages == ()


def test_of_a_run_that_no_tier_tells_of_nothing_is_told(runs: Path) -> None:
    """What a caller may not see is left out of the tiers before the document is made."""
    answer = measured()
    mine = tuple(
        replace(
            tier,
            states=tuple(one for one in tier.states if one.run.startswith("a/")),
            left=(),
        )
        for tier in answer.tiers
    )
    told = documents.du(replace(answer, tiers=mine))
    assert {one["run"] for one in told["runs"]} == {"a/one", "a/two"}


def test_a_lost_copy_counts_and_takes_nothing(cli, runs: Path) -> None:
    shutil.rmtree(runs / "a/two/checkpoint-5")
    cli.done("scan")
    told = sums(cli, "state")
    assert (told["lost"]["copies"], told["lost"]["bytes"]) == (1, 0)
