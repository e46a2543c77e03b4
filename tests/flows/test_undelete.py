"""What was condemned or moved aside comes back, verified; also after the catalog was lost."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ckptgov.governor import open_governor
from ckptgov.testing.builders import write_hf_trainer
from ckptgov.work import remove

POLICY = """\
policy: tight
runs: ["*"]
keep:
  lustre: {last: 1}
floors: {min_restorable: 1, min_age: 0s}
safety: {max_fraction: 90%, grace: 1d, trash: 7d, adoption_grace: 0s}
"""


@pytest.fixture
def run(cli, tier: Path, home: Path) -> Path:
    """A run of three checkpoints, of which two are condemned."""
    (home / "policies").mkdir()
    (home / "policies/tight.yaml").write_text(POLICY)
    for step in (100, 200, 300):
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    cli.done("apply", cli.json("plan").json["plan_id"])
    return tier / "hf"


@pytest.fixture
def go_on(cli, time_is_over) -> Callable[[], object]:
    """Goes on as if the time of every removal had run out."""

    def apply():
        time_is_over()
        return cli.json("apply")

    return apply


@pytest.fixture
def trashed(run: Path, go_on) -> Path:
    """The run, with two checkpoints in its trash."""
    assert go_on().code == 0
    assert not (run / "checkpoint-100").exists()
    return run


def offered(cli) -> list[int]:
    """Steps that may be handed out."""
    told = cli.json("list", "hf").json["checkpoints"]
    return [one["step"] for one in told if not one["findings"]]


def came_back(answer) -> list[str]:
    return sorted(one["name"] for one in answer.json["restored"])


def lose_catalog(home: Path, cli) -> None:
    for one in home.glob("catalog.sqlite*"):
        one.unlink()
    cli.done("catalog", "rebuild")


class TestCondemned:
    def test_it_is_offered_again_and_nothing_was_touched(self, cli, run: Path) -> None:
        before = {one: one.stat().st_ctime_ns for one in run.rglob("*") if one.is_file()}
        answer = cli.json("undelete", "hf", "--step", "200")
        assert answer.code == 0, answer
        assert came_back(answer) == ["checkpoint-200"]
        assert offered(cli) == [300, 200]
        assert {one: one.stat().st_ctime_ns for one in run.rglob("*") if one.is_file()} == before

    def test_the_next_apply_leaves_it_alone(self, cli, run: Path, go_on) -> None:
        cli.done("undelete", "hf", "--step", "200")
        answer = go_on()
        assert [one["step"] for one in answer.json["steps"]] == [100]
        assert offered(cli) == [300, 200]


class TestFromTheTrash:
    def test_it_comes_back_with_its_bytes_compared(self, cli, trashed: Path) -> None:
        answer = cli.json("undelete", "hf")
        assert answer.code == 0, answer
        assert came_back(answer) == ["checkpoint-100", "checkpoint-200"]
        assert all("7 shards compared equal" in one["text"] for one in answer.json["steps"])
        assert offered(cli) == [300, 200, 100]
        assert not list(trashed.glob(".ckptgov/trash/*/*"))
        assert len(list(trashed.glob(".ckptgov/journal/*.undelete.json"))) == 2
        assert cli.json("latest", trashed, "--evidence", "digest").code == 0
        assert cli.json("verify", "hf").code == 0

    def test_only_the_step_that_was_asked_for(self, cli, trashed: Path) -> None:
        cli.done("undelete", "hf", "--step", "100")
        assert offered(cli) == [300, 100]
        assert cli.json("undelete", "hf", "--step", "300").code == 5

    def test_a_run_can_be_named_by_its_directory(self, cli, trashed: Path) -> None:
        assert came_back(cli.json("undelete", trashed)) == ["checkpoint-100", "checkpoint-200"]

    def test_a_dry_run_moves_nothing(self, cli, trashed: Path) -> None:
        answer = cli.json("undelete", "hf", "--dry-run")
        assert answer.code == 0
        assert {one["went"] for one in answer.json["steps"]} == {"would"}
        assert answer.json["restored"] == []
        assert offered(cli) == [300]

    def test_bytes_that_rotted_in_the_trash_are_not_offered(self, cli, trashed: Path) -> None:
        (shard,) = trashed.glob(".ckptgov/trash/*/*/files/checkpoint-100/model.safetensors")
        raw = bytearray(shard.read_bytes())
        raw[-1] ^= 1
        stat = shard.stat()
        shard.write_bytes(raw)
        os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        answer = cli.json("undelete", "hf", "--step", "100")
        assert answer.code == 5, answer
        assert "digest differs" in answer.json["error"]["message"]
        assert offered(cli) == [300]

    def test_a_name_taken_meanwhile_is_not_touched(self, cli, trashed: Path) -> None:
        taken = trashed / "checkpoint-100"
        taken.mkdir()
        (taken / "model.safetensors").write_bytes(b"another")
        answer = cli.json("undelete", "hf", "--step", "100")
        assert answer.code != 0
        assert (taken / "model.safetensors").read_bytes() == b"another"
        assert offered(cli) == [300]

    def test_what_was_purged_is_gone(self, cli, trashed: Path, go_on) -> None:
        go_on()
        answer = cli.json("undelete", "hf")
        assert answer.code == 5
        assert "nothing of hf" in answer.json["error"]["message"]

    def test_one_back_may_be_planned_and_go_again(self, cli, trashed: Path, go_on) -> None:
        cli.done("undelete", "hf")
        cli.done("apply", cli.json("plan").json["plan_id"])
        answer = go_on()
        assert answer.code == 0, answer
        assert {one["went"] for one in answer.json["steps"]} == {"trashed"}
        assert offered(cli) == [300]


class TestAfterTheCatalogWasLost:
    def test_a_condemnation_was_only_a_decision(self, cli, run: Path, home: Path) -> None:
        lose_catalog(home, cli)
        assert offered(cli) == [300, 200, 100]
        assert cli.json("apply").json["steps"] == []

    def test_what_is_in_the_trash_is_known_and_comes_back(
        self, cli, trashed: Path, home: Path
    ) -> None:
        lose_catalog(home, cli)
        assert offered(cli) == [300]
        told = cli.json("apply").json["steps"]
        assert [(one["step"], one["went"]) for one in told] == [(200, "waiting"), (100, "waiting")]
        answer = cli.json("undelete", "hf")
        assert came_back(answer) == ["checkpoint-100", "checkpoint-200"]
        assert offered(cli) == [300, 200, 100]

    def test_what_only_the_trash_tells_comes_back(self, cli, trashed: Path, home: Path) -> None:
        with closing(sqlite3.connect(home / "catalog.sqlite")) as catalog:
            catalog.execute("DELETE FROM removals")
            catalog.execute("UPDATE copies SET state = 'purged' WHERE state = 'trashed'")
            catalog.commit()
        answer = cli.json("undelete", "hf", "--step", "100")
        assert answer.code == 0, answer
        assert offered(cli) == [300, 100]

    def test_it_is_purged_when_its_time_is_over(
        self, cli, trashed: Path, home: Path, go_on
    ) -> None:
        lose_catalog(home, cli)
        answer = go_on()
        assert {one["went"] for one in answer.json["steps"]} == {"purged"}
        assert not list(trashed.glob(".ckptgov/trash/*/*"))

    @pytest.mark.parametrize("stop_at", ["unseal", "move_files"])
    def test_what_was_half_moved_is_never_offered_and_goes_on(
        self, cli, run: Path, home: Path, go_on, time_is_over, monkeypatch, stop_at: str
    ) -> None:
        """Killed right behind its tombstone, or once its manifest was away."""

        class Killed(BaseException):
            pass

        def die(case, *given, **named):
            if stop_at == "unseal":
                named["tombstone"]()
            raise Killed

        time_is_over()
        with monkeypatch.context() as broken:
            broken.setattr(remove, stop_at, die)
            with open_governor() as governor, pytest.raises(Killed):
                governor.apply(None)
        lose_catalog(home, cli)
        gone = 3 - len(offered(cli))
        assert gone >= 1
        cli.done("scan")
        assert len(offered(cli)) == 3 - gone
        answer = go_on()
        assert answer.code == 0, answer
        assert {one["went"] for one in answer.json["steps"]} <= {"trashed", "purged"}
        assert cli.json("undelete", "hf").code == 0
        assert offered(cli) == [300, 200, 100]
