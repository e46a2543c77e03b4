"""Doctor on retention and room: who else removes, who is judged by nobody, what resists."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy.exc import OperationalError

from ckptgov.errors import StorageError
from ckptgov.governor import open_governor
from ckptgov.model.answers import Check
from ckptgov.model.clock import SystemClock
from ckptgov.model.retention import Plan, PlanState, TierOutlook
from ckptgov.ops import capacity
from ckptgov.ops.capacity import measure_capacity
from ckptgov.ops.context import Context
from ckptgov.ops.doctor import doctor
from ckptgov.ops.doctor_room import room_checks
from ckptgov.planning.retention_plan import with_id
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import Global, Instance, write_hf_trainer, write_torch_file
from ckptgov.testing.condemning import doomed as doomed_copy
from ckptgov.testing.condemning import guard

DAY_S = 86_400.0
GB = 10**9


@contextmanager
def opened(by_s: float = 0.0) -> Iterator[Context]:
    class Shifted(SystemClock):
        def now_ns(self) -> int:
            return super().now_ns() + int(by_s * 1e9)

    with open_governor(clock=Shifted()) as governor:
        yield governor.context


def found(name: str) -> list[Check]:
    """What doctor says under a name, ok or not."""
    with opened() as context:
        return [one for one in doctor(context) if one.name == name]


def warned(name: str) -> str:
    """The one warning under a name."""
    (one,) = found(name)
    assert one.severity == "warning", one
    assert one.fix
    return one.text


def space(used: int, total: int = 100 * GB) -> Callable[[object], capacity.Space]:
    return lambda _tier: capacity.Space(
        used_bytes=used,
        free_bytes=total - used,
        total_bytes=total,
        size_bytes=total,
        files=None,
        free_files=None,
    )


def write_arguments(checkpoint: Path, **values: object) -> None:
    """``training_args.bin`` as a trainer leaves it."""
    arguments = Instance(
        Global("transformers.training_args", "TrainingArguments"), {"output_dir": "out", **values}
    )
    write_torch_file(checkpoint / "training_args.bin", arguments)


@pytest.fixture
def run(cli, tier: Path) -> Path:
    for step in (100, 200):
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    return tier / "hf"


@pytest.fixture
def policy(home: Path) -> Callable[..., None]:
    def write(text: str = "keep:\n  lustre: {last: 5}\n", *, runs: str = "hf") -> None:
        (home / "policies").mkdir(exist_ok=True)
        (home / "policies/one.yaml").write_text(f"policy: one\nruns: [{runs}]\n{text}")

    return write


def test_without_policies_nothing_of_retention_is_said(cli, run: Path) -> None:
    with opened() as context:
        names = {one.name for one in doctor(context) if one.severity != "ok"}
    assert not names & {"policies", "plans", "room", "retention"}


class TestPolicies:
    def test_runs_without_one_are_named(self, run: Path, policy: Callable) -> None:
        policy(runs="other")
        (one,) = found("policies")
        assert (one.severity, "1 runs have no policy" in one.text) == ("warning", True)
        assert one.text.endswith("hf")

    def test_one_that_is_wrong_is_a_failure(self, run: Path, policy: Callable) -> None:
        policy("keep: {lustre: {lst: 5}}\n")
        assert [one.severity for one in found("policies")] == ["failure"]

    def test_that_nobody_plans_is_told(self, run: Path, policy: Callable) -> None:
        policy()
        assert "nothing was planned" in warned("plans")

    def test_a_plan_of_this_week_is_enough(self, run: Path, policy: Callable) -> None:
        policy()
        stored(by_s=-6 * DAY_S)
        assert found("plans") == []

    def test_a_plan_of_last_week_is_not(self, run: Path, policy: Callable) -> None:
        policy()
        stored(by_s=-8 * DAY_S)
        assert found("plans")

    def test_where_a_service_plans_its_own_activity_tells(
        self, run: Path, policy: Callable
    ) -> None:
        policy()
        with opened(-DAY_S) as context:
            context.catalog.activities.declare("plan", every_s=3600.0, slo_s=6 * 3600.0)
        assert found("plans") == []
        assert "did not succeed ever" in warned("activity plan")

    def test_an_activity_in_time_or_turned_off_is_not_told(self, run: Path) -> None:
        with opened() as context:
            book = context.catalog.activities
            book.declare("plan", every_s=3600.0, slo_s=6 * 3600.0)
            book.declare("apply", every_s=0.0, slo_s=0.0)
        assert found("activity plan") == []
        assert found("activity apply") == []


class TestTrainersThatRotate:
    NAME = "run hf trainer-retention"

    def test_their_own_limit_is_read_and_told(self, cli, tier: Path, policy: Callable) -> None:
        write_hf_trainer(tier / "hf/checkpoint-100", 100)
        write_arguments(tier / "hf/checkpoint-100", save_total_limit=3)
        cli.done("tier", "add", "lustre", tier, "--ingest")
        cli.done("scan")
        policy()
        text = warned(self.NAME)
        assert "keeps the newest 3 itself" in text
        assert "policy one" in text

    @pytest.mark.parametrize("limit", [None, 0, -1, "3"])
    def test_no_limit_is_none(self, cli, tier: Path, policy: Callable, limit: object) -> None:
        write_hf_trainer(tier / "hf/checkpoint-100", 100)
        write_arguments(tier / "hf/checkpoint-100", save_total_limit=limit)
        cli.done("tier", "add", "lustre", tier, "--ingest")
        cli.done("scan")
        policy()
        assert found(self.NAME) == []

    def test_where_the_policy_keeps_by_no_rule_it_does_not_matter(
        self, cli, tier: Path, policy: Callable
    ) -> None:
        write_hf_trainer(tier / "hf/checkpoint-100", 100)
        write_arguments(tier / "hf/checkpoint-100", save_total_limit=3)
        cli.done("tier", "add", "lustre", tier, "--ingest")
        cli.done("scan")
        policy("floors: {min_restorable: 3}\n")
        assert found(self.NAME) == []

    def test_a_hostile_file_says_nothing_and_stops_nothing(
        self, cli, run: Path, policy: Callable
    ) -> None:
        (run / "checkpoint-200/training_args.bin").write_bytes(b"\x80\x04.")
        policy()
        assert found(self.NAME) == []

    def test_without_settings_what_is_gone_tells(
        self, cli, tier: Path, run: Path, policy: Callable
    ) -> None:
        write_hf_trainer(run / "checkpoint-300", 300)
        cli.done("scan")
        policy()
        shutil.rmtree(run / "checkpoint-100")
        cli.done("scan")
        assert found(self.NAME) == []  # one may be a mishap
        shutil.rmtree(run / "checkpoint-200")
        cli.done("scan")
        assert "2 of its newest" in warned(self.NAME)


class TestRoom:
    def test_above_a_watermark(
        self, run: Path, policy: Callable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        policy("capacity:\n  lustre: {high: 90%, low: 70%}\n")
        monkeypatch.setattr(capacity, "space_of", space(90 * GB))
        assert found("tier lustre watermark") == []
        monkeypatch.setattr(capacity, "space_of", space(91 * GB))
        assert "91 % full, above the 90 % of policy one" in warned("tier lustre watermark")

    @pytest.mark.parametrize(("days_left", "severity"), [(5, "warning"), (8, "ok")])
    def test_growth_is_told_and_a_warning_when_full_soon(
        self, run: Path, monkeypatch: pytest.MonkeyPatch, days_left: int, severity: str
    ) -> None:
        for day in range(5, -1, -1):
            used = (100 - days_left - day) * GB
            monkeypatch.setattr(capacity, "space_of", space(used))
            with opened(-DAY_S * day) as context:
                measure_capacity(context)
        (one,) = found("tier lustre growth")
        assert (one.severity, one.text) == (
            severity,
            f"grows 1.0 GB a day: full in {days_left} days",
        )

    def test_over_a_limit_with_nothing_to_evict_is_a_failure(self, run: Path) -> None:
        stored(over_bytes=5)
        (one,) = found("tier lustre limit")
        assert one.severity == "failure"
        assert "over a limit by 5 bytes" in one.text

    def test_a_tier_that_cannot_be_looked_at_is_told_once(self, run: Path, tmp_path: Path) -> None:
        run.parent.rename(tmp_path / "moved")
        with opened() as context:
            assert list(room_checks(context, ())) == []


class TestRemovals:
    @pytest.fixture
    def condemned(self, cli, run: Path) -> Callable[..., tuple[str, str, str]]:
        content_id = next(
            one["content_id"]
            for one in cli.json("list", "hf").json["checkpoints"]
            if one["name"] == "checkpoint-100"
        )

        def condemn(*, days_ago: float, size: int = 1) -> tuple[str, str, str]:
            with opened(-days_ago * DAY_S) as context:
                run_id = context.catalog.run_by_name("hf").identity.run_id
                place = context.place(context.settings.tiers[0]).uuid
                wanted = doomed_copy(content_id, place, trash_s=DAY_S, bytes=size, files=7)
                context.catalog.removals.condemn(run_id, [wanted], guard(), plan_id="sha256:0")
            return run_id, content_id, place

        return condemn

    def test_due_for_long_is_told(self, condemned: Callable) -> None:
        condemned(days_ago=1.5)
        assert "1 removals are due for more than a day" in warned("tier lustre removals")

    def test_due_since_today_is_not(self, condemned: Callable) -> None:
        condemned(days_ago=0.5)
        assert found("tier lustre removals") == []

    def test_what_resists_is_told_with_what_it_was(self, condemned: Callable) -> None:
        key = condemned(days_ago=1.5)
        with opened() as context:
            context.catalog.removals.resisted(*key, ".nfs0001 is busy")
        text = warned("tier lustre removals")
        assert "resist for more than a day" in text
        assert ".nfs0001 is busy" in text

    @pytest.mark.parametrize(("size", "is_told"), [(9 * GB, False), (11 * GB, True)])
    def test_much_trash_is_told(
        self, condemned: Callable, monkeypatch: pytest.MonkeyPatch, size: int, is_told: bool
    ) -> None:
        key = condemned(days_ago=0.5, size=size)
        with opened(-0.5 * DAY_S + 60) as context:
            context.catalog.removals.begin(*key, guard())
            context.catalog.removals.moved(*key, trash="x")
        monkeypatch.setattr(capacity, "space_of", space(50 * GB))
        assert bool(found("tier lustre trash")) is is_told


class TestLifecycleRules:
    """A store that tells its bucket's rules."""

    @pytest.fixture
    def bucket(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        def with_rules(*rules: dict[str, object], error: StorageError | None = None) -> None:
            def lifecycle_rules(_storage: PosixStorage) -> list[dict[str, object]]:
                if error is not None:
                    raise error
                return list(rules)

            monkeypatch.setattr(PosixStorage, "lifecycle_rules", lifecycle_rules, raising=False)
            for probe in (
                "probe_conditional_put",
                "probe_conditional_complete",
                "probe_checksums",
                "probe_list_order",
                "bucket_object_lock",
            ):
                monkeypatch.setattr(PosixStorage, probe, lambda _storage: False, raising=False)
            monkeypatch.setattr(
                PosixStorage, "bucket_versioning", lambda _storage: "off", raising=False
            )

        return with_rules

    @pytest.mark.parametrize(
        ("rule", "words"),
        [
            ({"Expiration": {"Days": 30}}, "rule r deletes objects"),
            ({"Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}, "rule r archives objects"),
            (
                {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}},
                "rule r deletes older versions of objects",
            ),
        ],
    )
    def test_each_that_takes_objects_is_told(
        self, bucket: Callable, rule: dict[str, object], words: str
    ) -> None:
        bucket({"ID": "r", "Status": "Enabled", **rule})
        assert words in warned("tier lustre lifecycle-rules")

    def test_those_that_take_nothing_are_not(self, bucket: Callable) -> None:
        bucket(
            {"ID": "off", "Status": "Disabled", "Expiration": {"Days": 1}},
            {"ID": "parts", "Status": "Enabled", "AbortIncompleteMultipartUpload": {"Days": 7}},
        )
        assert found("tier lustre lifecycle-rules") == []

    def test_that_the_store_does_not_tell_is_told(self, bucket: Callable) -> None:
        bucket(error=StorageError("access denied"))
        assert "access denied" in warned("tier lustre lifecycle-rules")


def stored(*, by_s: float = 0.0, over_bytes: int = 0) -> None:
    """Keep a plan as the planner would have made it."""
    outlook = TierOutlook(
        tier="lustre",
        node=None,
        used_bytes=0,
        limit_bytes=None,
        freed_bytes=0,
        freed_files=0,
        over_bytes=over_bytes,
    )
    with opened(by_s) as context:
        plan = Plan(
            plan_id="",
            now_ns=context.catalog.now_ns(),
            change_seq=0,
            policies=(),
            entries=(),
            tiers=(outlook,),
        )
        context.catalog.plans.put(with_id(plan), state=PlanState.PROPOSED, by="me")


class TestTheCatalogOnATier:
    def test_one_that_a_full_tier_would_stop_is_warned_of(self, run: Path, home: Path) -> None:
        assert str(home) in warned("tier lustre catalog")
        assert "nothing can be freed" in warned("tier lustre catalog")

    def test_one_on_another_file_system_is_not(
        self, run: Path, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stat = os.stat

        def elsewhere(path: object, **how: object) -> os.stat_result:
            told = stat(path, **how)
            if path != str(home / "catalog.sqlite"):
                return told
            return os.stat_result((told.st_mode, told.st_ino, told.st_dev + 1, *told[3:]))

        with opened() as context:
            monkeypatch.setattr("ckptgov.ops.doctor_room.os.stat", elsewhere)
            names = [one.name for one in room_checks(context, ())]
        assert "tier lustre catalog" not in names

    def test_one_in_a_database_is_not(self, run: Path) -> None:
        with opened() as context:
            assert context.catalog.identity()  # opened; it is asked of its settings alone
            url = "postgresql://db/ckptgov"
            context.settings = replace(context.settings, catalog_url=url)
            names = [one.name for one in room_checks(context, ())]
        assert "tier lustre catalog" not in names


@pytest.mark.parametrize(
    ("code", "text"),
    [(sqlite3.SQLITE_FULL, "database or disk is full"), (4874, "disk I/O error")],
)
def test_a_catalog_that_has_no_room_says_what_to_do(
    run: Path, monkeypatch: pytest.MonkeyPatch, code: int, text: str
) -> None:
    """The second one is what SQLite says where it cannot make its log's index larger."""

    def full(*_tick: object) -> None:
        error = sqlite3.OperationalError(text)
        error.sqlite_errorcode = code
        raise OperationalError("INSERT", None, error)

    with opened() as context:
        monkeypatch.setattr("ckptgov.catalog.ticks.tick", full)
        with pytest.raises(StorageError, match=f"catalog.sqlite: {text}") as raised:
            context.catalog.tick()
    assert "free room there" in raised.value.hint
    assert "move CKPTGOV_HOME" in raised.value.hint
