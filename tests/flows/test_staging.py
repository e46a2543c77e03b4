"""A field report: temporary directories of trainers stay on nodes. Told; removed only when asked.

"Long ago" is made of two things here: files that are dated back, and a first look by a catalog
whose clock stood a day and more behind.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.errors import RefusedBySafety, StorageError, UsageError
from ckptgov.governor import open_governor
from ckptgov.model.clock import SystemClock
from ckptgov.model.usage import Fate, ReconcileAnswer, StagingLeft, StagingReason
from ckptgov.ops import staging
from ckptgov.ops.context import Context
from ckptgov.ops.lying import Lying, SeenBook, open_files
from ckptgov.ops.reconcile import reconcile
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.builders import write_hf_trainer
from ckptgov.wire import decode_movement
from ckptgov.wire import usage as documents
from ckptgov_cli.main import main

DAY_S = 86_400.0


class Shifted(SystemClock):
    """The machine's clock, so many seconds off."""

    def __init__(self, by_s: float) -> None:
        self.by_s = by_s

    def now_ns(self) -> int:
        return super().now_ns() + int(self.by_s * 1e9)


@contextmanager
def opened(by_s: float = 0.0) -> Iterator[Context]:
    with open_governor(clock=Shifted(by_s)) as governor:
        yield governor.context


def looked(*, by_s: float = 0.0, **how: object) -> ReconcileAnswer:
    with opened(by_s) as context:
        return reconcile(context, **how)


def cleared(older_than_s: float = DAY_S, **how: object) -> ReconcileAnswer:
    return looked(staging_older_than_s=older_than_s, **how)


def left_by(answer: ReconcileAnswer) -> dict[str, StagingLeft]:
    return {one.path: one for tier in answer.tiers for one in tier.staging}


def age(path: Path, days: float) -> Path:
    """Date a path and all below it back."""
    at = time.time() - days * DAY_S
    for each in (path, *path.rglob("*")):
        os.utime(each, (at, at), follow_symlinks=False)
    return path


