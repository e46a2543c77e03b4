"""P9: what a plan let go is explained as long as anybody asks: which plan, why, what comes next."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ckptgov.errors import Malformed
from ckptgov.governor import open_governor
from ckptgov.model.clock import SystemClock
from ckptgov.model.copies import CopyState
from ckptgov.model.removed import RemovedCopy
from ckptgov.service.app import create_app
from ckptgov.service.serving import Serving
from ckptgov.testing.builders import write_hf_trainer
from ckptgov.testing.served import running
from ckptgov.wire.plans import short_id
from ckptgov.wire.removed import removed, removed_of
from ckptgov.work import remove
from ckptgov_cli import render_removed

POLICY = """\
policy: tight
runs: ["*"]
keep:
  lustre: {last: 1}
floors: {min_restorable: 1, min_age: 0s}
safety: {max_fraction: 90%, grace: 1d, trash: 7d, adoption_grace: 0s}
"""
UNDO = "ckptgov undelete hf --step 100"
FORGOTTEN = {"condemned_at_ns": None, "why": []}


@pytest.fixture
def plan_id(cli, tier: Path, home: Path) -> str:
    """The plan that condemned steps 100 and 200 of a run, which has a step 300, too."""
    (home / "policies").mkdir()
    (home / "policies/tight.yaml").write_text(POLICY)
    for step in (100, 200, 300):
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    made = cli.json("plan").json["plan_id"]
    cli.done("apply", made)
    return made


@pytest.fixture
def go_on(cli, time_is_over) -> Callable[[], object]:
    """Goes on as if the time of every removal had run out."""

    def apply() -> None:
        time_is_over()
        cli.done("apply")

    return apply


@pytest.fixture
def asked_of_service(cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """A command asked of a service over this home, by a host that has nothing."""

    def ask(*words: str):
        with (
            Serving.open(str(home), clock=SystemClock(), is_open=True) as serving,
            running(create_app(serving)) as url,
            monkeypatch.context() as away,
        ):
            away.setenv("CKPTGOV_HOME", str(home.parent / "nothing"))
            away.setenv("CKPTGOV_URL", url)
            return cli(*words)

    return ask


def of_catalog(home: Path, what: str) -> int:
    """A number of the removal of step 100."""
    query = (
        f"SELECT {what} FROM removals JOIN checkpoints USING (run_id, content_id) WHERE step = 100"
    )
    with closing(sqlite3.connect(home / "catalog.sqlite")) as catalog:
        return catalog.execute(query).fetchone()[0]


def minute(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC")


def removal(cli, *, step: str = "100") -> dict:
    """The one removal that is told of a step."""
    answer = cli.json("explain", "hf", step)
    assert answer.code == 0, answer
    (told,) = answer.json["removals"]
    return told


def lose_catalog(home: Path, cli) -> None:
    for one in home.glob("catalog.sqlite*"):
        one.unlink()
    cli.done("catalog", "rebuild")


class TestCondemned:
    def test_it_is_told_by_which_plan_and_why_and_until_when(self, cli, plan_id, home) -> None:
        answer = cli("explain", "hf", "100")
        assert answer.code == 0
        assert "superseded: checkpoint-100" in answer.out
        assert f"  lustre: condemned by plan {short_id(plan_id)}" in answer.out
        assert "    goes: no rule" in answer.out
        assert minute(of_catalog(home, "condemned_at_ns")) in answer.out
        assert f"after {minute(of_catalog(home, 'due_at_ns'))}; '{UNDO}'" in answer.out

    def test_the_document_has_the_same(self, cli, plan_id, home: Path) -> None:
        told = removal(cli)
        assert (told["state"], told["action"], told["next"]) == ("condemned", "prune", "trashed")
        assert (told["tier"], told["node"], told["step"]) == ("lustre", None, 100)
        assert (told["plan_id"], told["undo"]) == (plan_id, UNDO)
        assert [one["reason"] for one in told["why"]] == ["no-rule-keeps"]
        assert told["due_at_ns"] == of_catalog(home, "due_at_ns")
        assert told["condemned_at_ns"] == of_catalog(home, "condemned_at_ns")
        assert told["moved_at_ns"] is told["purged_at_ns"] is None

    def test_the_reasons_are_those_of_the_plan(self, cli, plan_id) -> None:
        entries = cli.json("plans", "show", plan_id).json["entries"]
        (planned,) = (one for one in entries if one["step"] == 100)
        assert removal(cli)["why"] == planned["why"]

    def test_without_a_step_all_that_may_come_back_is_told(self, cli, plan_id) -> None:
        told = cli.json("explain", "hf").json
        assert [one["step"] for one in told["removals"]] == [200, 100]
        assert [one["step"] for one in told["checkpoints"]] == [300, 200, 100]

    def test_nothing_is_told_of_what_stays_or_came_back(self, cli, plan_id) -> None:
        cli.done("undelete", "hf", "--step", "100")
        for step in ("100", "300"):
            assert cli.json("explain", "hf", step).json["removals"] == []

    def test_a_run_can_be_named_by_its_directory(self, cli, plan_id, tier: Path) -> None:
        told = cli.json("explain", tier / "hf", "100").json["removals"]
        assert [one["plan_id"] for one in told] == [plan_id]
        assert cli.json("explain", tier / "hf/checkpoint-300").json["removals"] == []

    def test_where_no_trash_is_kept_it_is_purged_next(self, cli, plan_id, home: Path) -> None:
        with closing(sqlite3.connect(home / "catalog.sqlite")) as catalog:
            catalog.execute("UPDATE removals SET trash_s = 0")
            catalog.commit()
        assert removal(cli)["next"] == "purged"
        due = minute(of_catalog(home, "due_at_ns"))
        assert f"after {due}; until then '{UNDO}'" in cli("explain", "hf", "100").out


class TestOnItsWay:
    def test_what_is_half_moved_is_told_and_comes_back(
        self, cli, plan_id, time_is_over, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed once its receipt and manifest were away."""

        class Killed(BaseException):
            pass

        def die(*given, **named):
            raise Killed

        time_is_over()
        with monkeypatch.context() as broken:
            broken.setattr(remove, "move_files", die)
            with open_governor() as governor, pytest.raises(Killed):
                governor.apply(None)
        (step,) = (
            step
            for step in ("100", "200")
            if cli.json("explain", "hf", step).json["removals"][0]["state"] == "trashing"
        )
        told = removal(cli, step=step)
        assert (told["next"], told["due_at_ns"], told["plan_id"]) == ("trashed", None, plan_id)
        answer = cli("explain", "hf", step)
        assert f"  lustre: being moved aside by plan {short_id(plan_id)}" in answer.out
        assert f"'ckptgov undelete hf --step {step}' brings it back" in answer.out
        cli.done("undelete", "hf", "--step", step)
        assert cli.json("explain", "hf", step).json["removals"] == []

    def test_what_storage_did_not_let_go_is_said(self, cli, plan_id, home: Path) -> None:
        with closing(sqlite3.connect(home / "catalog.sqlite")) as catalog:
            catalog.execute("UPDATE removals SET error = ?", (b"it is read-only",))
            catalog.commit()
        assert removal(cli)["error"] == "it is read-only"
        said = "storage did not let it go: it is read-only"
        assert said in cli("explain", "hf", "100").out


