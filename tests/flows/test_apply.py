"""A plan carried out: condemned, moved aside, purged; what changed since is skipped and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.testing.builders import write_hf_trainer

POLICY = """\
policy: tight
runs: ["*"]
keep:
  lustre: {{last: {last}}}
floors: {{min_restorable: 1, min_age: 0s}}
safety: {{max_fraction: {fraction}, grace: {grace}, trash: {trash}, adoption_grace: 0s}}
"""
STEPS = (100, 200, 300, 400, 500)


@pytest.fixture
def govern(home: Path) -> Callable[..., None]:
    """Puts the policy in force."""

    def put(*, last: int = 2, grace: str = "1d", trash: str = "7d", fraction: str = "90%") -> None:
        (home / "policies").mkdir(exist_ok=True)
        text = POLICY.format(last=last, grace=grace, trash=trash, fraction=fraction)
        (home / "policies/tight.yaml").write_text(text)

    return put


@pytest.fixture
def run(cli, tier: Path, govern) -> Path:
    """A run of five sealed checkpoints, of which the policy keeps two."""
    govern()
    for step in STEPS:
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    return tier / "hf"


@pytest.fixture
def plan(cli) -> Callable[..., str]:
    """Makes a plan and gives its id."""

    def make(*words: str) -> str:
        return cli.json("plan", *words).json["plan_id"]

    return make


def went(answer) -> dict[int, str]:
    """How far each step's checkpoint went."""
    return {one["step"]: one["went"] for one in answer.json["steps"]}


def listed(cli) -> dict[int, list[str]]:
    """Steps that are listed, with the reasons why they are not offered."""
    told = cli.json("list", "hf").json["checkpoints"]
    return {one["step"]: [each["reason"] for each in one["findings"]] for one in told}


def shards(run: Path, step: int) -> list[Path]:
    return sorted(run.glob(f"checkpoint-{step}/*"))


class TestTheLifeOfARemoval:
    def test_first_it_is_only_decided(self, cli, run: Path, plan) -> None:
        answer = cli.json("apply", plan())
        assert answer.code == 0, answer
        assert went(answer) == {100: "condemned", 200: "condemned", 300: "condemned"}
        assert all(shards(run, step) for step in STEPS)
        assert listed(cli) == {
            500: [],
            400: [],
            300: ["superseded"],
            200: ["superseded"],
            100: ["superseded"],
        }

    def test_while_its_grace_lasts_nothing_is_touched(self, cli, run: Path, plan) -> None:
        cli.done("apply", plan())
        answer = cli.json("apply")
        assert answer.code == 0
        assert set(went(answer).values()) == {"waiting"}
        assert all(shards(run, step) for step in STEPS)

    def test_then_it_is_moved_aside_and_a_scan_does_not_seal_it_again(
        self, cli, run: Path, plan, time_is_over
    ) -> None:
        cli.done("apply", plan())
        time_is_over()
        answer = cli.json("apply")
        assert answer.code == 0, answer
        assert set(went(answer).values()) == {"trashed"}
        assert not shards(run, 100)
        assert len(list(run.glob(".ckptgov/trash/*/*/files/checkpoint-*"))) == 3
        cli.done("scan")
        assert listed(cli) == {500: [], 400: []}

    def test_then_it_is_gone(self, cli, run: Path, plan, time_is_over) -> None:
        cli.done("apply", plan())
        for _ in range(2):
            time_is_over()
            answer = cli.json("apply")
        assert answer.code == 0, answer
        assert set(went(answer).values()) == {"purged"}
        assert answer.json["freed_bytes"] > 0
        assert not list(run.glob(".ckptgov/trash/*/*"))
        assert cli.json("apply").json["steps"] == []
        cli.done("scan")
        assert listed(cli) == {500: [], 400: []}
        assert cli.json("latest", "hf").chosen == run / "checkpoint-500"

    def test_without_a_grace_it_is_moved_aside_at_once(self, cli, run: Path, plan, govern) -> None:
        govern(grace="0s")
        answer = cli.json("apply", plan())
        assert went(answer) == {100: "trashed", 200: "trashed", 300: "trashed"}
        assert len(answer.json["steps"]) == 3
        assert not shards(run, 100)

    def test_each_line_says_what_where_how_much_why_and_when(self, cli, run: Path, plan) -> None:
        answer = cli.done("apply", plan())
        line = answer.out.splitlines()[0].split("\t")
        assert line[:6] == ["condemned", "prune", "hf", "300", "checkpoint-300", "lustre"]
        assert "KiB" in line[6]
        assert "no rule of policy tight keeps it" in line[8]
        assert "moved to the trash by the first 'ckptgov apply' after 20" in line[8]

    def test_a_dry_run_does_nothing_and_says_would(self, cli, run: Path, plan, home) -> None:
        made = plan()
        answer = cli.json("apply", made, "--dry-run")
        assert answer.code == 0
        assert set(went(answer).values()) == {"would"}
        assert all("would be condemned" in one["text"] for one in answer.json["steps"])
        assert listed(cli)[100] == []
        assert went(cli.json("apply", made))[100] == "condemned"

    def test_a_dry_run_of_going_on_moves_nothing(self, cli, run: Path, plan, time_is_over) -> None:
        cli.done("apply", plan())
        time_is_over()
        answer = cli.json("apply", "--dry-run")
        assert set(went(answer).values()) == {"would"}
        assert shards(run, 100)


