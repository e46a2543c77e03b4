"""What keeps a removal from happening: clocks, wrong roots, claims, and the guard's own look."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ckptgov.errors import RefusedBySafety
from ckptgov.governor import open_governor
from ckptgov.governor.local import Governor
from ckptgov.model.clock import SystemClock
from ckptgov.model.facts import Query
from ckptgov.model.removal import ApplyAnswer, Went
from ckptgov.ops.fresh import Fresh
from ckptgov.ops.removal_clock import require_same_time
from ckptgov.ops.removing import Removing
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import write_hf_trainer
from ckptgov.work.look import RunLook

POLICY = """\
policy: tight
runs: ["*"]
keep: {{{keep}}}
floors: {{min_restorable: 1, min_age: 0s}}
safety: {{max_fraction: 90%, grace: {grace}, trash: {trash}, adoption_grace: 0s}}
"""
HOUR_NS = 3600 * 10**9
STEPS = (100, 200, 300, 400, 500)


@pytest.fixture
def govern(home: Path) -> Callable[..., None]:
    def put(keep: str = "lustre: {last: 2}", *, grace: str = "1d", trash: str = "7d") -> None:
        (home / "policies").mkdir(exist_ok=True)
        text = POLICY.format(keep=keep, grace=grace, trash=trash)
        (home / "policies/tight.yaml").write_text(text)

    return put


@pytest.fixture
def run(cli, tier: Path, govern) -> Path:
    govern()
    for step in STEPS:
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    return tier / "hf"


@pytest.fixture
def plan(cli) -> Callable[[], str]:
    return lambda: cli.json("plan").json["plan_id"]


class Shifted(SystemClock):
    """A clock that is wrong by so much."""

    def __init__(self, by_ns: int) -> None:
        self._by_ns = by_ns

    def now_ns(self) -> int:
        return super().now_ns() + self._by_ns


@contextmanager
def at(by_ns: int = 0) -> Iterator[Governor]:
    with open_governor(clock=Shifted(by_ns)) as governor:
        yield governor


def files(root: Path) -> set[str]:
    """Every file below a root that is no record or receipt of ours."""
    return {str(one.relative_to(root)) for one in root.rglob("*") if one.is_file()}


def went(answer: ApplyAnswer) -> dict[int | None, Went]:
    return {one.step: one.went for one in answer.steps}


class TestClocks:
    @pytest.mark.parametrize("by_ns", [HOUR_NS, -HOUR_NS])
    def test_an_hour_apart_from_storage_nothing_is_condemned(
        self, cli, run: Path, plan, by_ns: int
    ) -> None:
        made = plan()
        with at(by_ns) as governor:
            answer = governor.apply(made)
        assert isinstance(answer.error, RefusedBySafety)
        assert "60 min" in answer.error.message
        assert answer.steps == ()
        assert [one["findings"] for one in cli.json("list", "hf").json["checkpoints"]] == [[]] * 5

    @pytest.mark.parametrize("by_ns", [HOUR_NS, -HOUR_NS])
    def test_an_hour_apart_nothing_condemned_is_moved(
        self, cli, run: Path, plan, time_is_over, by_ns: int
    ) -> None:
        cli.done("apply", plan())
        time_is_over()
        before = files(run)
        with at(by_ns) as governor:
            answer = governor.apply(None)
        assert isinstance(answer.error, RefusedBySafety)
        assert files(run) == before
        assert cli("apply").code == 0

    def test_a_catalog_clock_that_went_back_is_refused(self, cli, run: Path, plan, home) -> None:
        made = plan()
        with closing(sqlite3.connect(home / "catalog.sqlite")) as catalog:
            catalog.execute(f"UPDATE ticks SET at_ns = at_ns + {HOUR_NS}")
            catalog.commit()
        answer = cli.json("apply", made)
        assert answer.code == 6
        assert "went back" in answer.json["error"]["message"]

    @pytest.mark.parametrize(("wrong", "is_refused"), [(1, False), (2, True)])
    def test_the_median_of_three_stamps_decides(
        self, tmp_path: Path, wrong: int, is_refused: bool
    ) -> None:
        (tmp_path / "ours").mkdir()
        names = iter("abc")
        stamps = {name: HOUR_NS if number < wrong else 0 for number, name in enumerate("abc")}

        class Stamping(PosixStorage):
            def stat(self, path: str):
                found = super().stat(path)
                return replace(found, mtime_ns=found.mtime_ns + stamps[path[-1]])

        with Stamping(tmp_path) as storage:
            expected = pytest.raises(RefusedBySafety) if is_refused else nullcontext()
            with expected:
                require_same_time(
                    storage,
                    "ours",
                    now_ns=SystemClock().now_ns,
                    new_id=names.__next__,
                    what="tier x",
                )

    def test_no_probe_is_left_behind(self, cli, run: Path, plan) -> None:
        cli.done("apply", plan())
        assert not [one for one in files(run) if "clock" in one]


def begin_from(step: int) -> None:
    """A restart is given this step."""
    with at() as governor:
        answer = governor.latest("hf", Query(step=step), restart_id="a")
        assert answer.error is None, answer


class TestWrongRoots:
    def test_an_unmounted_tier_is_could_not_look(self, cli, run: Path, plan, tier: Path) -> None:
        made = plan()
        away = tier.rename(tier.with_name("away"))
        tier.mkdir()
        assert cli.json("apply", made).code == 9
        tier.rmdir()
        away.rename(tier)
        assert len(list(run.glob("checkpoint-*"))) == 5
        assert cli.json("apply", made).code == 0

    def test_condemned_ones_wait_while_their_tier_is_unmounted(
        self, cli, run: Path, plan, tier: Path, time_is_over
    ) -> None:
        cli.done("apply", plan())
        time_is_over()
        away = tier.rename(tier.with_name("away"))
        tier.mkdir()
        answer = cli.json("apply")
        assert answer.code == 9, answer
        assert {one["went"] for one in answer.json["steps"]} == {"resisted"}
        assert list(tier.iterdir()) == []
        tier.rmdir()
        away.rename(tier)
        assert cli.json("apply").code == 0

    def test_another_tier_of_ours_at_its_root_is_not_touched(
        self, cli, run: Path, plan, tier: Path, time_is_over, tmp_path: Path
    ) -> None:
        other = tmp_path / "other"
        shutil.copytree(run, other / "hf", ignore=shutil.ignore_patterns(".ckptgov"))
        cli.done("tier", "add", "other", other)
        cli.done("apply", plan())
        time_is_over()
        tier.rename(tmp_path / "parked")
        other.rename(tier)
        before = files(tier)
        assert cli.json("apply").code == 9
        assert files(tier) == before

    def test_a_tier_that_another_catalog_governs_is_not_touched(
        self, cli, run: Path, plan, tier: Path, time_is_over, home: Path, monkeypatch
    ) -> None:
        cli.done("apply", plan())
        time_is_over()
        stranger = home.with_name("stranger")
        stranger.mkdir()
        shutil.copy(home / "ckptgov.yaml", stranger)
        monkeypatch.setenv("CKPTGOV_HOME", str(stranger))
        cli.done("catalog", "rebuild")  # the same catalog, at a later epoch
        monkeypatch.setenv("CKPTGOV_HOME", str(home))
        before = files(run)
        answer = cli.json("apply")
        assert answer.code == 9, answer
        assert "governs" in answer.json["steps"][0]["text"]
        assert files(run) == before

    def test_a_plan_for_it_is_not_carried_out_either(
        self, cli, run: Path, plan, home: Path, monkeypatch
    ) -> None:
        made = plan()
        stranger = home.with_name("stranger")
        stranger.mkdir()
        shutil.copy(home / "ckptgov.yaml", stranger)
        monkeypatch.setenv("CKPTGOV_HOME", str(stranger))
        cli.done("catalog", "rebuild")
        monkeypatch.setenv("CKPTGOV_HOME", str(home))
        assert cli.json("apply", made).code == 9
        assert [one["findings"] for one in cli.json("list", "hf").json["checkpoints"]] == [[]] * 5

    def test_of_two_tiers_one_that_is_away_does_not_stop_the_other(
        self, cli, run: Path, plan, time_is_over, tmp_path: Path, govern
    ) -> None:
        govern("lustre: {last: 2}, nfs: {last: 2}")
        nfs = tmp_path / "nfs"
        for step in STEPS:
            write_hf_trainer(nfs / f"other/checkpoint-{step}", step, state={"seed": 5})
        cli.done("tier", "add", "nfs", nfs, "--ingest")
        cli.done("scan")
        cli.done("apply", plan())
        time_is_over()
        nfs.rename(tmp_path / "away")
        answer = cli.json("apply")
        assert answer.code == 3, answer
        told = {(one["tier"], one["went"]) for one in answer.json["steps"]}
        assert told == {("lustre", "trashed"), ("nfs", "resisted")}


class TestClaims:
    def test_what_a_live_restart_began_from_stays(self, cli, run: Path, plan) -> None:
        made = plan()
        begin_from(300)
        with at() as governor:
            answer = governor.apply(made)
        assert went(answer)[300] is Went.CHANGED
        assert "a restart began from it" in answer.steps[0].text
        assert went(answer)[100] is Went.CONDEMNED

    def test_a_pin_written_without_this_catalog_is_seen(
        self, cli, run: Path, plan, home: Path, monkeypatch
    ) -> None:
        made = plan()
        stranger = home.with_name("stranger")
        stranger.mkdir()
        monkeypatch.setenv("CKPTGOV_HOME", str(stranger))
        cli.done("pin", run, "100", "--name", "paper", "--reason", "a figure")
        monkeypatch.setenv("CKPTGOV_HOME", str(home))
        with at() as governor:
            answer = governor.apply(made)
        assert went(answer)[100] is Went.CHANGED
        assert "pinned as paper" in next(one.text for one in answer.steps if one.step == 100)

    def test_what_is_being_read_is_not_begun_to_be_moved(
        self, cli, run: Path, plan, time_is_over
    ) -> None:
        cli.done("apply", plan())
        time_is_over()
        with at() as governor:
            catalog = governor.context.catalog
            facts = catalog.run_by_name("hf")
            (content,) = [
                one.content_id
                for one in catalog.checkpoints(facts.identity.run_id)
                if one.step == 100
            ]
            claim = catalog.claims.take(
                facts.identity.run_id, content, owner="node7", reason="restore", ttl_s=600
            )
            answer = governor.apply(None)
            assert went(answer)[100] is Went.PROTECTED
            assert (run / "checkpoint-100/model.safetensors").exists()
            assert went(answer)[200] is Went.TRASHED
            catalog.claims.release(claim.lease_id)


class TestTheGuardsOwnLook:
    """Planning says by mistake that all of it may go: the guard judges by other code."""

    @pytest.fixture(autouse=True)
    def planning_is_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Fresh, "why_it_stays", lambda self, entry: None)

    def refusal(self, made: str) -> str:
        with at() as governor:
            answer = governor.apply(made)
        assert {one.went for one in answer.steps} == {Went.PROTECTED}, answer
        assert answer.error is not None
        assert answer.error.exit_code == 3
        return answer.steps[0].text

    def test_it_sees_a_pin(self, cli, run: Path, plan) -> None:
        made = plan()
        cli.done("pin", "hf", "200", "--name", "paper", "--reason", "a figure")
        assert "pinned as paper" in self.refusal(made)

    def test_it_sees_a_start_point(self, cli, run: Path, plan) -> None:
        made = plan()
        begin_from(300)
        assert "restart a began from it" in self.refusal(made)

    def test_it_sees_that_others_were_marked_bad(self, cli, run: Path, plan) -> None:
        made = plan()
        cli.done("mark-bad", "hf", "--from", "400", "--reason", "diverged")
        assert "checkpoint-300 is the newest" in self.refusal(made)

    def test_it_sees_that_others_do_not_load(self, cli, run: Path, plan, govern) -> None:
        govern("lustre: {last: 1}")
        made = plan()
        cli.done("latest", "hf", "--restart-id", "a")
        cli.done("report", "hf", "--restart-id", "a", "--outcome", "load-failed")
        assert "checkpoint-400 is the newest" in self.refusal(made)

    def test_it_sees_a_rollback(self, cli, run: Path, plan) -> None:
        made = plan()
        cli.done("rollback", "hf", "--to", "300", "--reason", "diverged")
        assert "checkpoint-300 is the newest" in self.refusal(made)


class TestCopiesThatStay:
    """An evicted copy goes only while others stay."""

    @pytest.fixture
    def two_tiers(self, cli, run: Path, tmp_path: Path, govern) -> Path:
        govern("lustre: {last: 2}, cold: {last: all}")
        cold = tmp_path / "cold"
        cold.mkdir()
        cli.done("tier", "add", "cold", cold)
        cli.done("flush", "hf", "--to", "cold")
        return cold

    def test_it_is_purged_at_once(self, cli, two_tiers, plan, run: Path, time_is_over) -> None:
        cli.done("apply", plan())
        time_is_over()
        answer = cli.json("apply")
        assert answer.code == 0, answer
        assert {one["went"] for one in answer.json["steps"]} == {"purged"}
        assert {one["action"] for one in answer.json["steps"]} == {"evict"}
        assert sorted(one.name for one in run.glob("checkpoint-*")) == [
            "checkpoint-400",
            "checkpoint-500",
        ]
        assert len(list(two_tiers.glob("hf/checkpoint-*"))) == 5
        assert cli.json("restore", "hf", "--step", "100", "--to", run.parent / "x").code == 0

    def test_with_files_of_others_in_it_it_lies_in_the_trash(
        self, cli, two_tiers, run: Path, plan, time_is_over
    ) -> None:
        (run / "checkpoint-100/notes.txt").write_text("mine")
        os.utime(run / "checkpoint-100/notes.txt", (0, 0))  # it lay there when that was compared
        (run / "checkpoint-200/notes.txt").write_text("of a later save?")
        cli.done("apply", plan())
        time_is_over()
        answer = cli.json("apply")
        assert [one.name for one in (run / "checkpoint-200").iterdir()] == ["notes.txt"]
        told = {one["step"]: one for one in answer.json["steps"]}
        assert told[100]["went"] == "trashed"
        assert "notes.txt" in told[100]["text"]
        assert told[200]["went"] == "purged"

    def test_a_pin_ends_the_going_of_the_whole_checkpoint(
        self, cli, two_tiers, govern, plan, run: Path, time_is_over
    ) -> None:
        govern("lustre: {last: 2}, cold: {last: 2}")
        cli.done("apply", plan())
        cli.done("pin", "hf", "100", "--name", "paper", "--reason", "a figure")
        time_is_over()
        assert cli.json("apply").code == 3
        assert cli.json("apply").code == 0, "it waits for ever"
        assert (two_tiers / "hf/checkpoint-100").exists()
        assert not (two_tiers / "hf/checkpoint-200").exists()
        assert {one["action"] for one in cli.json("plan").json["entries"]} <= {"evict"}

    def test_lost_elsewhere_in_between_it_stays(
        self, cli, two_tiers, run: Path, plan, time_is_over
    ) -> None:
        made = plan()
        shutil.rmtree(two_tiers / "hf/checkpoint-100")
        cli("reconcile")
        answer = cli.json("apply", made)
        assert {one["step"]: one["went"] for one in answer.json["steps"]}[100] == "changed"

    def test_written_over_elsewhere_in_between_it_stays(
        self, cli, two_tiers, run: Path, plan
    ) -> None:
        made = plan()
        (two_tiers / "hf/checkpoint-100/model.safetensors").write_bytes(b"others")
        answer = cli.json("apply", made)  # no scan has told the catalog
        told = {one["step"]: one["went"] for one in answer.json["steps"]}
        assert told[100] == "protected"
        assert (run / "checkpoint-100/model.safetensors").exists()

    def test_strictly_too_no_storage_is_looked_at_while_the_catalog_is_held(
        self, cli, two_tiers, plan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made, held = plan(), []
        looked = Removing.new_look

        def new_look(removing: Removing, *about: Any) -> RunLook:
            held.append(removing.context.catalog._database.is_in_transaction())
            return looked(removing, *about)

        monkeypatch.setattr(Removing, "new_look", new_look)
        cli.done("apply", made, "--strict")
        assert held
        assert not any(held)

    def test_written_over_elsewhere_in_the_grace_it_is_not_touched(
        self, cli, two_tiers, run: Path, plan, time_is_over
    ) -> None:
        cli.done("apply", plan())
        (two_tiers / "hf/checkpoint-100/model.safetensors").write_bytes(b"others")
        time_is_over()
        answer = cli.json("apply")
        told = {one["step"]: one["went"] for one in answer.json["steps"]}
        assert (told[100], told[200]) == ("protected", "purged")
        assert (run / "checkpoint-100/model.safetensors").exists()

    def test_lost_elsewhere_in_the_grace_it_comes_back(
        self, cli, two_tiers, run: Path, plan, time_is_over
    ) -> None:
        cli.done("apply", plan())
        shutil.rmtree(two_tiers / "hf/checkpoint-100")
        cli("reconcile")
        time_is_over()
        answer = cli.json("apply")
        told = {one["step"]: one for one in answer.json["steps"]}
        assert told[100]["went"] == "protected"
        assert "no other whole verified copy" in told[100]["text"]
        assert told[200]["went"] == "purged"
        assert (run / "checkpoint-100/model.safetensors").exists()

    def test_back_at_its_place_after_the_purge_it_counts_again(
        self, cli, two_tiers, run: Path, plan, time_is_over
    ) -> None:
        cli.done("apply", plan())
        time_is_over()
        cli.done("apply")
        cli.done("restore", "hf", "--step", "200", "--to", run)
        cli.done("scan")
        told = cli.json("list", "hf").json["checkpoints"]
        (one,) = [each for each in told if each["step"] == 200]
        assert {each["tier"]: each["evidence"] for each in one["copies"]} == {
            "lustre": "digest",
            "cold": "digest",
        }
        assert cli.json("apply").json["steps"] == []