class TestTrashed:
    def test_what_only_lies_in_the_trash_is_explained(self, cli, plan_id, go_on, home) -> None:
        go_on()
        answer = cli("explain", "hf", "100")
        assert answer.code == 0
        assert answer.out.startswith("100\tcheckpoint-100\n")
        assert f"  lustre: in the trash by plan {short_id(plan_id)}" in answer.out
        assert "    goes: no rule" in answer.out
        assert f"after {minute(of_catalog(home, 'due_at_ns'))}; until then '{UNDO}'" in answer.out

    def test_the_document_has_the_same(self, cli, plan_id, go_on, home: Path) -> None:
        go_on()
        told = removal(cli)
        assert cli.json("explain", "hf", "100").json["checkpoints"] == []
        assert (told["state"], told["next"], told["undo"]) == ("trashed", "purged", UNDO)
        assert (told["name"], told["plan_id"]) == ("checkpoint-100", plan_id)
        assert told["due_at_ns"] == of_catalog(home, "due_at_ns")
        assert told["condemned_at_ns"] <= told["moved_at_ns"] < told["due_at_ns"]

    def test_a_step_that_never_was_is_still_none(self, cli, plan_id, go_on) -> None:
        go_on()
        assert cli.json("explain", "hf", "150").code == 5

    def test_after_a_rebuild_tombstone_and_trash_tell(self, cli, plan_id, go_on, home) -> None:
        go_on()
        before = removal(cli)
        lose_catalog(home, cli)
        told = removal(cli)
        assert {**before, **FORGOTTEN, "due_at_ns": told["due_at_ns"]} == told
        assert told["due_at_ns"] == of_catalog(home, "due_at_ns")
        answer = cli("explain", "hf", "100")
        assert (
            f"in the trash by plan {short_id(plan_id)}; moved {minute(told['moved_at_ns'])}"
            in answer.out
        )


