"""How full places are, what a sample of that says, and when a tier takes nothing more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptgov.errors import OverCapacity, StorageError
from ckptgov.governor import open_governor
from ckptgov.model.clock import SystemClock
from ckptgov.model.retention import Plan, PlanState, TierOutlook
from ckptgov.ops import capacity
from ckptgov.ops.capacity import TierFill, growth_at, measure_capacity, space_of, tier_facts
from ckptgov.ops.context import Context
from ckptgov.planning.retention_plan import with_id
from ckptgov.testing.builders import truncate, write_deepspeed, write_hf_trainer

DAY_NS = 86_400 * 10**9
GB = 10**9


@contextmanager
def opened(by_s: float = 0.0) -> Iterator[Context]:
    class Shifted(SystemClock):
        def now_ns(self) -> int:
            return super().now_ns() + int(by_s * 1e9)

    with open_governor(clock=Shifted()) as governor:
        yield governor.context


def facts() -> dict[str, TierFill]:
    with opened() as context:
        return {one.tier: one for one in tier_facts(context)}


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def run(cli, tier: Path) -> Path:
    for step in (100, 200):
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    truncate(write_hf_trainer(tier / "hf/checkpoint-300", 300) / "optimizer.pt", by_bytes=5)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    return tier / "hf"


class TestPlaces:
    def test_a_file_system_tells_all_that_is_in_use(self, run: Path) -> None:
        one = facts()["lustre"]
        found = os.statvfs(run)
        assert one.error is None
        assert one.total_bytes is not None
        assert one.free_bytes is not None
        assert abs(one.used_bytes - (found.f_blocks - found.f_bfree) * found.f_frsize) < GB
        assert one.total_bytes == one.used_bytes + one.free_bytes
        assert one.size_bytes == one.total_bytes
        assert one.room_bytes == one.free_bytes
        if found.f_files:
            assert one.size_files == pytest.approx(found.f_files, rel=0.2)

    def test_room_kept_for_root_is_nobodys(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """1000 blocks, 300 of them free, 50 of these for root only; inodes are not counted."""
        blocks = os.statvfs_result((4096, 4096, 1000, 300, 250, 0, 0, 0, 0, 255))
        monkeypatch.setattr(capacity.os, "statvfs", lambda _path: blocks)
        with opened() as context:
            space = space_of(context.settings.tiers[0])
        assert space is not None
        assert space.used_bytes == 700 * 4096
        assert space.free_bytes == 250 * 4096
        assert space.total_bytes == 950 * 4096
        assert (space.files, space.free_files) == (None, None)

    def test_under_a_quota_counts_what_the_catalog_knows_there(
        self, cli, run: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "s3").mkdir()
        cli.done("tier", "add", "s3", tmp_path / "s3", "--quota", "1GB")
        cli.done("flush", "hf", "--to", "s3", "--step", "100")
        one = facts()["s3"]
        assert one.used_bytes == size_of(run / "checkpoint-100")
        assert (one.quota_bytes, one.size_bytes) == (GB, GB)
        assert one.room_bytes == GB - one.used_bytes

    def test_a_torn_save_counts_too(self, cli, run: Path, home: Path) -> None:
        config = home / "ckptgov.yaml"
        config.write_text(config.read_text().replace("ingest: true", "ingest: true, quota: 1GB"))
        assert facts()["lustre"].used_bytes == size_of(run) - size_of(run / ".ckptgov")

    def test_a_nodes_part_counts_for_what_lies_there(self, cli, tmp_path: Path) -> None:
        for rank, node in enumerate(("a", "b")):
            write_deepspeed(tmp_path / f"{node}/run", 10, world_size=2, ranks=[rank])
            words = ("--scope", "node", "--node", node, "--ingest", "--quota", "1GB")
            cli.done("tier", "add", "nvme", tmp_path / node, *words)
        cli.done("scan")
        with opened() as context:
            for one in tier_facts(context):
                held = size_of(tmp_path / str(one.node) / "run/global_step10")
                assert one.used_bytes == held

    def test_one_that_is_away_tells_no_figures_and_leaves_no_sample(
        self, run: Path, tmp_path: Path
    ) -> None:
        run.parent.rename(tmp_path / "moved")
        one = facts()["lustre"]
        assert one.error is not None
        assert (one.used_bytes, one.free_bytes, one.size_bytes) == (0, None, None)
        with opened() as context:
            assert measure_capacity(context) == ()
            assert context.catalog.samples.newest() == ()

    def test_another_disk_in_its_place_is_not_measured(self, run: Path) -> None:
        (run.parent / ".ckptgov-tier.json").unlink()
        assert facts()["lustre"].error is not None

    def test_a_file_system_that_does_not_answer_is_told(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_path: str) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(capacity.os, "statvfs", refuse)
        assert isinstance(facts()["lustre"].error, StorageError)


class TestGrowth:
    def test_samples_are_kept_and_tell_when_it_is_full(
        self, cli, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        used = 100 * GB

        def space(_tier: object) -> capacity.Space:
            return capacity.Space(
                used_bytes=used,
                free_bytes=200 * GB - used,
                total_bytes=200 * GB,
                size_bytes=200 * GB,
                files=None,
                free_files=None,
            )

        monkeypatch.setattr(capacity, "space_of", space)
        for day in range(5, -1, -1):
            used = (150 - 10 * day) * GB
            with opened(-86_400.0 * day) as context:
                (sample,) = measure_capacity(context)
            assert sample.used_bytes == used
        with opened() as context:
            told = growth_at(context, tier_facts(context)[0])
        assert told is not None
        assert told.bytes_per_day == pytest.approx(10 * GB, rel=0.01)
        assert told.full_in_days == pytest.approx(5.0, rel=0.01)
        lines = cli("du").err
        assert "grows 9.3 GiB a day" in lines
        assert "full in 5 days" in lines
        (usage,) = cli.json("du").json["tiers"]
        assert usage["full_in_days"] == pytest.approx(5.0, rel=0.01)

    def test_what_was_counted_otherwise_before_a_quota_is_left_out(
        self, run: Path, monkeypatch: pytest.MonkeyPatch, home: Path
    ) -> None:
        for hours in range(48, -1, -6):
            with opened(-3600.0 * hours) as context:
                measure_capacity(context)
        config = home / "ckptgov.yaml"
        config.write_text(config.read_text().replace("ingest: true", "ingest: true, quota: 1GB"))
        with opened() as context:
            assert growth_at(context, tier_facts(context)[0]) is None


class TestAdmission:
    """A tier that is over a limit of its policies, and nothing there may go."""

    @pytest.fixture
    def tiers(self, cli, run: Path, tmp_path: Path) -> Path:
        (tmp_path / "s3").mkdir()
        cli.done("tier", "add", "s3", tmp_path / "s3")
        cli.done("flush", "hf", "--to", "s3", "--step", "100")
        return tmp_path / "s3"

    @pytest.fixture
    def policy(self, home: Path) -> Callable[[str], None]:
        def write(capacity: str) -> None:
            (home / "policies").mkdir(exist_ok=True)
            text = f"policy: tight\nruns: [hf]\ncapacity:\n  s3: {{{capacity}}}\n"
            (home / "policies/tight.yaml").write_text(text)

        return write

    @pytest.fixture
    def planned(self) -> Callable[..., None]:
        """Stores a plan as the planner would have made it."""

        def store(*, by_s: float = 0.0, over_bytes: int = 0, over_files: int = 0) -> None:
            with opened(by_s) as context:
                outlook = TierOutlook(
                    tier="s3",
                    node=None,
                    used_bytes=10**6,
                    limit_bytes=1,
                    freed_bytes=0,
                    freed_files=0,
                    over_bytes=over_bytes,
                    over_files=over_files,
                )
                plan = Plan(
                    plan_id="",
                    now_ns=context.catalog.now_ns(),
                    change_seq=0,
                    policies=(),
                    entries=(),
                    tiers=(outlook,),
                )
                context.catalog.plans.put(with_id(plan), state=PlanState.PROPOSED, by="me")

        return store

    def flushed(self, cli, tiers: Path) -> int:
        code = cli("flush", "hf", "--to", "s3", "--step", "200").code
        assert ((tiers / "hf/checkpoint-200").exists()) is (code == 0)
        assert code in (0, 10)
        return code

    def test_above_its_quota_nothing_of_the_policy_is_taken(
        self, cli, tiers: Path, policy: Callable, planned: Callable
    ) -> None:
        policy("quota: 1kB")
        planned(over_bytes=5)
        assert self.flushed(cli, tiers) == 10

    def test_the_refusal_says_what_holds_it_and_what_to_do(
        self, cli, tiers: Path, policy: Callable, planned: Callable
    ) -> None:
        policy("quota: 1kB")
        planned(over_bytes=5)
        told = cli("flush", "hf", "--to", "s3", "--step", "200").err
        assert "quota of 1000" in told
        assert "nothing was written" in told
        assert "'ckptgov plan' tells" in told

    def test_a_quota_of_files_holds_too(
        self, cli, tiers: Path, policy: Callable, planned: Callable
    ) -> None:
        policy("files: 2")
        planned(over_files=5)
        assert self.flushed(cli, tiers) == 10

    def test_what_the_plan_brings_below_the_limit_refuses_nothing(
        self, cli, tiers: Path, policy: Callable, planned: Callable
    ) -> None:
        policy("quota: 1kB")
        planned(over_bytes=0)
        assert self.flushed(cli, tiers) == 0

    def test_a_plan_from_before_yesterday_is_not_believed(
        self, cli, tiers: Path, policy: Callable, planned: Callable
    ) -> None:
        policy("quota: 1kB")
        planned(by_s=-90_000.0, over_bytes=5)
        assert self.flushed(cli, tiers) == 0

    def test_once_enough_went_the_plan_is_not_believed(
        self, cli, tiers: Path, policy: Callable, planned: Callable
    ) -> None:
        policy("quota: 1GB")
        planned(over_bytes=5)
        assert self.flushed(cli, tiers) == 0

    def test_another_policys_quota_is_not_ours(
        self, cli, tiers: Path, home: Path, planned: Callable
    ) -> None:
        (home / "policies").mkdir()
        text = "policy: tight\nruns: [other]\ncapacity:\n  s3: {quota: 1kB}\n"
        (home / "policies/tight.yaml").write_text(text)
        planned(over_bytes=5)
        assert self.flushed(cli, tiers) == 0

    @pytest.mark.parametrize(("percent_full", "code"), [(89, 0), (91, 10)])
    def test_above_the_high_watermark_nobody_is_taken(
        self,
        cli,
        tiers: Path,
        policy: Callable,
        planned: Callable,
        monkeypatch: pytest.MonkeyPatch,
        percent_full: int,
        code: int,
    ) -> None:
        def space(_tier: object) -> capacity.Space:
            return capacity.Space(
                used_bytes=percent_full * GB,
                free_bytes=(100 - percent_full) * GB,
                total_bytes=100 * GB,
                size_bytes=100 * GB,
                files=None,
                free_files=None,
            )

        policy("high: 90%, low: 70%")
        planned(over_bytes=GB)
        monkeypatch.setattr(capacity, "space_of", space)
        assert self.flushed(cli, tiers) == code

    def test_a_watermark_of_files_holds_too(
        self,
        cli,
        tiers: Path,
        policy: Callable,
        planned: Callable,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def space(_tier: object) -> capacity.Space:
            return capacity.Space(
                used_bytes=GB,
                free_bytes=99 * GB,
                total_bytes=100 * GB,
                size_bytes=100 * GB,
                files=950,
                free_files=50,
            )

        policy("high: 90%, low: 70%")
        planned(over_files=50)
        monkeypatch.setattr(capacity, "space_of", space)
        assert self.flushed(cli, tiers) == 10

    def test_the_error_is_one_of_capacity(
        self, tiers: Path, policy: Callable, planned: Callable
    ) -> None:
        from ckptgov.ops.room import room_at

        policy("quota: 1kB")
        planned(over_bytes=5)
        with opened() as context:
            s3 = next(one for one in context.settings.tiers if one.name == "s3")
            with pytest.raises(OverCapacity):
                room_at(context, s3, 10, run="hf")
            assert room_at(context, s3, 10, run="other")[0].fits
            assert room_at(context, s3, 10)[0].fits
