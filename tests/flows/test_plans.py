"""Plans as people meet them: what they say, what they refuse, how one is kept and approved."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ckptgov.catalog.samples import TierSample
from ckptgov.errors import Ambiguous
from ckptgov.governor import Governor, open_governor
from ckptgov.manifest.forms.identities import encode_tier
from ckptgov.model.checkpoint import VerifyLevel
from ckptgov.ops.plan_fills import fills_now
from ckptgov.ops.stored_plans import stored_plan
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import write_dcp
from ckptgov.testing.cluster import LeapingClock
from ckptgov.wire import decode_plans
from ckptgov.wire import plans as documents
from ckptgov.work.tier import TIER_FILE, read_identity
from ckptgov_cli import render_plans

FREE = {
    "floors": {"min_restorable": 1, "min_age": "0s"},
    "safety": {"adoption_grace": "0s", "max_fraction": "100%"},
}
DAY_S = 86400.0


@pytest.fixture
def policy(home: Path) -> Callable[..., Path]:
    """Writes a policy of the tests, ``last: 1`` for the tier ``tier`` unless told otherwise."""

    def write(name: str = "ours", *, directory: Path | None = None, **more: object) -> Path:
        directory = directory or home / "policies"
        directory.mkdir(exist_ok=True)
        told = {"policy": name, "keep": {"tier": {"last": 1}}, **FREE, **more}
        path = directory / f"{name}.yaml"
        path.write_text(json.dumps(told))
        return path

    return write


@pytest.fixture
def run(cli, tier: Path) -> Path:
    """Four sealed checkpoints of one run."""
    cli.done("tier", "add", "tier", tier, "--ingest")
    for step in (100, 200, 300, 400):
        write_dcp(tier / f"team/step_{step}")
    cli.done("scan")
    return tier / "team"


@contextmanager
def opened(ahead_s: float = 0.0) -> Iterator[Governor]:
    """The governor of this home, so much later."""
    clock = LeapingClock()
    clock.ahead_s = ahead_s
    with open_governor(clock=clock) as governor:
        yield governor


def steps(answer) -> list[int]:
    return sorted(one["step"] for one in answer.json["entries"])


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_a_tree_that_was_just_adopted_loses_nothing(cli, run, policy) -> None:
    policy(safety={"max_fraction": "100%"})
    answer = cli.json("plan")
    assert answer.code == 0
    assert answer.json["entries"] == []
    assert "adoption" in {one["reason"] for one in answer.json["kept"]}
    with opened(8 * DAY_S) as governor:
        waiting = governor.plan()
        assert waiting.plan.entries == ()
        assert {one.reason for one in waiting.kept} >= {"stale-proof"}
        governor.verify(str(run), level=VerifyLevel.DIGEST)
        assert len(governor.plan().plan.entries) == 3


def test_without_a_policy_nothing_goes_and_it_is_said(cli, run) -> None:
    answer = cli("plan")
    assert answer.code == 0
    assert "nothing goes" in answer.out
    assert "team" in answer.out
    assert "no policy" in answer.out


def test_every_line_says_what_where_how_much_and_why(cli, run, policy) -> None:
    policy()
    answer = cli("plan")
    assert answer.code == 0
    lines = [line for line in answer.out.splitlines() if line.startswith("prune\t")]
    assert len(lines) == 3
    for step, line in zip((300, 200, 100), lines, strict=True):
        size = size_of(run / f"step_{step}")
        action, name, of_step, checkpoint, where, frees, why = line.split("\t")
        assert (action, name, of_step, checkpoint) == (
            "prune",
            "team",
            f"step {step}",
            f"step_{step}",
        )
        assert where == "tier"
        assert frees == f"frees {render_plans.size(size)}"
        assert "no rule" in why
    assert "would remove 3 copies in 1 run, " in answer.out
    assert "3 checkpoints would be gone altogether" in answer.out
    assert "prune: no copy of the checkpoint would be left" in answer.out
    assert "evict:" not in answer.out
    assert "'ckptgov undelete' brings them back" in answer.out
    assert "policies: ours" in answer.out
    assert "nothing was heard of" not in answer.out
    assert "tier: 1 checkpoint" in answer.out
    assert re.search(
        r"^tier tier: .* used now, .* less once it is purged", answer.out, re.MULTILINE
    )


def test_all_lists_each_that_stays_with_its_reasons(cli, run, policy) -> None:
    policy()
    answer = cli("plan", "--all")
    stays = [line for line in answer.out.splitlines() if line.startswith("stays\t")]
    assert len(stays) == 1
    assert "step 400" in stays[0]
    assert "last" in stays[0]
    told = cli.json("plan", "--all").json["verdicts"]
    assert [len(one["checkpoints"]) for one in told] == [4]


def test_bytes_that_other_names_hold_are_not_said_to_be_freed(
    cli, run, policy, tmp_path: Path
) -> None:
    policy()
    kept = tmp_path / "elsewhere"
    kept.mkdir()
    for path in (run / "step_100").iterdir():
        os.link(path, kept / path.name)
    cli.done("verify", "team")
    entry = next(one for one in cli.json("plan").json["entries"] if one["step"] == 100)
    assert entry["freed_bytes"] == 0
    assert entry["size_bytes"] == size_of(run / "step_100")
    line = next(line for line in cli("plan").out.splitlines() if "\tstep 100\t" in line)
    assert "frees 0 B of " in line


def test_a_plan_is_the_same_in_whatever_time_zone_it_is_made(
    cli, run, policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy(keep={"tier": {"last": 1, "daily": 1}}, timezone="Europe/Berlin")
    made = []
    for zone in ("UTC", "Pacific/Kiritimati", "America/St_Johns"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        with open_governor(clock=Standing()) as governor:
            made.append(msgspec.json.encode(governor.plan(run="team", dry_run=True).plan))
    monkeypatch.delenv("TZ")
    time.tzset()
    assert made[0] == made[1] == made[2]


class Standing(LeapingClock):
    """A clock that stands still, a while from now."""

    AT_NS = time.time_ns() + 3600 * 10**9

    def now_ns(self) -> int:
        return self.AT_NS


def test_a_dry_run_and_a_foreign_policy_store_nothing(cli, run, policy, tmp_path: Path) -> None:
    mine = policy("mine", directory=tmp_path / "mine")
    policy(keep={"tier": {"last": 3}})
    assert steps(cli.json("plan", "--dry-run")) == [100]
    answer = cli.json("plan", "--policy", mine)
    assert steps(answer) == [100, 200, 300]
    assert answer.json["is_stored"] is False
    assert cli.json("plans").json["plans"] == []
    assert cli("apply", answer.json["plan_id"]).code != 0
    assert cli("plan", "--policy", mine, "--apply").code == 2


def test_a_policy_file_that_is_wrong_is_told_with_its_line(cli, run, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("policy: mine\nkeeep: {}\n")
    answer = cli("plan", "--policy", wrong)
    assert answer.code == 2
    assert ":2" in answer.err
    assert cli("plan", "--policy", tmp_path / "absent.yaml").code == 2


def test_an_unchanged_plan_stays_the_one_that_is_stored(cli, run, policy) -> None:
    policy()
    first = cli.json("plan").json
    again = cli.json("plan").json
    assert again["plan_id"] == first["plan_id"]
    assert len(cli.json("plans").json["plans"]) == 1


def test_another_plan_takes_the_place_of_the_one_proposed(cli, run, policy) -> None:
    policy()
    first = cli.json("plan").json["plan_id"]
    policy(keep={"tier": {"last": 2}})
    second = cli.json("plan").json["plan_id"]
    states = {one["plan_id"]: one["state"] for one in cli.json("plans").json["plans"]}
    assert states == {first: "stale", second: "proposed"}


def test_a_plan_of_one_run_leaves_the_plan_of_all_standing(cli, run, tier, policy) -> None:
    for step in (1, 2):
        write_dcp(tier / f"other/step_{step}")
    cli.done("scan")
    policy()
    every = cli.json("plan").json
    one = cli.json("plan", "--run", "team").json
    assert {each["run"] for each in every["entries"]} == {"team", "other"}
    assert {each["run"] for each in one["entries"]} == {"team"}
    states = {each["plan_id"]: each["state"] for each in cli.json("plans").json["plans"]}
    assert states == {every["plan_id"]: "proposed", one["plan_id"]: "proposed"}


def test_beyond_a_cap_a_plan_waits_until_a_person_approves_it(cli, run, policy) -> None:
    policy(safety={"adoption_grace": "0s", "max_fraction": "100%", "max_count": 2})
    answer = cli("plan")
    assert answer.code == 6
    assert "refused: " in answer.out
    assert "plans approve" in answer.err
    told = cli.json("plan")
    assert told.code == 6
    assert told.json["error"]["exit_code"] == 6
    assert told.json["state"] == "waiting"
    short = documents.short_id(told.json["plan_id"])
    assert cli("plans", "approve", short).code == 2
    approved = cli.json("plans", "approve", short, "--reason", "agreed with the team")
    assert approved.code == 0
    assert approved.json["state"] == "approved"
    assert approved.json["note"] == "agreed with the team"
    assert cli.json("plans", "show", short).json["state"] == "approved"


def test_a_dry_run_approves_nothing(cli, run, policy) -> None:
    policy(safety={"adoption_grace": "0s", "max_fraction": "100%", "max_count": 2})
    plan_id = cli.json("plan").json["plan_id"]
    cli.done("plans", "approve", plan_id, "--reason", "why not", "--dry-run")
    assert cli.json("plans", "show", plan_id).json["state"] == "waiting"


def test_what_needs_no_approval_is_not_approved(cli, run, policy) -> None:
    policy()
    plan_id = cli.json("plan").json["plan_id"]
    assert cli("plans", "approve", plan_id, "--reason", "sure").code == 2


def test_apply_with_plan_does_nothing_beyond_a_cap(cli, run, policy) -> None:
    policy(safety={"adoption_grace": "0s", "max_fraction": "100%", "max_count": 2})
    answer = cli.json("plan", "--apply")
    assert answer.code == 6
    assert steps(answer) == [100, 200, 300]
    assert "applied" not in answer.json
    with opened() as governor:
        assert governor.context.catalog.removals.removals() == ()


def test_plan_and_apply_condemn_what_the_plan_lists(cli, run, policy) -> None:
    policy()
    answer = cli.json("plan", "--apply")
    assert answer.code == 0
    assert steps(answer) == [100, 200, 300]
    assert {one["went"] for one in answer.json["applied"]["steps"]} == {"condemned"}
    assert cli.json("plan").json["entries"] == []


def test_a_plan_is_found_by_any_beginning_that_is_its_own(cli, run, policy) -> None:
    policy()
    plan_id = cli.json("plan").json["plan_id"]
    for told in (plan_id, plan_id[:20], plan_id.removeprefix("sha256:")[:4]):
        assert cli.json("plans", "show", told).json["plan_id"] == plan_id
    for wrong in ("", "sha256:", "zz", "%", plan_id + "0"):
        assert cli("plans", "show", wrong).code == 2
    with opened() as governor:
        context = governor.context
        found = (plan_id, plan_id[:-1] + "x")
        context.catalog.plans.find = lambda prefix: found  # type: ignore[method-assign]
        with pytest.raises(Ambiguous):
            stored_plan(context, "a")


def test_something_to_go_is_exit_20_only_when_asked_for(cli, run, policy) -> None:
    assert cli("plan", "--detailed-exitcode").code == 0
    policy()
    assert cli("plan").code == 0
    assert cli("plan", "--detailed-exitcode").code == 20


def test_a_tier_that_cannot_be_looked_at_loses_nothing(cli, run, tier, policy) -> None:
    policy()
    before = cli.json("plan").json["plan_id"]
    shutil.move(tier, tier.with_name("away"))
    tier.mkdir()
    answer = cli.json("plan")
    assert answer.code == 9
    assert answer.json["entries"] == []
    assert [one["run"] for one in answer.json["failures"]] == ["team"]
    assert "nothing of it goes" in cli("plan").out
    assert cli("plan", "--run", "team").code == 9
    stored = {one["plan_id"]: one["state"] for one in cli.json("plans").json["plans"]}
    assert stored[before] == "proposed", "what saw nothing takes no plan's place"


def test_a_shared_tier_out_of_reach_holds_back_what_would_rest_on_it(
    cli, run, tier, policy, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    cli.done("tier", "add", "second", second)
    cli.done("flush", "team", "--to", "second")
    policy(keep={"tier": {"last": 1}, "second": {"last": 4}})
    assert {one["action"] for one in cli.json("plan").json["entries"]} == {"evict"}
    shutil.move(second, tmp_path / "away")
    second.mkdir()
    answer = cli.json("plan")
    assert answer.json["entries"] == []


def test_copies_on_a_disk_that_was_replaced_count_for_nothing(
    cli, run, tier, policy, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    cli.done("tier", "add", "second", second)
    cli.done("flush", "team", "--to", "second")
    policy(keep={"tier": {"last": 1}, "second": {"last": 4}})
    assert len(cli.json("plan", "--dry-run").json["entries"]) == 3
    with opened() as governor:
        catalog = governor.context.catalog
        old = next(one for one in catalog.places() if one.tier == "second")
        catalog.put_place(replace(old, place="11111111-2222-4333-8444-555555555555"))
    answer = cli.json("plan").json
    assert answer["entries"] == []
    assert ("second", "unreachable") in {(one["tier"], one["reason"]) for one in answer["kept"]}


def test_while_one_nodes_disk_is_out_of_reach_nothing_of_its_tier_goes(
    cli, run, tier, policy, tmp_path: Path
) -> None:
    for node in ("a", "b"):
        (tmp_path / node).mkdir()
        words = ("--scope", "node", "--node", node, "--ingest")
        cli.done("tier", "add", "nvme", tmp_path / node, *words)
        shutil.copytree(run / "step_400", tmp_path / node / "team/step_400")
    shutil.copytree(run / "step_300", tmp_path / "a/team/step_300")
    cli.done("scan", "--run", "team", tmp_path / "a/team", "--node", "a")
    cli.done("scan", "--run", "team", tmp_path / "b/team", "--node", "b")
    policy(keep={"nvme": {"last": 1}})
    before = cli.json("plan", "--dry-run").json["entries"]
    assert [(one["step"], one["node"], one["action"]) for one in before] == [(300, "a", "evict")]
    shutil.move(tmp_path / "b", tmp_path / "away")
    assert cli.json("plan").json["entries"] == []


def test_a_shard_that_changed_since_is_no_part_of_a_plan(cli, run, policy) -> None:
    policy()
    changed = next((run / "step_200").glob("*.distcp"))
    changed.write_bytes(changed.read_bytes()[::-1])
    answer = cli.json("plan")
    assert steps(answer) == [100, 300]
    assert any("step_200 stays" in one["text"] for one in answer.json["notes"])


def test_a_checkpoint_a_mover_is_at_work_on_stays(cli, run, policy) -> None:
    policy()
    with opened() as governor:
        context = governor.context
        place = context.catalog.places()[0].place
        run_id = context.catalog.runs()[0].identity.run_id
        held = next(one for one in context.catalog.checkpoints(run_id) if one.step == 200)
        context.catalog.take_copy_lease(held.content_id, place, holder="far:1", ttl_ns=10**12)
    assert steps(cli.json("plan")) == [100, 300]


def test_another_catalogs_tier_loses_nothing(cli, run, tier, policy) -> None:
    policy()
    with PosixStorage(tier) as storage:
        identity = read_identity(storage)
        assert identity is not None
        other = replace(identity, catalog="11111111-2222-4333-8444-555555555555")
        storage.replace(TIER_FILE, [encode_tier(other)])
    answer = cli.json("plan")
    assert answer.json["entries"] == []
    assert "other-catalog" in {one["reason"] for one in answer.json["kept"]}


def test_runs_that_died_are_listed_with_owner_size_and_last_step(
    cli, run, policy, capsysbinary
) -> None:
    policy()
    with opened(20 * DAY_S) as governor:
        stored = governor.plan(dry_run=True)
    capsysbinary.readouterr()
    render_plans.plan(stored, as_json=False, dry_run=True)
    out = capsysbinary.readouterr().out.decode()
    size = sum(size_of(one) for one in run.glob("step_*"))
    line = next(line for line in out.splitlines() if line.startswith("  team: dead"))
    assert f"owner {pwd.getpwuid(os.getuid()).pw_name}; " in line
    assert f"4 checkpoints, {render_plans.size(size)}, last step 400" in line


def test_a_plan_told_by_a_service_is_the_plan(cli, run, policy) -> None:
    policy(safety={"adoption_grace": "0s", "max_fraction": "100%", "max_count": 2})
    with opened(20 * DAY_S) as governor:
        stored = governor.plan()
        verdict = governor.verdict("team")
    told = json.loads(json.dumps(documents.plan(stored)))
    assert decode_plans.plan(told) == stored
    assert (
        decode_plans.plans(json.loads(json.dumps(documents.plans([stored]))))[0].plan == stored.plan
    )
    assert decode_plans.verdict(json.loads(json.dumps(documents.verdict(verdict)))) == verdict


def test_a_verdict_gives_every_checkpoint_every_reason(cli, run, policy) -> None:
    policy()
    with opened() as governor:
        verdict = governor.verdict("team")
        foreign = governor.verdict("team", policy='{"policy": "x", "keep": {"tier": {"last": 4}}}')
    actions = {one.step: one.tiers[0].action for one in verdict.checkpoints}
    assert {step for step, action in actions.items() if action is None} == {400}
    assert all(one.tiers[0].why for one in verdict.checkpoints)
    assert foreign.policy == "x"
    assert {one.tiers[0].action for one in foreign.checkpoints} == {None}


def test_a_pinned_checkpoint_stays_and_its_run_out_pin_is_a_tag(cli, run, policy) -> None:
    policy(keep={"tier": {"last": 1, "tags": ["paper"]}})
    cli.done("pin", "team", "100", "--name", "release", "--reason", "we said so")
    cli.done("pin", "team", "200", "--name", "paper", "--reason", "x", "--until", "1h")
    cli.done("pin", "team", "300", "--name", "trial", "--reason", "x", "--until", "1h")
    assert steps(cli.json("plan")) == []
    with opened(2 * 3600.0) as governor:
        plan = governor.plan(dry_run=True).plan
        assert [one.step for one in plan.entries] == [300]


def test_a_leased_checkpoint_stays(cli, run, policy) -> None:
    policy()
    with opened() as governor:
        catalog = governor.context.catalog
        run_id = catalog.runs()[0].identity.run_id
        held = next(one for one in catalog.checkpoints(run_id) if one.step == 200)
        catalog.claims.take(run_id, held.content_id, owner="eval", reason="reads", ttl_s=60.0)
        assert [one.step for one in governor.plan(dry_run=True).plan.entries] == [300, 100]


def test_what_a_restart_began_from_stays_until_something_newer_is_durable(cli, run, policy) -> None:
    policy()
    cli.done("mark-bad", "team", "--from", "300", "--reason", "diverged")
    cli.done("latest", "team", "--restart-id", "job-1")
    cli.done("mark-bad", "team", "--from", "300", "--undo")
    assert steps(cli.json("plan")) == [100, 300]
    with opened() as governor:
        verdict = governor.verdict("team")
    reasons = {one.step: {why.reason for why in one.tiers[0].why} for one in verdict.checkpoints}
    assert "start-point" in reasons[200]


def test_what_was_marked_bad_goes_before_good_ones(cli, run, policy) -> None:
    policy(keep={"tier": {"last": 2}})
    cli.done("mark-bad", "team", "--step", "300", "--reason", "diverged")
    entries = {one["step"]: one["why"][0] for one in cli.json("plan").json["entries"]}
    assert set(entries) == {100, 300}
    assert entries[300]["reason"] == "marked-bad"
    assert "diverged" in entries[300]["text"]


def test_an_old_line_stays_until_its_time_is_over(cli, run, tier, policy) -> None:
    cli.done("rollback", "team", "--to", "200")
    policy(old_lines={"after": "2d"})
    assert steps(cli.json("plan")) == [100]
    with opened(3 * DAY_S) as governor:
        entries = governor.plan(dry_run=True).plan.entries
    assert [(one.step, one.why[0].reason) for one in entries] == [
        (300, "old-line"),
        (100, "no-rule-keeps"),
    ]


def test_a_quota_prunes_the_oldest_down_to_it_and_the_outlook_says_so(cli, tier, policy) -> None:
    cli.done("tier", "add", "tier", tier, "--ingest")
    for step in (100, 200, 300, 400):  # sealed in the order of their steps, as while training
        write_dcp(tier / f"team/step_{step}")
        cli.done("scan")
    size = size_of(tier / "team/step_100")
    policy(keep={}, capacity={"tier": {"quota": f"{2 * size + size // 2}B"}})
    answer = cli.json("plan")
    assert steps(answer) == [100, 200]
    assert {one["why"][0]["reason"] for one in answer.json["entries"]} == {"quota-bytes"}
    assert sum(one["checkpoints"] for one in answer.json["kept"]) == 2
    with opened() as governor:
        verdict = governor.verdict("team")
    actions = {one.step: one.tiers[0].action for one in verdict.checkpoints}
    assert {step for step, action in actions.items() if action is not None} == {100, 200}


def test_the_plan_of_one_run_leaves_the_limits_of_tiers_out(cli, run, policy) -> None:
    policy(keep={}, capacity={"tier": {"quota": "1B"}})
    answer = cli.json("plan", "--run", "team")
    assert answer.json["entries"] == []
    assert any("limits" in one["text"] for one in answer.json["notes"])
    assert cli.json("plan").json["tiers"][0]["over_bytes"] > 0


def test_only_a_retired_run_is_deleted_and_only_under_its_name(cli, run, policy) -> None:
    assert cli("run", "delete", "team", "--confirm", "team").code == 6
    cli.done("run", "retire", "team")
    assert cli("run", "delete", "team", "--confirm", "tea").code == 2
    cli.done("pin", "team", "100", "--name", "paper", "--reason", "x")
    answer = cli.json("run", "delete", "team", "--confirm", "team")
    assert answer.code == 0
    assert steps(answer) == [200, 300, 400]
    assert {one["why"][0]["reason"] for one in answer.json["entries"]} == {"run-deleted"}
    assert any("pinned as paper" in one["text"] for one in answer.json["notes"])
    policy()
    cli.done("plan")
    assert cli.json("plans", "show", answer.json["plan_id"]).json["state"] == "proposed"


@pytest.mark.parametrize(("age_s", "is_told"), [(60.0, True), (2 * 3600.0, False)])
def test_a_disk_only_its_node_sees_is_as_full_as_it_last_told(
    cli, tmp_path: Path, age_s: float, is_told: bool
) -> None:
    (tmp_path / "nvme").mkdir()
    words = ("--scope", "node", "--node", "a", "--ingest")
    cli.done("tier", "add", "nvme", tmp_path / "nvme", *words)
    write_dcp(tmp_path / "nvme/team/step_100")
    cli.done("scan")
    with opened() as governor:
        context = governor.context
        context.here = frozenset()
        now_ns = context.catalog.now_ns()
        sample = TierSample(
            place=context.catalog.places()[0].place,
            at_ns=now_ns - int(age_s * 1e9),
            used_bytes=70,
            total_bytes=100,
        )
        context.catalog.samples.add(sample)
        fills, unmeasured = fills_now(context, frozenset({"nvme"}), now_ns=now_ns)
    assert [one.used_bytes for one in fills] == ([70] if is_told else [])
    assert [what for what, _why in unmeasured] == ([] if is_told else ["tier nvme of node a"])
