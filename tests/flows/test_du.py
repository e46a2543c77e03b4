"""What takes room: by tier, run and state; left-overs apart; nothing unseen counted as nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.errors import PartlyDone, StorageError, UnknownRun, UsageError
from ckptgov.governor import open_governor
from ckptgov.model.settings import TierSettings
from ckptgov.model.usage import DuAnswer, LeftKind, TierUsage
from ckptgov.ops.context import Context
from ckptgov.ops.du import du
from ckptgov.ops.room import room_at
from ckptgov.planning.room import Bound
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import truncate, write_deepspeed, write_hf_trainer
from ckptgov.wire.usage import du as document

DIGITS = "ab" * 32
TEMPORARY = ".ckptgov-tmp-d0123456789abcdef-1"


@contextmanager
def opened() -> Iterator[Context]:
    with open_governor() as governor:
        yield governor.context


def measured(**only: str) -> DuAnswer:
    with opened() as context:
        return du(context, **only)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def states(usage: TierUsage) -> dict[tuple[str, str], tuple[int, int]]:
    return {(one.run, one.state): (one.checkpoints, one.bytes) for one in usage.states}


def left(usage: TierUsage) -> dict[tuple[str | None, str], tuple[int, int]]:
    return {(one.run, one.kind.value): (one.items, one.bytes) for one in usage.left}


def put(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


@pytest.fixture
def run(cli, tier: Path) -> Path:
    """Two checkpoints whole, one torn."""
    for step in (100, 200):
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    truncate(write_hf_trainer(tier / "hf/checkpoint-300", 300) / "optimizer.pt", by_bytes=5)
    cli.done("scan", tier / "hf")
    return tier / "hf"


class TestCheckpoints:
    def test_bytes_are_told_by_run_and_state(self, run: Path) -> None:
        (usage,) = measured().tiers
        whole = sum(size_of(run / f"checkpoint-{step}") for step in (100, 200))
        torn = size_of(run / "checkpoint-300")
        assert states(usage) == {("hf", "verified"): (2, whole), ("hf", "unsealed"): (1, torn)}
        assert usage.checkpoint_bytes == whole + torn

    def test_a_lost_copy_takes_no_bytes(self, cli, run: Path) -> None:
        shutil.rmtree(run / "checkpoint-100")
        cli.done("scan", run)
        (usage,) = measured().tiers
        assert states(usage)["hf", "lost"] == (1, 0)

    def test_a_nodes_half_counts_for_what_lies_there(self, cli, tmp_path: Path) -> None:
        for rank, node in enumerate(("a", "b")):
            write_deepspeed(tmp_path / f"{node}/run", 10, world_size=2, ranks=[rank])
            words = ("--scope", "node", "--node", node, "--ingest")
            cli.done("tier", "add", "nvme", tmp_path / node, *words)
        cli.done("scan")
        for usage in measured().tiers:
            held = size_of(tmp_path / str(usage.node) / "run/global_step10")
            assert held > 0
            assert [one.bytes for one in usage.states] == [held], states(usage)

    def test_one_run_and_one_tier_can_be_asked_for(self, cli, run: Path) -> None:
        write_hf_trainer(run.parent / "other/checkpoint-1", 1)
        put(run.parent / "other/.ckptgov" / TEMPORARY, 7)
        put(run.parent / TEMPORARY, 7)
        cli.done("scan", run.parent / "other")
        answer = measured(run="hf", tier="hf")
        assert {one.run for usage in answer.tiers for one in usage.states} == {"hf"}
        assert not [one for usage in answer.tiers for one in usage.left]

    def test_an_unknown_run_or_tier_is_an_error(self, run: Path) -> None:
        with pytest.raises(UnknownRun):
            measured(run="nope")
        with pytest.raises(UsageError):
            measured(tier="nope")


class TestLeftOvers:
    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("tmp-checkpoint-400/model.safetensors", LeftKind.FRAMEWORK_STAGING),
            (f".ckptgov/staging/{DIGITS}/deep/shard", LeftKind.STAGING),
            (f".ckptgov/held/{DIGITS}/shard", LeftKind.HELD),
            (".ckptgov/trash/2026-01-01/checkpoint-1/shard", LeftKind.TRASH),
            (f".ckptgov/manifests/{TEMPORARY}", LeftKind.PENDING),
        ],
    )
    def test_each_kind_is_told_apart_from_checkpoints(
        self, run: Path, path: str, kind: LeftKind
    ) -> None:
        before = measured().tiers[0].checkpoint_bytes
        put(run / path, 70)
        (usage,) = measured().tiers
        assert left(usage) == {("hf", kind.value): (1, 70)}
        assert usage.left_bytes(kind) == 70
        assert usage.checkpoint_bytes == before

    def test_what_is_being_delivered_into_staging_counts_once(self, run: Path) -> None:
        put(run / f".ckptgov/staging/{DIGITS}/shard", 70)
        put(run / f".ckptgov/staging/{DIGITS}/{TEMPORARY}", 30)
        (usage,) = measured().tiers
        assert left(usage) == {("hf", "staging"): (1, 70), ("hf", "pending"): (1, 30)}

    def test_a_held_shard_counts_once_its_trainer_removed_it(self, run: Path) -> None:
        shard = put(run / "some.bin", 70)
        held = run / f".ckptgov/held/{DIGITS}/some.bin"
        held.parent.mkdir(parents=True)
        os.link(shard, held)
        assert measured().tiers[0].left_bytes(LeftKind.HELD) == 0
        shard.unlink()
        assert measured().tiers[0].left_bytes(LeftKind.HELD) == 70

    def test_what_lies_in_no_run_bears_none(self, cli, tier: Path) -> None:
        cli.done("tier", "add", "lustre", tier)
        put(tier / "elsewhere" / TEMPORARY, 9)
        (usage,) = measured().tiers
        assert left(usage) == {(None, "pending"): (1, 9)}


class TestWhatCannotBeSeen:
    def test_a_tier_that_is_away_is_told_and_not_counted_as_empty(
        self, cli, run: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        cli.done("tier", "add", "other", tmp_path / "other")
        run.rename(tmp_path / "moved")
        answer = measured()
        assert isinstance(answer.error, PartlyDone)
        told = {one["tier"]: one for one in document(answer)["tiers"]}
        assert told["hf"]["left"] is None
        assert told["hf"]["free_bytes"] is None
        assert "no such directory" in told["hf"]["unreachable"]
        assert told["other"]["left"] == []
        assert told["other"]["unreachable"] is None
        assert document(answer)["error"]["exit_code"] == 3

    def test_another_disk_at_its_root_is_not_counted_either(self, run: Path) -> None:
        (run / ".ckptgov-tier.json").unlink()
        answer = measured()
        assert answer.tiers[0].error is not None
        assert isinstance(answer.error, PartlyDone)

    def test_a_directory_that_may_not_be_read_is_a_failure(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: PosixStorage, directory: str) -> None:
            raise StorageError(f"{directory}: not today")

        monkeypatch.setattr(PosixStorage, "pending", refuse)
        answer = measured()
        assert [what for what, _ in answer.tiers[0].failures] == ["pending deliveries"]
        assert isinstance(answer.error, PartlyDone)

    def test_the_file_systems_figures_are_told(self, run: Path) -> None:
        (usage,) = measured().tiers
        figures = os.statvfs(run)
        assert usage.total_bytes == figures.f_blocks * figures.f_frsize
        assert usage.free_bytes is not None
        assert 0 < usage.free_bytes <= usage.total_bytes


class TestRoom:
    @pytest.fixture
    def room(self, run: Path) -> Callable[..., object]:
        def ask(needed_bytes: int, quota_bytes: int | None, **more: int) -> object:
            with opened() as context:
                (tier,) = context.settings.tiers
                wanted: TierSettings = replace(tier, quota_bytes=quota_bytes)
                return room_at(context, wanted, needed_bytes, **more)

        return ask

    def test_a_quota_counts_checkpoints_and_what_a_failed_save_left(
        self, run: Path, room: Callable
    ) -> None:
        """The disk looks half empty; the quota is what refuses."""
        whole = sum(size_of(run / f"checkpoint-{step}") for step in (100, 200))
        torn = size_of(run / "checkpoint-300")
        verdict, debris = room(1000, whole + torn + 999)
        assert (verdict.bound, verdict.room_bytes, verdict.fits) == (Bound.QUOTA, 999, False)
        assert verdict.fits_without_debris
        assert [(one.path, one.bytes) for one in debris] == [("checkpoint-300", torn)]

    def test_it_fits_to_the_byte_less_what_flows_under_way_need(
        self, run: Path, room: Callable
    ) -> None:
        used = sum(size_of(run / f"checkpoint-{step}") for step in (100, 200, 300))
        assert room(1000, used + 1000)[0].fits
        assert not room(1000, used + 1000, reserved_bytes=1)[0].fits

    def test_without_a_quota_the_file_system_decides(self, run: Path, room: Callable) -> None:
        assert room(1, None)[0].fits
        verdict, debris = room(2**62, None)
        assert verdict.bound is Bound.FREE_SPACE
        assert not verdict.fits
        assert [one.path for one in debris] == ["checkpoint-300"]

    def test_left_overs_that_cannot_be_seen_are_no_room(
        self, run: Path, room: Callable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: PosixStorage, directory: str) -> None:
            raise StorageError(f"{directory}: not today")

        monkeypatch.setattr(PosixStorage, "pending", refuse)
        with pytest.raises(StorageError):
            room(1, 10**9)