class TestPurged:
    @pytest.fixture
    def purged(self, plan_id, go_on) -> str:
        go_on()
        go_on()
        return plan_id

    def test_it_is_told_that_it_is_gone_and_by_which_plan(self, cli, purged) -> None:
        answer = cli("explain", "hf", "100")
        assert answer.code == 0
        told = removal(cli)
        assert f"  lustre: purged by plan {short_id(purged)}" in answer.out
        assert f"purged {minute(told['purged_at_ns'])}" in answer.out
        assert "    goes: no rule" in answer.out
        assert "undelete" not in answer.out

    def test_the_document_has_the_same(self, cli, purged) -> None:
        told = removal(cli)
        assert (told["state"], told["action"], told["plan_id"]) == ("purged", "prune", purged)
        assert told["next"] is told["undo"] is told["due_at_ns"] is None
        assert told["condemned_at_ns"] <= told["moved_at_ns"] <= told["purged_at_ns"]

    def test_only_whoever_asks_for_the_step_is_told(self, cli, purged) -> None:
        assert cli.json("explain", "hf").json["removals"] == []

    def test_after_a_rebuild_the_journal_tells(self, cli, purged, home: Path) -> None:
        before = removal(cli)
        lose_catalog(home, cli)
        unknown = {"name": None, "action": None, "purged_at_ns": None}
        assert removal(cli) == {**before, **FORGOTTEN, **unknown}
        answer = cli("explain", "hf", "100")
        assert answer.out.startswith(f"100\t{before['content_id']}\n")
        assert (
            f"purged by plan {short_id(purged)}; moved {minute(before['moved_at_ns'])}"
            in answer.out
        )
        assert cli.json("explain", "hf", "150").code == 5


class TestEvicted:
    @pytest.fixture
    def evicted(self, cli, home: Path, linked: Path) -> str:
        """The plan that took steps 100 and 200 from a tier, which another one keeps."""
        (home / "policies").mkdir()
        (home / "policies/tight.yaml").write_text(POLICY)
        made = cli.json("plan").json["plan_id"]
        cli.done("apply", made)
        return made

    def test_a_copy_that_goes_beside_others_is_told_where_it_lay(self, cli, evicted) -> None:
        told = removal(cli)
        assert (told["tier"], told["state"], told["next"]) == ("lustre", "condemned", "purged")

    def test_once_gone_it_is_told_beside_what_stays(self, cli, evicted, go_on, home) -> None:
        go_on()
        answer = cli("explain", "hf", "100")
        assert f"  lustre: purged by plan {short_id(evicted)}" in answer.out
        assert "restorable" in answer.out
        lose_catalog(home, cli)
        told = removal(cli)
        assert (told["state"], told["tier"], told["plan_id"]) == ("purged", "lustre", evicted)


@pytest.mark.parametrize("member", ["plan_id", "why", "due_at_ns", "undo", "state"])
def test_a_service_that_leaves_something_out_is_not_believed(cli, plan_id, member: str) -> None:
    told = removal(cli)
    (known,) = removed_of({"run": "hf", "removals": [told]})
    assert removed("hf", [known])["removals"] == [told]
    del told[member]
    with pytest.raises(Malformed, match=member):
        removed_of({"run": "hf", "removals": [told]})


def test_of_a_nodes_own_disk_the_node_is_named(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    known = {"content_id": "sha256:0", "name": "step_1", "step": 1, "place": "p", "tier": "nvme"}
    gone = RemovedCopy(**known, node="node7", state=CopyState.PURGED)
    render_removed.alone([], [gone])
    said = capsysbinary.readouterr().out.decode()
    assert "  nvme@node7: purged by a plan that is not known any more\n" in said


class TestThroughTheService:
    def same(self, cli, asked_of_service, *words: str) -> dict:
        here, asked = cli(*words), asked_of_service(*words)
        assert (asked.code, asked.out) == (here.code, here.out), (asked, here)
        return here

    @pytest.mark.parametrize("times", [0, 1, 2])
    def test_it_is_the_same(self, cli, plan_id, go_on, asked_of_service, times: int) -> None:
        for _ in range(times):
            go_on()
        for words in (("hf", "100"), ("hf", "100", "--json"), ("hf", "--json")):
            self.same(cli, asked_of_service, "explain", *words)
        told = asked_of_service("explain", "hf", "100", "--json").json["removals"]
        assert [one["state"] for one in told] == [["condemned", "trashed", "purged"][times]]

    def test_a_step_that_never_was_is_none_there_too(self, cli, plan_id, asked_of_service) -> None:
        assert self.same(cli, asked_of_service, "explain", "hf", "150", "--json").code == 5