class TestWhichPlans:
    def test_one_that_was_applied_is_refused(self, cli, run: Path, plan) -> None:
        made = plan()
        cli.done("apply", made)
        again = cli.json("apply", made)
        assert again.code == 6
        assert "applied already" in again.json["error"]["message"]

    def test_one_beyond_a_cap_waits_for_a_person(self, cli, run: Path, plan, govern) -> None:
        govern(fraction="10%")
        made = plan()
        refused = cli.json("apply", made)
        assert refused.code == 6
        assert "approve" in refused.json["error"]["hint"]
        assert listed(cli)[100] == []
        cli.done("plans", "approve", made, "--reason", "the tier is full")
        answer = cli.json("apply", made)
        assert answer.code == 0, answer
        assert went(answer) == {100: "condemned", 200: "condemned", 300: "condemned"}

    def test_one_of_a_policy_that_was_changed_since_is_refused(
        self, cli, run: Path, plan, govern
    ) -> None:
        made = plan()
        govern(last=3)
        answer = cli.json("apply", made)
        assert answer.code == 6
        assert "tight of the plan was changed since" in answer.json["error"]["message"]
        assert listed(cli)[300] == []

    def test_one_of_a_policy_that_is_gone_is_refused(self, cli, run: Path, plan, home) -> None:
        made = plan()
        (home / "policies/tight.yaml").unlink()
        answer = cli.json("apply", made)
        assert answer.code == 6
        assert "is not in force" in answer.json["error"]["message"]

    def test_one_that_does_not_exist_is_a_mistake(self, cli, run: Path) -> None:
        assert cli.json("apply", "feed").code == 2


class TestWhatChangedSince:
    def test_a_pin_made_since_keeps_it_and_the_rest_goes(self, cli, run: Path, plan) -> None:
        made = plan()
        cli.done("pin", "hf", "200", "--name", "paper", "--reason", "a figure")
        answer = cli.json("apply", made)
        assert answer.code == 3, answer
        assert went(answer) == {100: "condemned", 200: "changed", 300: "condemned"}
        (one,) = [each for each in answer.json["steps"] if each["step"] == 200]
        assert "pinned as paper" in one["text"]
        assert listed(cli)[200] == []

    def test_strict_refuses_all_of_it(self, cli, run: Path, plan) -> None:
        made = plan()
        cli.done("pin", "hf", "200", "--name", "paper", "--reason", "a figure")
        answer = cli.json("apply", made, "--strict")
        assert answer.code == 6
        assert went(answer) == {200: "changed"}
        assert "--strict" in answer.json["error"]["message"]
        assert listed(cli) == {step: [] for step in STEPS}

    def test_strict_goes_on_where_nothing_changed(self, cli, run: Path, plan) -> None:
        answer = cli.json("apply", plan(), "--strict")
        assert answer.code == 0
        assert set(went(answer).values()) == {"condemned"}

    def test_a_shard_written_since_keeps_it(self, cli, run: Path, plan) -> None:
        made = plan()
        (run / "checkpoint-100/optimizer.pt").write_bytes(b"another")
        answer = cli.json("apply", made)
        assert answer.code == 3
        assert went(answer)[100] == "changed"
        assert shards(run, 100)

    def test_one_written_anew_after_it_was_condemned_is_left_alone(
        self, cli, run: Path, plan, time_is_over
    ) -> None:
        cli.done("apply", plan())
        write_hf_trainer(run / "checkpoint-100", 100, state={"seed": 2})
        time_is_over()
        answer = cli.json("apply")
        assert answer.code == 3
        assert went(answer) == {100: "changed", 200: "trashed", 300: "trashed"}
        assert len(shards(run, 100)) == 7
        assert cli.json("apply").code == 0

    def test_a_pin_made_in_the_grace_brings_it_back(
        self, cli, run: Path, plan, time_is_over
    ) -> None:
        cli.done("apply", plan())
        cli.done("pin", "hf", "100", "--name", "paper", "--reason", "a figure")
        time_is_over()
        answer = cli.json("apply")
        assert answer.code == 3
        assert went(answer) == {100: "protected", 200: "trashed", 300: "trashed"}
        assert listed(cli)[100] == []
        assert shards(run, 100)

    def test_the_newest_lost_in_the_grace_brings_the_next_back(
        self, cli, run: Path, plan, govern
    ) -> None:
        govern(last=1)
        cli.done("apply", plan())
        assert listed(cli)[400] == ["superseded"]
        (run / "checkpoint-500/model.safetensors").write_bytes(b"rotten")
        cli("scan")
        answer = cli.json("apply")
        assert went(answer)[400] == "protected"
        assert "newest restorable" in answer.json["steps"][0]["text"]
        assert went(answer)[300] == "waiting"
        assert cli.json("latest", "hf").chosen == run / "checkpoint-400"
