"""What a reconciliation tells and never touches: orphans, lost copies, trash that nobody purges."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.errors import StorageError
from ckptgov.governor import open_governor
from ckptgov.model.clock import SystemClock
from ckptgov.model.copies import CopyState
from ckptgov.model.usage import LeftKind, Orphan, ReconcileAnswer, TrashLeft, TrashReason
from ckptgov.ops import orphans
from ckptgov.ops.context import Context
from ckptgov.ops.du import du
from ckptgov.ops.reconcile import reconcile
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import write_hf_trainer
from ckptgov.testing.condemning import doomed as doomed_copy
from ckptgov.testing.condemning import guard
from ckptgov.wire import decode_movement
from ckptgov.wire import usage as documents

DAY_S = 86_400.0


@contextmanager
def opened(by_s: float = 0.0) -> Iterator[Context]:
    class Shifted(SystemClock):
        def now_ns(self) -> int:
            return super().now_ns() + int(by_s * 1e9)

    with open_governor(clock=Shifted()) as governor:
        yield governor.context


def looked(by_s: float = 0.0, **how: object) -> ReconcileAnswer:
    with opened(by_s) as context:
        return reconcile(context, **how)


def orphans_of(answer: ReconcileAnswer) -> dict[str, Orphan]:
    return {one.path: one for tier in answer.tiers for one in tier.orphans}


def put(path: Path, size: int = 10, *, days_ago: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    at = time.time() - days_ago * DAY_S
    os.utime(path, (at, at))
    return path


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def run(cli, tier: Path) -> Path:
    for step in (100, 200):
        write_hf_trainer(tier / f"team/hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    return tier / "team/hf"


class TestOrphans:
    def test_whole_directories_and_single_files_are_told_once(self, run: Path, tier: Path) -> None:
        put(tier / "old-exports/a/deep/x.bin", 70, days_ago=9)
        put(tier / "old-exports/y.bin", 30, days_ago=9)
        put(tier / "team/notes.txt", 5)
        for path in (tier / "old-exports", tier / "old-exports/a", tier / "old-exports/a/deep"):
            os.utime(path, (0, 0))
        told = orphans_of(looked())
        assert set(told) == {"old-exports", "team/notes.txt"}
        assert (told["old-exports"].files, told["old-exports"].bytes) == (2, 100)
        assert 8.9 * DAY_S < told["old-exports"].age_s < 9.1 * DAY_S

    def test_they_are_never_removed_however_old(self, cli, run: Path, tier: Path) -> None:
        path = put(tier / "old-exports/x.bin", days_ago=1000)
        looked(by_s=-90 * DAY_S)
        cli.done("reconcile", "--staging", "--older-than", "1h")
        assert path.exists()

    def test_what_lies_in_a_run_is_its_own(self, run: Path) -> None:
        put(run / "logs/events.out")
        put(run / "checkpoint-100/extra.txt")
        assert orphans_of(looked()) == {}

    def test_a_run_that_no_scan_has_met_is_none(self, run: Path, tier: Path) -> None:
        write_hf_trainer(tier / "team/new/checkpoint-1", 1)
        assert orphans_of(looked()) == {}

    def test_nothing_of_ours_or_of_the_file_system_is_one(self, run: Path, tier: Path) -> None:
        put(tier / "lost+found/x")
        put(tier / ".ckptgov/whatever")
        put(tier / "team/.nfs0000")
        (tier / "link").symlink_to("team")
        assert orphans_of(looked()) == {}

    def test_a_trainers_temporary_name_outside_of_runs_is_no_orphan(
        self, run: Path, tier: Path
    ) -> None:
        put(tier / "crashed/tmp-checkpoint-5/optimizer.pt", 40)
        put(tier / "crashed/readme", 2)
        answer = looked()
        assert {path: one.bytes for path, one in orphans_of(answer).items()} == {"crashed": 2}
        (left,) = answer.tiers[0].staging
        assert (left.path, left.bytes) == ("crashed/tmp-checkpoint-5", 40)

    def test_how_long_it_was_seen_so_is_told(self, run: Path, tier: Path) -> None:
        put(tier / "old.bin")
        assert orphans_of(looked(by_s=-7200))["old.bin"].unchanged_s == 0
        assert orphans_of(looked())["old.bin"].unchanged_s == pytest.approx(7200, abs=60)

    def test_the_largest_are_told_and_the_others_counted(
        self, run: Path, tier: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(orphans, "TOLD", 2)
        for size in (1, 2, 3, 4):
            put(tier / f"f{size}", size)
        answer = looked()
        assert [one.path for one in answer.tiers[0].orphans] == ["f4", "f3"]
        assert answer.tiers[0].orphans_not_told == 2

    def test_one_that_cannot_be_looked_at_is_told_and_the_others_too(
        self, run: Path, tier: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(tier / "bad/x")
        put(tier / "good/x")
        real = PosixStorage.stat_many

        def picky(storage: PosixStorage, directory: str, names, **how):
            if directory == "bad":
                raise StorageError("not today")
            return real(storage, directory, names, **how)

        monkeypatch.setattr(PosixStorage, "stat_many", picky)
        answer = looked()
        assert set(orphans_of(answer)) == {"good"}
        assert ("bad", "not today") in [
            (what, error.message) for what, error in answer.tiers[0].failures
        ]

    def test_a_tier_whose_root_is_a_run_has_none(self, cli, tmp_path: Path) -> None:
        write_hf_trainer(tmp_path / "own/checkpoint-1", 1)
        cli.done("scan", tmp_path / "own")
        put(tmp_path / "own/notes.txt")
        assert orphans_of(looked()) == {}

    def test_the_table_names_them(self, cli, run: Path, tier: Path) -> None:
        put(tier / "old-exports/x.bin")
        row = [one for one in cli.done("reconcile").out.splitlines() if "old-exports" in one]
        assert row[0].split("\t")[1] == "orphan"


class TestLostCopies:
    def test_they_are_told_with_what_they_took_and_what_is_left(
        self, cli, run: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "s3").mkdir()
        cli.done("tier", "add", "s3", tmp_path / "s3")
        cli.done("flush", "hf", "--to", "s3", "--step", "100")
        sizes = {step: size_of(run / f"checkpoint-{step}") for step in (100, 200)}
        for step in sizes:
            shutil.rmtree(run / f"checkpoint-{step}")
        answer = looked(dry_run=True)
        told = {one.checkpoint: one for tier in answer.tiers for one in tier.changes}
        assert {name: one.after for name, one in told.items()} == {
            "checkpoint-100": CopyState.LOST,
            "checkpoint-200": CopyState.LOST,
        }
        assert told["checkpoint-100"].bytes == sizes[100]
        assert told["checkpoint-100"].copies_left == 1
        assert told["checkpoint-200"].bytes == sizes[200]
        assert told["checkpoint-200"].copies_left == 0
        words = cli("reconcile").err
        assert "removed by its trainer or by hand" in words
        assert "no whole verified copies are left" in words


class TestTrash:
    @pytest.fixture
    def doomed(self, cli, run: Path) -> tuple[str, str, str]:
        """Run, content id and place of checkpoint-100, condemned with no grace an hour ago."""
        content_id = next(
            one["content_id"]
            for one in cli.json("list", "hf").json["checkpoints"]
            if one["name"] == "checkpoint-100"
        )
        with opened(-2 * DAY_S) as context:
            run_id = context.catalog.run_by_name("hf").identity.run_id
            place = context.place(context.settings.tiers[0]).uuid
            wanted = doomed_copy(content_id, place, trash_s=DAY_S, bytes=123, files=7)
            context.catalog.removals.condemn(run_id, [wanted], guard(), plan_id="sha256:0")
        return run_id, content_id, place

    def moved(self, doomed: tuple[str, str, str], trash: str) -> None:
        with opened(-2 * DAY_S + 60) as context:
            context.catalog.removals.begin(*doomed, guard())
            context.catalog.removals.moved(*doomed, trash=trash)

    def told(self) -> list[TrashLeft]:
        return [one for tier in looked(dry_run=True).tiers for one in tier.trash]

    def test_what_is_past_its_time_is_told(self, run: Path, doomed) -> None:
        trash = f"team/hf/.ckptgov/trash/2026-01-01/{doomed[1][7:23]}.a"
        put(run.parent.parent / trash / "files/x", 123)
        self.moved(doomed, trash)
        (one,) = self.told()
        assert (one.reason, one.path, one.bytes) == (TrashReason.DUE, trash, 123)
        assert one.due_s == pytest.approx(DAY_S - 60, abs=60)

    def test_what_resisted_is_told_with_what_it_was(self, run: Path, doomed) -> None:
        self.moved(doomed, "team/hf/.ckptgov/trash/2026-01-01/x")
        with opened() as context:
            context.catalog.removals.resisted(*doomed, "busy: x")
        (one,) = self.told()
        assert (one.reason, one.text) == (TrashReason.RESISTED, "busy: x")

    def test_what_waits_for_its_time_is_not_told(self, run: Path, doomed) -> None:
        assert self.told() == []
        with opened() as context:
            context.catalog.removals.begin(*doomed, guard())
            context.catalog.removals.moved(*doomed, trash="x")
        assert self.told() == []

    def test_what_no_removal_stands_for_is_told_as_such(self, run: Path) -> None:
        put(run / ".ckptgov/trash/2026-01-01/0123456789abcdef.b/files/x", 50)
        (one,) = self.told()
        assert (one.reason, one.bytes, one.run) == (TrashReason.UNKNOWN, 50, "hf")
        assert one.path == "team/hf/.ckptgov/trash/2026-01-01/0123456789abcdef.b"
        looked()
        assert (run / ".ckptgov/trash/2026-01-01/0123456789abcdef.b/files/x").exists()

    def test_one_that_is_being_moved_just_now_is_known(self, run: Path, doomed) -> None:
        with opened(-2 * DAY_S + 60) as context:
            context.catalog.removals.begin(*doomed, guard())
        put(run / f".ckptgov/trash/2026-01-01/{doomed[1][7:23]}.b/files/x", 50)
        assert self.told() == []

    def test_du_tells_condemned_bytes_and_trash_apart(self, cli, run: Path, doomed) -> None:
        both = size_of(run / "checkpoint-100") + size_of(run / "checkpoint-200")
        with opened() as context:
            (usage,) = du(context).tiers
        assert usage.condemned_bytes == size_of(run / "checkpoint-100")
        assert usage.checkpoint_bytes == both
        assert usage.trash_bytes == 0
        trash = f"team/hf/.ckptgov/trash/2026-01-01/{doomed[1][7:23]}.a"
        (run.parent.parent / trash).mkdir(parents=True)
        (run / "checkpoint-100").rename(run.parent.parent / trash / "files")
        self.moved(doomed, trash)
        with opened() as context:
            (usage,) = du(context).tiers
        assert usage.condemned_bytes == 0
        assert usage.checkpoint_bytes == size_of(run / "checkpoint-200")
        assert usage.trash_bytes == usage.left_bytes(LeftKind.TRASH)
        assert usage.trash_bytes == both - usage.checkpoint_bytes
        assert "in the trash" in cli("du").err


def test_the_document_reads_back(run: Path, tier: Path) -> None:
    put(tier / os.fsdecode(b"odd-\xff.bin"))
    put(run / ".ckptgov/trash/2026-01-01/0123456789abcdef.b/files/x", 50)
    shutil.rmtree(run / "checkpoint-100")
    answer = looked(dry_run=True)
    (told,) = answer.tiers
    (back,) = decode_movement.reconciled(documents.reconciled(answer)).tiers
    assert told.orphans
    assert told.trash
    assert told.changes
    assert replace(back, root=told.root) == told


def test_a_document_of_an_older_service_reads_as_well(run: Path) -> None:
    document = documents.reconciled(looked(dry_run=True))
    for tier in document["tiers"]:
        for member in ("staging", "orphans", "orphans_not_told", "trash"):
            del tier[member]
    (back,) = decode_movement.reconciled(document).tiers
    assert (back.staging, back.orphans, back.orphans_not_told, back.trash) == ((), (), 0, ())
