"""Catalog and tiers brought together; what dead movers left goes, what is in use never does.

"Long ago" is made of two things here: files that are dated back, and an earlier look by a catalog
whose clock stood so far behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.errors import PartlyDone, RefusedBySafety, StorageError, UsageError
from ckptgov.governor import open_governor
from ckptgov.model.clock import SystemClock
from ckptgov.model.files import FileStat
from ckptgov.model.pacing import FlowClass, FlowRequest
from ckptgov.model.usage import (
    Fate,
    Leftover,
    LeftoverKind,
    LeftoverReason,
    ReconcileAnswer,
)
from ckptgov.ops import sweep
from ckptgov.ops.context import Context
from ckptgov.ops.copy_lease import copy_lease
from ckptgov.ops.reconcile import reconcile
from ckptgov.storage.contract import PendingDelivery
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import write_hf_trainer
from ckptgov.wire.usage import reconciled as document

DAY_S = 86400.0
STRANGE = "ab" * 32
TEMPORARY = ".ckptgov-tmp-d0123456789abcdef-1"


class Shifted(SystemClock):
    """The machine's clock, so many days off."""

    def __init__(self, days: float) -> None:
        self.days = days

    def now_ns(self) -> int:
        return super().now_ns() + int(self.days * DAY_S * 1e9)


@contextmanager
def opened(days: float = 0.0) -> Iterator[Context]:
    with open_governor(clock=Shifted(days)) as governor:
        yield governor.context


def done(*, days: float = 0.0, **how: object) -> ReconcileAnswer:
    with opened(days) as context:
        return reconcile(context, **how)


def seen(days_ago: float = 3.1) -> None:
    """An earlier look, which removes nothing of what is too young then."""
    assert {one.fate for one in left_by(done(days=-days_ago)).values()} == {Fate.KEPT}


def left_by(answer: ReconcileAnswer) -> dict[str, Leftover]:
    return {one.path: one for tier in answer.tiers for one in tier.leftovers}


