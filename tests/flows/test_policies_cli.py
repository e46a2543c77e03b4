"""Policies as people meet them: checked, shown, explained, and followed by scan and flush."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.governor import open_governor
from ckptgov.model.retention import (
    Action,
    CheckpointVerdict,
    CopyVerdict,
    KeepReason,
    RunLife,
    RunVerdict,
    Why,
)
from ckptgov.ops.policies import verify_max_age_s_of, verify_max_ages
from ckptgov.testing.builders import write_dcp
from ckptgov_cli import render_policies

PRESETS = Path(__file__).resolve().parents[2] / "policies"


@pytest.fixture
def policy(home: Path) -> Callable[[str, str], Path]:
    """Writes a policy file that is in force."""

    def write(name: str, text: str) -> Path:
        directory = home / "policies"
        directory.mkdir(exist_ok=True)
        path = directory / f"{name}.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def tiers(cli, tmp_path: Path) -> Path:
    """near, shared and far, all of this machine; gives their parent."""
    for name, words in (("near", ("--ingest",)), ("shared", ()), ("far", ())):
        (tmp_path / name).mkdir()
        cli.done("tier", "add", name, tmp_path / name, *words)
    return tmp_path


@pytest.fixture
def run(cli, tiers: Path) -> Path:
    """A run with three sealed checkpoints."""
    for step in (100, 200, 300):
        write_dcp(tiers / f"near/llm/step_{step}", seed=f"{step}")
    cli.done("scan")
    return tiers / "near/llm"


def lies(tiers: Path, tier: str) -> set[str]:
    return {path.name for path in (tiers / tier).glob("llm/step_*")}


def written(checkpoint: Path, *, at_s: float) -> None:
    """Gives every file of a checkpoint the time it would have if it was written then."""
    for path in (*checkpoint.iterdir(), checkpoint):
        os.utime(path, (at_s, at_s))


class TestCheck:
    @pytest.mark.parametrize("name", ["default", "long-pretrain", "finetune", "scratch-tight"])
    def test_a_preset_passes_where_nothing_is_configured(self, cli, name):
        answer = cli("policy", "check", PRESETS / f"{name}.yaml")
        assert answer.code == 0
        assert answer.out == f"reads well\t{name}\t{PRESETS}/{name}.yaml\n"
        assert "names of tiers were not compared" in answer.err

    def test_all_presets_pass_together(self, cli):
        files = [path for path in PRESETS.glob("*.yaml") if path.stem != "starter"]
        assert cli("policy", "check", *files).code == 0

    def test_every_mistake_is_told_with_its_line(self, cli, tmp_path):
        (tmp_path / "a.yaml").write_text("policy: a\nkeep: {s3: {last: 0}}\n")
        (tmp_path / "b.yaml").write_text("policy: b\n")
        (tmp_path / "c.yaml").write_text("policy: c\nruns: '*'\n")
        files = [tmp_path / f"{name}.yaml" for name in "abcd"]
        answer = cli("policy", "check", *files)
        assert answer.code == 2
        assert [line.split("\t")[1] for line in answer.out.splitlines()] == ["b", "c"]
        assert f'{tmp_path}/a.yaml:2: "last" must be from 1' in answer.err
        assert f"{tmp_path}/c.yaml:2: c and b ({tmp_path}/b.yaml:1) both select runs" in answer.err
        assert f"{tmp_path}/d.yaml: there is no such file" in answer.err
        told = cli.json("policy", "check", *files)
        assert told.code == 2
        assert [one["name"] for one in told.json["policies"]] == ["b", "c"]
        assert len(told.json["errors"]) == 3
        assert told.json["error"]["kind"] == "config"

    @pytest.mark.usefixtures("tiers")
    def test_a_tier_that_is_not_configured_is_a_mistake(self, cli, tmp_path):
        (tmp_path / "a.yaml").write_text("policy: a\nkeep: {sharde: {last: 1}}\n")
        answer = cli("policy", "check", tmp_path / "a.yaml")
        assert answer.code == 2
        assert 'a.yaml:2: no tier "sharde" is configured; did you mean "shared"?' in answer.err

    def test_no_policy_in_force_is_no_mistake(self, cli, home):
        answer = cli("policy", "check")
        assert (answer.code, answer.out) == (0, "")
        assert f"no policy is in force: {home}/policies holds no *.yaml" in answer.err

    def test_no_catalog_is_made_to_check(self, cli, home, policy):
        policy("p", "policy: p\n")
        cli.done("policy", "check")
        cli.done("policy", "show")
        assert not (home / "catalog.sqlite").exists()

    @pytest.mark.usefixtures("run")
    def test_a_run_that_two_policies_select_is_a_mistake(self, cli, policy):
        one = policy("one", "policy: one\nruns: ll*\n")
        two = policy("two", "policy: two\nruns: '*lm'\n")
        answer = cli("policy", "check")
        assert answer.code == 2
        assert f"run llm is selected by two policies: one ({one}) and two ({two})" in answer.err

    @pytest.mark.usefixtures("run")
    def test_runs_without_a_policy_are_named(self, cli, policy):
        policy("one", "policy: one\nruns: other/*\n")
        answer = cli("policy", "check")
        assert answer.code == 0
        assert "0 registered runs" in answer.out
        assert "without a policy, so that nothing of them is pruned: llm" in answer.err
        assert cli.json("policy", "check").json["runs"] == [{"run": "llm", "policy": None}]


class TestShow:
    def test_every_policy_in_force_is_listed(self, cli, policy):
        policy("b", "policy: two\nruns: [b/*, c]\n")
        path = policy("a", "policy: one\nteam: a\n")
        rows = [line.split("\t") for line in cli.done("policy", "show").out.splitlines()]
        assert rows[0] == ["one", "team a", str(path)]
        assert rows[1][:2] == ["two", "runs b/*, c"]

    def test_a_shown_policy_is_a_policy_file_that_says_the_same(self, cli, tmp_path, policy):
        shutil.copy(PRESETS / "long-pretrain.yaml", policy("p", "policy: p\n"))
        shown = cli("policy", "show", "long-pretrain")
        assert shown.code == 2, "its tiers are not configured"
        for name in ("nvme", "shared", "s3"):
            (tmp_path / name).mkdir()
            cli.done("tier", "add", name, tmp_path / name)
        text = cli.done("policy", "show", "long-pretrain").out
        assert "min_durable_copies: 1" in text
        (tmp_path / "copy.yaml").write_text(text)
        cli.done("policy", "check", tmp_path / "copy.yaml")
        told = cli.json("policy", "show", "long-pretrain").json["policy"]
        assert told["keep"]["shared"]["within_s"] == 172800.0
        assert told["keep"]["s3"]["buckets"] == {"weekly": 12, "monthly": "all"}

    def test_the_policy_of_a_run_is_found_by_its_tags(self, cli, home, policy):
        (home / "ckptgov.yaml").write_text('runs: [{run: "lm/*", tags: [pretrain]}]\n')
        policy("p", "policy: long\ntags: [pretrain]\n")
        policy("q", "policy: rest\ntags: ['!pretrain']\n")
        assert "# run lm/x is under policy long\n" in cli.done("policy", "show", "lm/x").out
        assert cli.json("policy", "show", "vision/x").json["policy"]["name"] == "rest"

    @pytest.mark.usefixtures("run")
    def test_a_run_without_a_policy_keeps_everything(self, cli, policy):
        policy("p", "policy: p\nruns: other\n")
        answer = cli("policy", "show", "llm")
        assert (answer.code, answer.out) == (0, "")
        assert "no policy selects run llm: it keeps everything" in answer.err
        assert cli.json("policy", "show", "llm").json == {"run": "llm", "policy": None}

    def test_a_name_that_nothing_has_is_refused(self, cli, policy):
        policy("p", "policy: p\nruns: other\n")
        answer = cli("policy", "show", "nobody")
        assert answer.code == 2
        assert "nobody: no policy has this name, and no run is registered under it" in answer.err
        assert "policies in force: p" in answer.err


class TestMoving:
    @pytest.mark.usefixtures("run")
    def test_a_run_flushes_along_the_links_of_its_policy(self, cli, tiers, home, policy):
        with (home / "ckptgov.yaml").open("a") as file:
            file.write("links:\n  - {from: near, to: shared, every: 1}\n")
        policy("p", "policy: p\nruns: llm\nflush:\n  - {from: near, to: far, last: 2}\n")
        cli.done("flush", "--all")
        assert lies(tiers, "far") == {"step_200", "step_300"}
        assert lies(tiers, "shared") == set()

    @pytest.mark.usefixtures("run")
    def test_a_policy_that_says_nothing_of_links_leaves_those_that_are(
        self, cli, tiers, home, policy
    ):
        with (home / "ckptgov.yaml").open("a") as file:
            file.write("links:\n  - {from: near, to: shared, last: 1}\n")
        policy("p", "policy: p\nruns: llm\n")
        cli.done("flush", "llm")
        assert lies(tiers, "shared") == {"step_300"}

    @pytest.mark.usefixtures("run")
    def test_no_links_in_a_policy_move_nothing(self, cli, tiers, home, policy):
        with (home / "ckptgov.yaml").open("a") as file:
            file.write("links:\n  - {from: near, to: shared, every: 1}\n")
        policy("p", "policy: p\nruns: llm\nflush: []\n")
        cli.done("flush", "--all")
        assert lies(tiers, "shared") == set()

    @pytest.mark.usefixtures("run")
    def test_a_run_of_two_policies_does_not_keep_others_from_being_flushed(
        self, cli, tiers, policy
    ):
        write_dcp(tiers / "near/other/step_1")
        cli.done("scan")
        policy("p", "policy: p\nruns: ll*\n")
        policy("q", "policy: q\nruns: '*lm'\n")
        policy("r", "policy: r\nruns: other\nflush:\n  - {from: near, to: far, every: 1}\n")
        answer = cli("flush", "--all")
        assert answer.code == 3
        assert "run llm is selected by two policies" in answer.err
        assert (tiers / "far/other/step_1").is_dir()
        assert cli("flush", "llm").code == 2


class TestSealing:
    def test_a_policy_may_ask_that_a_checkpoint_stands_still_before_it_is_sealed(
        self, cli, tiers, policy
    ):
        policy("p", "policy: p\nseal: {settle: 1h}\n")
        made = write_dcp(tiers / "near/llm/step_100")
        now = made.stat().st_mtime
        written(made, at_s=now - 600)
        answer = cli.json("scan")
        assert answer.code == 0
        assert answer.reasons("step_100") == ["unverified"]
        assert "step_100: changed 60" in answer.notes
        assert "s ago, and its policy asks for 3600 s" in answer.notes
        written(made, at_s=now - 3700)
        assert cli.json("scan").entries("step_100")[0]["evidence"] == "digest"

    def test_times_ahead_of_the_clock_hold_nothing_back(self, cli, tiers, policy):
        policy("p", "policy: p\nseal: {settle: 1h}\n")
        made = write_dcp(tiers / "near/llm/step_100")
        written(made, at_s=made.stat().st_mtime + 600)
        assert cli.json("scan").entries("step_100")[0]["evidence"] == "digest"

    def test_a_wrong_policy_does_not_keep_a_checkpoint_from_being_sealed(self, cli, tiers, policy):
        path = policy("p", "policy: p\nsael: {settle: 1h}\n")
        write_dcp(tiers / "near/llm/step_100")
        answer = cli("scan")
        assert answer.code == 0
        assert "1 sealed now" in answer.out
        assert f'passed over while sealing: {path}:2: unknown key "sael"' in answer.err


class TestComparing:
    def test_a_policy_says_how_long_a_comparison_is_relied_on(self, home, policy):
        (home / "ckptgov.yaml").write_text("verify_max_age: 3d\n")
        policy("p", "policy: p\nruns: often\nverify: {max_age: 1d}\n")
        with open_governor() as governor:
            ages = verify_max_ages(governor.context, {"often", "other"})
            assert ages == {"often": 86400.0, "other": 3 * 86400.0}
            assert verify_max_age_s_of(governor.context, "often") == 86400.0

    def test_a_wrong_policy_does_not_keep_copies_from_being_compared(self, policy):
        policy("p", "policy: p\nverfy: {max_age: 1d}\n")
        told: list[str] = []
        with open_governor(talk=told.append) as governor:
            assert verify_max_ages(governor.context, {"a"}) == {"a": 7 * 86400.0}
        assert "passed over while comparing" in told[0]


class TestExplain:
    def test_every_fate_is_told_in_words_a_stranger_understands(self, capsys):
        def at(tier: str, action: Action | None, text: str, places: int = 1) -> CopyVerdict:
            return CopyVerdict(
                tier=tier,
                places=("p",) * places,
                action=action,
                why=(Why(KeepReason.LAST, text),),
                bytes=2**30,
                files=4,
            )

        def one(step: int | None, *tiers: CopyVerdict) -> CheckpointVerdict:
            name = f"step_{step}"
            return CheckpointVerdict(content_id="c", name=name, step=step, line=1, tiers=tiers)

        verdict = RunVerdict(
            run_id="r",
            run="lm/x",
            policy="ours",
            life=RunLife.LIVE,
            checkpoints=(
                one(30, at("shared", None, "kept: last 1 of 1"), at("nvme", None, "kept", 2)),
                one(20, at("shared", None, "kept"), at("nvme", Action.EVICT, "kept: last 9")),
                one(10, at("shared", Action.PRUNE, "no rule keeps it")),
                one(None, at("shared", None, "kept: it carries no step")),
            ),
            notes=("best: only 1 has a value",),
        )
        assert render_policies.explained(verdict, as_json=False) == 0
        assert capsys.readouterr().out == (
            "run lm/x (live), policy: ours\n"
            "4 checkpoints: 2 stay where they are, 1 would leave a tier and stay on another, "
            "1 would be removed; 2.0 GiB freed in all\n"
            "\n"
            "step 30  step_30\n"
            "  stays on shared (1.0 GiB)\n"
            "    - kept: last 1 of 1\n"
            "  stays on nvme (1.0 GiB on 2 disks)\n"
            "    - kept\n"
            "\n"
            "step 20  step_20\n"
            "  stays on shared (1.0 GiB)\n"
            "    - kept\n"
            "  would leave nvme (1.0 GiB); the checkpoint stays on another tier\n"
            "    - overruled: would be kept by last 9\n"
            "\n"
            "step 10  step_10\n"
            "  would be removed from shared (1.0 GiB); the checkpoint would be gone\n"
            "    - no rule keeps it\n"
            "\n"
            "no step  step_None\n"
            "  stays on shared (1.0 GiB)\n"
            "    - kept: it carries no step\n"
            "\n"
            "note: best: only 1 has a value\n"
        )

    @pytest.mark.usefixtures("run")
    def test_a_run_is_explained_by_a_file_that_is_not_in_force(self, cli, tmp_path):
        path = tmp_path / "try.yaml"
        path.write_text(
            "policy: try\nkeep: {near: {last: 1}}\n"
            "floors: {min_restorable: 1, min_age: 0s}\nsafety: {adoption_grace: 0s}\n"
        )
        answer = cli.done("policy", "explain", "llm", "--policy", path)
        assert answer.out.startswith("run llm (live), policy: try\n3 checkpoints: 1 stay")
        assert answer.out.count("would be removed from near") == 2
        told = cli.json("policy", "explain", "llm", "--policy", path).json
        assert [one["step"] for one in told["checkpoints"]] == [300, 200, 100]
        actions = [one["tiers"][0]["action"] for one in told["checkpoints"]]
        assert actions == [None, "prune", "prune"]

    @pytest.mark.usefixtures("run")
    def test_a_run_without_a_policy_is_explained_as_kept(self, cli):
        out = cli.done("policy", "explain", "llm").out
        assert "no policy, so nothing of it is pruned" in out
        assert "3 checkpoints: 3 stay where they are\n" in out

    @pytest.mark.parametrize(("text", "says"), [(None, "no such file"), ("", "says nothing")])
    def test_a_file_that_says_nothing_is_refused(self, cli, tmp_path, text, says):
        path = tmp_path / "p.yaml"
        if text is not None:
            path.write_text(text)
        answer = cli("policy", "explain", "llm", "--policy", path)
        assert answer.code == 2
        assert says in answer.err