def put(path: Path, content: bytes = b"x" * 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def run(cli, tier: Path) -> Path:
    write_hf_trainer(tier / "hf/checkpoint-50", 50)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    return tier / "hf"


@pytest.fixture
def stale(run: Path) -> Path:
    """Old by its times, and seen as it is a day and an hour ago."""
    directory = run / "tmp-checkpoint-60"
    write_hf_trainer(directory, 60)
    age(directory, 3)
    looked(by_s=-25 * 3600)
    return directory


class TestTheReport:
    """Two nodes; only the first rank renamed."""

    @pytest.fixture
    def nodes(self, cli, tmp_path: Path) -> Path:
        write_hf_trainer(tmp_path / "node0/run/checkpoint-50", 50)
        write_hf_trainer(tmp_path / "node0/run/tmp-checkpoint-s0yubqtr", 55)
        write_hf_trainer(tmp_path / "node0/run/tmp-checkpoint-60", 60)
        put(tmp_path / "node0/run/200.orbax-checkpoint-tmp-1700000000/ocdbt/x")
        put(tmp_path / "node1/run/tmp-checkpoint-50/optimizer.pt", b"rank 1's" * 100)
        for path in ("node0/run/tmp-checkpoint-s0yubqtr", "node1/run/tmp-checkpoint-50"):
            age(tmp_path / path, 3)
        age(tmp_path / "node0/run/200.orbax-checkpoint-tmp-1700000000", 3)
        os.utime(tmp_path / "node0/run/tmp-checkpoint-60")
        for node in ("node0", "node1"):
            words = ("--scope", "node", "--node", node, "--ingest")
            cli.done("tier", "add", "nvme", tmp_path / node, *words)
        cli("scan")
        return tmp_path

    def test_a_node_where_the_run_has_nothing_is_no_trouble(self, cli, nodes: Path) -> None:
        shutil.rmtree(nodes / "node1/run")
        for answer in (cli.json("reconcile"), cli.json("reconcile", "--staging")):
            assert answer.code == 0, answer

    def test_none_of_them_is_ever_a_checkpoint(self, cli, nodes: Path) -> None:
        assert cli.json("latest", "run").json["name"] == "checkpoint-50"
        assert cli.json("list", "run").names == ["checkpoint-50"]

    def test_they_are_told_with_age_and_size(self, nodes: Path) -> None:
        told = left_by(looked())
        old = told["run/tmp-checkpoint-50"]
        assert (old.run, old.files, old.bytes) == ("run", 1, 800)
        assert 2.9 * DAY_S < old.age_s < 3.1 * DAY_S
        assert {one.fate for one in told.values()} == {Fate.KEPT}
        assert {one.reason for one in told.values()} == {StagingReason.NOT_ASKED}
        assert len(told) == 4

    def test_the_old_ones_go_and_the_fresh_one_stays(self, cli, nodes: Path) -> None:
        looked(by_s=-25 * 3600)
        told = cli.done("reconcile", "--staging", "--older-than", "24h")
        assert not (nodes / "node1/run/tmp-checkpoint-50").exists()
        assert not (nodes / "node0/run/tmp-checkpoint-s0yubqtr").exists()
        assert not (nodes / "node0/run/200.orbax-checkpoint-tmp-1700000000").exists()
        assert (nodes / "node0/run/tmp-checkpoint-60/optimizer.pt").exists()
        assert "held by left-overs of frameworks" in told.err
        assert cli.json("latest", "run").json["name"] == "checkpoint-50"
        assert cli.json("verify", "run").code == 0


class TestOneThatIsSurelyLeft:
    def test_it_goes_when_asked(self, run: Path, stale: Path) -> None:
        (one,) = left_by(cleared()).values()
        assert (one.fate, one.reason) == (Fate.REMOVED, StagingReason.UNCHANGED)
        assert not stale.exists()
        assert (run / "checkpoint-50/optimizer.pt").exists()

    def test_it_stays_when_not_asked(self, stale: Path) -> None:
        (one,) = left_by(looked()).values()
        assert (one.fate, one.reason) == (Fate.KEPT, StagingReason.NOT_ASKED)
        assert stale.exists()

    def test_a_dry_run_only_says_so(self, stale: Path) -> None:
        (one,) = left_by(cleared(dry_run=True)).values()
        assert one.fate is Fate.WOULD_GO
        assert stale.exists()

    def test_a_single_file_goes_too(self, run: Path) -> None:
        age(put(run / "tmp_checkpoint_state"), 3)
        looked(by_s=-25 * 3600)
        (one,) = left_by(cleared()).values()
        assert one.fate is Fate.REMOVED
        assert not (run / "tmp_checkpoint_state").exists()

    def test_what_storage_does_not_let_go_is_told(
        self, stale: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(staging, "remove_below", lambda *_: StorageError("not today"))
        answer = cleared()
        (one,) = left_by(answer).values()
        assert one.fate is Fate.STILL_THERE
        assert "not today" in one.text
        assert answer.error is not None
        assert answer.error.exit_code == 3

    def test_a_symlink_in_it_goes_and_what_it_leads_to_stays(
        self, run: Path, tmp_path: Path
    ) -> None:
        outside = put(tmp_path / "outside/precious")
        directory = run / "tmp-checkpoint-60"
        put(directory / "model.bin")
        (directory / "link").symlink_to(outside)
        (directory / "dir").symlink_to(outside.parent)
        age(directory, 3)
        looked(by_s=-25 * 3600)
        cleared()
        assert not directory.exists()
        assert outside.exists()


class TestItsWriterMayLive:
    def kept(self, **how: object) -> StagingReason:
        (one,) = left_by(cleared(**how)).values()
        assert one.fate is Fate.KEPT, one
        return one.reason

    def test_old_times_alone_prove_nothing(self, run: Path) -> None:
        """A copy carries the times of its original: it may be arriving just now."""
        directory = run / "tmp-checkpoint-60"
        put(directory / "optimizer.pt")
        age(directory, 300)
        assert self.kept() is StagingReason.SEEN_LATELY
        assert directory.exists()

    def test_seen_long_ago_and_young_by_its_times(self, stale: Path) -> None:
        newest = time.time() - DAY_S + 3600
        os.utime(stale / "optimizer.pt", (newest, newest))
        looked(by_s=-25 * 3600)  # as it is now
        assert self.kept() is StagingReason.FRESH

    def test_a_time_in_the_future_is_no_age(self, stale: Path) -> None:
        age(stale, -30)
        looked(by_s=-25 * 3600)
        assert self.kept() is StagingReason.FRESH

    @pytest.mark.parametrize("what", ["size", "new", "gone", "renamed", "touched", "rewritten"])
    def test_any_change_since_it_was_seen(self, stale: Path, what: str) -> None:
        path = stale / "optimizer.pt"
        before = path.stat()
        match what:
            case "size":
                path.write_bytes(path.read_bytes() + b"x")
            case "new":
                put(stale / "another")
            case "gone":
                path.unlink()
            case "renamed":
                path.rename(stale / "optimizer.bin")
            case "touched":
                os.utime(path)
            case "rewritten":
                path.write_bytes(path.read_bytes()[::-1])
        if path.exists():
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        if what not in ("touched", "rewritten"):  # only the inode's own time tells of these
            age(stale, 3)
        assert self.kept() is StagingReason.SEEN_LATELY
        assert stale.exists()

    def test_it_changes_while_it_is_judged(
        self, stale: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = staging._judged

        def judged_late(context, sweep, one, open_now):
            told = real(context, sweep, one, open_now)
            put(stale / "another")
            return told

        monkeypatch.setattr(staging, "_judged", judged_late)
        assert self.kept() is StagingReason.FRESH
        assert (stale / "optimizer.pt").exists()

    def test_a_process_here_has_a_file_of_it_open(self, stale: Path) -> None:
        with open(stale / "optimizer.pt", "rb"):
            assert self.kept() is StagingReason.OPEN
        assert stale.exists()

    def test_no_shorter_time_than_an_hour_is_taken(self, stale: Path) -> None:
        with pytest.raises(UsageError):
            cleared(3599.0)
        assert main(["reconcile", "--staging", "--older-than", "0s"]) == 2
        assert stale.exists()

    def test_a_clock_that_went_back_removes_nothing(self, stale: Path) -> None:
        with opened(3600.0) as context:
            context.catalog.tick()
        with pytest.raises(RefusedBySafety):
            cleared()
        assert stale.exists()

    def test_a_clock_that_storage_does_not_share_removes_nothing(self, stale: Path) -> None:
        answer = cleared(by_s=3600.0)
        assert [error.kind for _what, error in answer.tiers[0].failures] == ["refused"]
        assert answer.error is not None
        assert stale.exists()

    def test_a_damaged_note_of_what_was_seen_only_puts_it_off(
        self, home: Path, stale: Path
    ) -> None:
        for text in ("{", "[]", '{"seen": {"hf/tmp-checkpoint-60": 1}}', '{"seen": []}'):
            (note,) = (home / "seen").iterdir()
            note.write_text(text)
            assert self.kept(dry_run=True) is StagingReason.SEEN_LATELY

    def test_a_dry_run_notes_nothing(self, run: Path) -> None:
        directory = run / "tmp-checkpoint-60"
        put(directory / "optimizer.pt")
        age(directory, 3)
        looked(by_s=-25 * 3600, dry_run=True)
        assert self.kept() is StagingReason.SEEN_LATELY


class TestItsBytesAreKnown:
    @pytest.fixture
    def twin(self, run: Path) -> Path:
        directory = run / "tmp-checkpoint-50"
        shutil.copytree(run / "checkpoint-50", directory)
        age(directory, 3)
        looked(by_s=-25 * 3600)
        return directory

    def only(self) -> StagingLeft:
        (one,) = left_by(cleared()).values()
        return one

    def test_all_shards_of_a_sealed_checkpoint_stay(self, twin: Path) -> None:
        one = self.only()
        assert (one.fate, one.reason) == (Fate.KEPT, StagingReason.KNOWN_BYTES)
        assert "every shard of checkpoint-50" in one.text
        assert twin.exists()

    def test_some_shards_of_one_that_is_whole_elsewhere_go(self, twin: Path) -> None:
        (twin / "optimizer.pt").unlink()
        age(twin, 3)
        looked(by_s=-25 * 3600)
        assert self.only().fate is Fate.REMOVED

    def test_the_only_ones_left_of_one_that_was_lost_stay(self, run: Path, twin: Path) -> None:
        """Only part of it lies there; the checkpoint itself was rotated away."""
        for path in twin.iterdir():
            if path.name != "optimizer.pt":
                path.unlink()
        shutil.rmtree(run / "checkpoint-50")
        age(twin, 3)
        looked(by_s=-25 * 3600)
        one = self.only()
        assert (one.fate, one.reason) == (Fate.KEPT, StagingReason.KNOWN_BYTES)
        assert "verified nowhere else" in one.text
        assert twin.exists()

    def test_other_bytes_of_the_same_size_do_not_count(self, run: Path, twin: Path) -> None:
        shutil.rmtree(run / "checkpoint-50")
        for path in twin.rglob("*"):
            path.write_bytes(b"\xff" * path.stat().st_size)
        age(twin, 3)
        looked(by_s=-25 * 3600)
        assert self.only().fate is Fate.REMOVED

    def test_one_that_cannot_be_read_stays(
        self, twin: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = PosixStorage.open

        def picky(storage: PosixStorage, path: str):
            if "tmp-checkpoint" in path:
                raise StorageError("not today")
            return real(storage, path)

        monkeypatch.setattr(PosixStorage, "open", picky)
        one = self.only()
        assert (one.fate, one.reason) == (Fate.KEPT, StagingReason.KNOWN_BYTES)
        assert "could not be compared" in one.text


class TestItIsNotAlone:
    def kept(self) -> StagingReason:
        told = [one for one in left_by(cleared()).values() if one.fate is not Fate.REMOVED]
        (one,) = told
        assert one.fate is Fate.KEPT
        return one.reason

    def test_something_of_ours_lies_in_it(self, stale: Path) -> None:
        put(stale / "deep/.ckptgov/run.json", b"{}")
        age(stale, 3)
        looked(by_s=-25 * 3600)
        assert self.kept() is StagingReason.NOT_ALONE
        assert (stale / "deep/.ckptgov/run.json").exists()

    def test_a_run_lies_in_it(self, cli, run: Path) -> None:
        """Its own records may lie elsewhere: a run root that cannot be written has them apart."""
        directory = run / "tmp-checkpoint-kept"
        put(directory / "step-7/a.bin", b"precious")
        cli.done("commit", directory / "step-7", "--step", "7")
        shutil.rmtree(directory / ".ckptgov")
        age(directory, 3)
        looked(by_s=-25 * 3600)
        assert self.kept() is StagingReason.NOT_ALONE
        assert (directory / "step-7/a.bin").exists()

    def test_another_file_system_is_mounted_in_it(
        self, stale: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = staging.lying_at

        def mounted(storage: PosixStorage, path: str) -> Lying | None:
            found = real(storage, path)
            return found and replace(found, devices=found.devices | {7})

        monkeypatch.setattr(staging, "lying_at", mounted)
        assert self.kept() is StagingReason.NOT_ALONE
        assert stale.exists()

    def test_it_lies_in_a_checkpoint_of_the_trainer(self, run: Path) -> None:
        """Taking a name away would give the directory a new time, and trainers rotate by it."""
        put(run / "step-77/x.tmp")
        age(run / "step-77", 3)
        looked(by_s=-25 * 3600)
        assert self.kept() is StagingReason.INSIDE
        assert (run / "step-77/x.tmp").exists()

    def test_it_lies_in_no_run(self, run: Path) -> None:
        directory = run.parent / "elsewhere/tmp-checkpoint-9"
        put(directory / "optimizer.pt")
        age(directory, 3)
        looked(by_s=-25 * 3600)
        assert self.kept() is StagingReason.NO_RUN
        assert directory.exists()

    def test_its_tier_is_another_catalogs(
        self, cli, stale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "home2").mkdir()
        monkeypatch.setenv("CKPTGOV_HOME", str(tmp_path / "home2"))
        cli.done("tier", "add", "lustre", stale.parent.parent, "--ingest")
        cli.done("scan")
        looked(by_s=-25 * 3600)
        assert self.kept() is StagingReason.UNKNOWN_RUN_STATE
        assert stale.exists()


class TestWhatWasSeen:
    def test_the_clock_set_back_begins_anew(self, tmp_path: Path) -> None:
        book = SeenBook(str(tmp_path), "place", now_ns=10**18)
        assert book.unchanged_s("a", "mark") == 0
        book.keep()
        later = SeenBook(str(tmp_path), "place", now_ns=10**18 + 5 * 10**9)
        assert later.unchanged_s("a", "mark") == 5
        earlier = SeenBook(str(tmp_path), "place", now_ns=10**18 - 5 * 10**9)
        assert earlier.unchanged_s("a", "mark") == 0
        earlier.keep()
        again = SeenBook(str(tmp_path), "place", now_ns=10**18)
        assert again.unchanged_s("a", "mark") == 5

    def test_what_is_not_asked_about_is_forgotten(self, tmp_path: Path) -> None:
        book = SeenBook(str(tmp_path), "place", now_ns=10)
        book.unchanged_s("a\udcff", "mark")
        book.keep()
        SeenBook(str(tmp_path), "place", now_ns=20).keep()
        assert SeenBook(str(tmp_path), "place", now_ns=10**10).unchanged_s("a\udcff", "mark") == 0

    def test_open_files_of_this_process_show(self, tmp_path: Path) -> None:
        path = put(tmp_path / "x")
        with open(path, "rb"):
            assert (path.stat().st_dev, path.stat().st_ino) in open_files()
        assert (path.stat().st_dev, path.stat().st_ino) not in open_files()


def test_the_document_tells_it_all_and_reads_back(
    stale: Path, samely: Callable[[ReconcileAnswer], None]
) -> None:
    samely(cleared(dry_run=True))


@pytest.fixture
def samely() -> Callable[[ReconcileAnswer], None]:
    def check(answer: ReconcileAnswer) -> None:
        back = decode_movement.reconciled(documents.reconciled(answer))
        assert back.tiers[0].staging == answer.tiers[0].staging
        assert back.tiers[0].staging

    return check