def put(path: Path, size: int = 10, *, days_ago: float = 0) -> Path:
    """A file as a mover left it so many days ago, with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    age(path, days_ago)
    return path


def age(path: Path, days_ago: float) -> None:
    at = time.time() - days_ago * DAY_S
    for each in (path, path.parent):
        os.utime(each, (at, at))


@pytest.fixture
def run(cli, tier: Path) -> Path:
    """A run with one checkpoint, sealed, on a tier that is scanned."""
    write_hf_trainer(tier / "hf/checkpoint-100", 100)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    return tier / "hf"


@pytest.fixture
def content(cli, run: Path) -> str:
    return cli.json("latest", "hf").json["content_id"]


@pytest.fixture
def staged(run: Path) -> Callable[..., Path]:
    """Leaves a staging directory with a shard and a temporary file behind."""

    def leave(content_id: str, *, days_ago: float = 0) -> Path:
        directory = run / ".ckptgov/staging" / content_id.removeprefix("sha256:")
        put(directory / "model.safetensors", 100, days_ago=days_ago)
        put(directory / TEMPORARY, 50, days_ago=days_ago)
        return directory

    return leave


class TestStaging:
    def test_it_goes_at_once_where_its_checkpoint_is_whole(
        self, run: Path, content: str, staged: Callable
    ) -> None:
        directory = staged(content)
        (one,) = left_by(done()).values()
        assert (one.kind, one.fate) == (LeftoverKind.STAGING, Fate.REMOVED)
        assert one.reason is LeftoverReason.SUPERFLUOUS
        assert (one.run, one.checkpoint, one.bytes) == ("hf", "checkpoint-100", 150)
        assert not directory.exists()

    def test_a_fresh_one_of_another_checkpoint_stays(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE, days_ago=6.9)
        (one,) = left_by(done()).values()
        assert (one.fate, one.reason) == (Fate.KEPT, LeftoverReason.FRESH)
        assert (directory / TEMPORARY).exists()

    def test_an_old_one_goes(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE, days_ago=7.1)
        seen()
        (one,) = left_by(done()).values()
        assert (one.fate, one.reason) == (Fate.REMOVED, LeftoverReason.OLD)
        assert one.age_s > 7 * DAY_S
        assert not directory.exists()

    def test_how_old_is_said_by_the_operator(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE, days_ago=2)
        seen(days_ago=1.1)
        done(older_than_s=DAY_S)
        assert not directory.exists()

    def test_no_age_at_all_goes_at_the_first_look(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE)
        (one,) = left_by(done(older_than_s=0.0)).values()
        assert (one.fate, one.reason) == (Fate.REMOVED, LeftoverReason.OLD)
        assert not directory.exists()

    def test_one_new_shard_is_a_sign_of_life(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE, days_ago=30)
        (directory / "model-2.safetensors").write_bytes(b"new")
        (one,) = left_by(done()).values()
        assert one.fate is Fate.KEPT

    def test_a_time_in_the_future_is_no_age(self, run: Path, staged: Callable) -> None:
        staged(STRANGE, days_ago=-30)
        (one,) = left_by(done(older_than_s=1.0)).values()
        assert (one.fate, one.age_s) == (Fate.KEPT, 0.0)

    def test_one_whose_checkpoint_is_only_half_here_is_not_superfluous(
        self, run: Path, content: str, staged: Callable
    ) -> None:
        (run / "checkpoint-100/optimizer.pt").unlink()
        directory = staged(content)
        (one,) = left_by(done()).values()
        assert (one.fate, one.reason) == (Fate.KEPT, LeftoverReason.FRESH)
        assert directory.exists()

    def test_a_symlink_in_it_goes_and_what_it_leads_to_stays(
        self, run: Path, content: str, staged: Callable, tmp_path: Path
    ) -> None:
        outside = put(tmp_path / "outside/precious")
        directory = staged(content)
        (directory / "file").symlink_to(outside)
        (directory / "dir").symlink_to(outside.parent)
        done()
        assert not directory.exists()
        assert outside.exists()


class TestByAge:
    """Its own times alone prove nothing: they may have come with it, or a clock be wrong."""

    @pytest.fixture
    def stale(self, run: Path, staged: Callable) -> Path:
        """Seen three days ago as it is now, and old by its times."""
        directory = staged(STRANGE, days_ago=8)
        seen()
        return directory

    def kept(self, answer: ReconcileAnswer) -> str:
        (one,) = left_by(answer).values()
        assert (one.fate, one.reason) == (Fate.KEPT, LeftoverReason.FRESH)
        return one.text

    def test_what_is_seen_for_the_first_time_stays(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE, days_ago=30)
        assert "first seen now; goes at a later look" in self.kept(done())
        assert "seen unchanged for 0.0 days; goes after 3" in self.kept(done())
        assert (directory / TEMPORARY).exists()

    def test_two_looks_are_three_days_apart(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE, days_ago=30)
        done(days=-2.9)
        assert "seen unchanged for 2.9 days" in self.kept(done())
        assert directory.exists()

    def test_a_change_that_no_time_shows_begins_anew(self, stale: Path) -> None:
        put(stale / "model-2.safetensors", days_ago=8)
        assert "first seen now" in self.kept(done())
        assert stale.exists()

    def test_a_part_that_arrived_between_two_looks_begins_anew(self, run: Path) -> None:
        path = put(run / ".ckptgov/manifests" / TEMPORARY, 10, days_ago=8)
        seen()
        put(path, 20, days_ago=8)
        assert "first seen now" in self.kept(done())
        assert path.exists()

    def test_what_was_in_use_meanwhile_begins_anew(self, stale: Path) -> None:
        with open(stale / TEMPORARY, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            done()
        assert "first seen now" in self.kept(done())
        assert stale.exists()

    def test_a_dry_run_is_no_look(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE, days_ago=30)
        done(days=-4, dry_run=True)
        assert "first seen now" in self.kept(done())
        assert directory.exists()

    def test_looks_at_other_things_forget_nothing(self, run: Path, stale: Path) -> None:
        """Orphans and trainers' left-overs are remembered too."""
        put(run.parent / "old-exports/x.bin", days_ago=9)
        for _ in range(2):
            answer = done(dry_run=True)
            assert [one.fate for one in left_by(answer).values()] == [Fate.WOULD_GO]

    @pytest.mark.parametrize("days", [8, 0.01])
    def test_a_clock_that_storage_does_not_share_removes_nothing(
        self, cli, run: Path, content: str, stale: Path, staged: Callable, days: float
    ) -> None:
        """As somebody met it: a delivery of that second went, the clock being eight days ahead."""
        superfluous = staged(content)
        answer = done(days=days)
        ((what, refusal),) = answer.tiers[0].failures
        assert what == "left-overs"
        assert isinstance(refusal, RefusedBySafety)
        assert "ahead of the time that storage stamps; nothing was removed" in refusal.message
        assert isinstance(answer.error, PartlyDone)
        assert (stale.exists(), superfluous.exists()) == (True, True)
        assert not list(run.parent.rglob("*clock-*"))
        assert cli("reconcile").code == 0, "the time that was wrong is not remembered"
        assert (stale.exists(), superfluous.exists()) == (False, False)

    def test_it_keeps_no_other_tier_from_being_done(
        self, cli, run: Path, stale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One of two file servers has the wrong time."""
        write_hf_trainer(tmp_path / "two/hf2/checkpoint-1", 1)
        cli.done("tier", "add", "two", tmp_path / "two", "--ingest")
        cli.done("scan")
        other = put(tmp_path / "two/hf2/.ckptgov/staging" / STRANGE / "x", days_ago=8)
        age(other.parent, 8)
        done(days=-3.1)
        stat = PosixStorage.stat

        def wrong(storage: PosixStorage, path: str) -> FileStat:
            told = stat(storage, path)
            if "clock-" in path and "hf2" not in path:
                return replace(told, mtime_ns=told.mtime_ns - 10**12)
            return told

        monkeypatch.setattr(PosixStorage, "stat", wrong)
        answer = done()
        assert [len(one.failures) for one in answer.tiers] == [1, 0]
        assert (stale.exists(), other.exists()) == (True, False)

    def test_a_clock_that_went_back_removes_nothing(self, stale: Path) -> None:
        with opened(days=1) as context:
            context.catalog.tick()
        answer = done()
        ((_what, refusal),) = answer.tiers[0].failures
        assert isinstance(refusal, RefusedBySafety)
        assert "went back" in refusal.message
        assert stale.exists()

    def test_no_clock_is_asked_where_nothing_goes_by_age(
        self, run: Path, content: str, staged: Callable
    ) -> None:
        directory = staged(content)
        assert done(days=8).error is None
        assert not directory.exists()

    def test_the_clock_is_compared_where_no_run_lies(self, run: Path) -> None:
        foreign = put(run.parent / "elsewhere" / TEMPORARY, days_ago=8)
        seen()
        answer = done(days=8)
        assert isinstance(answer.tiers[0].failures[0][1], RefusedBySafety)
        assert foreign.exists()
        assert done().error is None
        assert not foreign.exists()
        assert not list(run.parent.rglob("*clock-*"))

    def test_what_changes_just_before_it_goes_stays(
        self, stale: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This process was stopped, and a mover came and was stopped in its turn."""
        compare = sweep.require_same_time

        def late(*where: object, **how: object) -> None:
            put(stale / "model-2.safetensors")
            compare(*where, **how)

        monkeypatch.setattr(sweep, "require_same_time", late)
        assert self.kept(done()) == "changed just now"
        assert (stale / "model.safetensors").exists()


class TestInUse:
    """Never removed, however old, whatever else speaks for it."""

    def kept(self, older_than_s: float = 0.0) -> LeftoverReason:
        (one,) = left_by(done(older_than_s=older_than_s)).values()
        assert one.fate is Fate.KEPT, one
        return one.reason

    def test_a_file_that_a_living_process_has_locked(
        self, run: Path, content: str, staged: Callable
    ) -> None:
        directory = staged(content, days_ago=100)
        with open(directory / TEMPORARY, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert self.kept() is LeftoverReason.HELD
        assert directory.exists()

    @pytest.mark.parametrize("is_whole", [True, False])
    def test_a_checkpoint_whose_delivery_is_leased(
        self, run: Path, content: str, staged: Callable, is_whole: bool
    ) -> None:
        wanted = content if is_whole else f"sha256:{STRANGE}"
        directory = staged(wanted, days_ago=100)
        with opened() as context:
            place = context.place(context.settings.tiers[0])
            with copy_lease(context, wanted, place.uuid or ""):
                assert self.kept() is LeftoverReason.IN_FLIGHT
        assert directory.exists()

    def test_a_checkpoint_that_a_flow_brings(
        self, run: Path, content: str, staged: Callable
    ) -> None:
        """A mover that was stopped past its lease still has its flow."""
        directory = staged(content, days_ago=100)
        request = FlowRequest(
            flow_id="f1",
            what="hf checkpoint-100",
            flow_class=FlowClass.DURABLE,
            source=None,
            target="lustre",
            node="n",
            bytes=1,
        )
        with opened() as context, context.desk.open(request):
            assert self.kept() is LeftoverReason.IN_FLIGHT
        assert directory.exists()
        done()
        assert not directory.exists()

    def test_a_run_that_could_not_be_looked_at(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE, days_ago=100)
        (run / ".ckptgov/journal/99999999.rollback.json").write_bytes(b"{")
        answer = done(older_than_s=0.0)
        (one,) = left_by(answer).values()
        assert (one.fate, one.reason) == (Fate.KEPT, LeftoverReason.UNKNOWN_RUN_STATE)
        assert isinstance(answer.error, PartlyDone)
        assert directory.exists()

    def test_a_run_that_the_catalog_does_not_know(self, run: Path, staged: Callable) -> None:
        directory = staged(STRANGE, days_ago=100)
        with opened() as context:
            context.catalog.wipe_facts()
        assert self.kept() is LeftoverReason.UNKNOWN_RUN_STATE
        assert directory.exists()

    def test_a_tier_that_another_catalog_governs(
        self, cli, run: Path, staged: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory = staged(STRANGE, days_ago=100)
        (tmp_path / "home2").mkdir()
        monkeypatch.setenv("CKPTGOV_HOME", str(tmp_path / "home2"))
        cli.done("tier", "add", "lustre", run.parent, "--ingest")
        cli.done("scan")
        assert self.kept() is LeftoverReason.UNKNOWN_RUN_STATE
        assert directory.exists()


class TestDeliveries:
    def test_an_old_temporary_file_of_ours_goes_and_a_fresh_one_stays(self, run: Path) -> None:
        old = put(run / ".ckptgov/manifests" / TEMPORARY, days_ago=8)
        fresh = put(run / ".ckptgov/receipts" / TEMPORARY)
        seen()
        told = left_by(done())
        assert told[f"hf/.ckptgov/manifests/{TEMPORARY}"].fate is Fate.REMOVED
        assert told[f"hf/.ckptgov/receipts/{TEMPORARY}"].fate is Fate.KEPT
        assert (old.exists(), fresh.exists()) == (False, True)

    def test_what_lies_in_no_run_is_told_as_foreign(self, run: Path) -> None:
        old = put(run.parent / "elsewhere" / TEMPORARY, days_ago=8)
        fresh = put(run.parent / "beside" / TEMPORARY)
        seen()
        told = left_by(done())
        assert {one.run for one in told.values()} == {None}
        assert (old.exists(), fresh.exists()) == (False, True)

    def test_a_checkpoint_itself_is_never_touched(self, run: Path, cli) -> None:
        before = sorted(path.name for path in (run / "checkpoint-100").iterdir())
        age(run / "checkpoint-100/config.json", 1000)
        done(older_than_s=0.0)
        assert sorted(path.name for path in (run / "checkpoint-100").iterdir()) == before

    def test_what_storage_still_lists_is_removed_again_and_then_told(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(run / ".ckptgov/manifests" / TEMPORARY, days_ago=8)
        seen()
        tries: list[PendingDelivery] = []
        monkeypatch.setattr(PosixStorage, "forget", lambda _, pending: tries.append(pending))
        answer = done()
        (one,) = left_by(answer).values()
        assert one.fate is Fate.STILL_THERE
        assert len(tries) == 3
        assert isinstance(answer.error, PartlyDone)
        assert answer.error.exit_code == 3

    def test_one_that_goes_at_the_second_try_is_gone(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Parts that arrive while an upload is aborted bring it back."""
        path = put(run / ".ckptgov/manifests" / TEMPORARY, days_ago=8)
        seen()
        tries: list[PendingDelivery] = []
        forget = PosixStorage.forget

        def late(storage: PosixStorage, pending: PendingDelivery) -> None:
            tries.append(pending)
            if len(tries) == 2:
                forget(storage, pending)

        monkeypatch.setattr(PosixStorage, "forget", late)
        answer = done()
        assert answer.error is None
        assert not path.exists()

    def test_one_that_cannot_be_removed_does_not_keep_the_others(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bad = put(run / ".ckptgov/manifests" / TEMPORARY, days_ago=8)
        good = put(run / ".ckptgov/receipts" / TEMPORARY, days_ago=8)
        seen()
        forget = PosixStorage.forget

        def picky(storage: PosixStorage, pending: PendingDelivery) -> None:
            if "manifests" in pending.path:
                raise StorageError("not today")
            forget(storage, pending)

        monkeypatch.setattr(PosixStorage, "forget", picky)
        told = left_by(done())
        assert told[f"hf/.ckptgov/manifests/{TEMPORARY}"].text == "not today"
        assert (bad.exists(), good.exists()) == (True, False)


class TestTheCatalog:
    def changes(self, answer: ReconcileAnswer) -> list[tuple[str, str, str | None, str]]:
        return [
            (tier.tier, one.checkpoint, one.before and one.before.value, one.after.value)
            for tier in answer.tiers
            for one in tier.changes
        ]

    def test_a_copy_whose_files_are_gone_is_lost(self, cli, run: Path) -> None:
        shutil.rmtree(run / "checkpoint-100")
        assert self.changes(done()) == [("lustre", "checkpoint-100", "verified", "lost")]
        assert self.changes(done()) == []

    def test_a_run_that_was_removed_whole_has_lost_its_copies(self, cli, run: Path) -> None:
        shutil.rmtree(run)
        assert self.changes(done()) == [("lustre", "checkpoint-100", "verified", "lost")]

    def test_an_unmounted_run_root_has_lost_nothing(self, cli, run: Path) -> None:
        run.rename(run.parent.parent / "away")
        run.mkdir()
        assert self.changes(done()) == []
        run.rmdir()
        (run.parent.parent / "away").rename(run)
        assert cli.json("latest", "hf").code == 0

    def test_a_manifest_that_does_not_decode_loses_nothing(self, run: Path) -> None:
        (manifest,) = (run / ".ckptgov/manifests").iterdir()
        manifest.write_bytes(b"{")
        assert self.changes(done()) == []

    def test_a_removed_manifest_loses_the_copy(self, run: Path) -> None:
        (manifest,) = (run / ".ckptgov/manifests").iterdir()
        manifest.unlink()
        assert self.changes(done()) == [("lustre", "checkpoint-100", "verified", "lost")]

    def test_a_copy_that_a_killed_flush_left_unrecorded_is_found(
        self, cli, run: Path, home: Path, tmp_path: Path
    ) -> None:
        """The catalog is put back to before the flush: so the kill left it."""
        (tmp_path / "s3").mkdir()
        cli.done("tier", "add", "s3", tmp_path / "s3")
        shutil.copy(home / "catalog.sqlite", tmp_path / "before")
        with open_governor() as governor:
            assert governor.flush("hf", to="s3").error is None
        for path in home.glob("catalog.sqlite*"):
            path.unlink()
        shutil.copy(tmp_path / "before", home / "catalog.sqlite")
        assert self.changes(done()) == [("s3", "checkpoint-100", None, "verified")]
        assert self.changes(done()) == []

    def test_nothing_is_sealed(self, cli, run: Path) -> None:
        write_hf_trainer(run / "checkpoint-200", 200)
        done()
        assert len(list((run / ".ckptgov/manifests").iterdir())) == 1
        assert cli.json("latest", "hf").json["step"] == 100


class TestTheWhole:
    def test_a_dry_run_says_what_would_go_and_changes_nothing(
        self, cli, run: Path, staged: Callable
    ) -> None:
        directory = staged(STRANGE, days_ago=8)
        seen()
        shutil.rmtree(run / "checkpoint-100")
        for _ in range(2):
            answer = done(dry_run=True)
            assert [one.fate for one in left_by(answer).values()] == [Fate.WOULD_GO]
            assert [one.after.value for one in answer.tiers[0].changes] == ["lost"]
        assert directory.exists()
        assert document(answer)["is_dry_run"] is True

    def test_a_tier_that_is_away_is_told_and_the_others_are_done(
        self, cli, run: Path, staged: Callable, tmp_path: Path
    ) -> None:
        directory = staged(STRANGE, days_ago=8)
        seen()
        (tmp_path / "away").mkdir()
        cli.done("tier", "add", "away", tmp_path / "away")
        (tmp_path / "away").rename(tmp_path / "elsewhere")
        answer = done()
        assert isinstance(answer.error, PartlyDone)
        assert not directory.exists()
        told = {one["tier"]: one for one in document(answer)["tiers"]}
        assert "no such directory" in told["away"]["unreachable"]
        assert told["lustre"]["unreachable"] is None
        assert told["lustre"]["leftovers"][0]["fate"] == "removed"

    def test_one_tier_can_be_named(self, cli, run: Path, staged: Callable, tmp_path: Path) -> None:
        directory = staged(STRANGE, days_ago=8)
        (tmp_path / "s3").mkdir()
        cli.done("tier", "add", "s3", tmp_path / "s3")
        assert [one.tier for one in done(tiers=["s3"]).tiers] == ["s3"]
        assert directory.exists()
        with pytest.raises(UsageError):
            done(tiers=["nope"])
