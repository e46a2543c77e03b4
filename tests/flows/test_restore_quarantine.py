"""A source that gave wrong bytes is believed to be bad only after a second look."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.governor import open_governor
from ckptgov.model.clock import SystemClock
from ckptgov.model.facts import Finding, Reason
from ckptgov.storage.contract import Storage
from ckptgov.work.copy import SourceFault
from ckptgov.work.quarantine import Confirmed, quarantine
from ckptgov.work.sources import CopyAt, copies_of

SHARD = "__1_0.distcp"


@pytest.fixture
def run(cli, sample) -> Path:
    """A sealed run at one place."""
    made: Path = sample("dcp/fsdp2-4rank")
    cli.done("scan", made)
    return made


@pytest.fixture
def at(run: Path) -> Iterator[CopyAt]:
    """Its copy as a restore saw it."""
    with open_governor() as governor:
        (copies,) = copies_of(governor.asked(run.name).looks).values()
        yield copies[0]


def accuse(at: CopyAt, reason: Reason = Reason.CORRUPT, reader: Storage | None = None) -> Confirmed:
    finding = Finding(reason, f"{at.base}/{SHARD}", "differs")
    fault = SourceFault(place=at.place.uuid or "", shard=SHARD, finding=finding)
    return quarantine(at, [fault], reader or at.place.storage, SystemClock())


def receipts(run: Path) -> list[str]:
    return sorted(path.name for path in (run / ".ckptgov/receipts").iterdir())


def flip(path: Path, *, keep_times: bool) -> None:
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    mtime_ns = stat.st_mtime_ns if keep_times else stat.st_mtime_ns + 10**9
    os.utime(path, ns=(stat.st_atime_ns, mtime_ns))


def test_wrong_bytes_under_an_unchanged_token_are_corrupt(cli, run: Path, at: CopyAt) -> None:
    flip(run / "step_2" / SHARD, keep_times=True)
    assert accuse(at).corrupt == {SHARD}
    answer = cli.json("latest", run.name)
    assert (answer.code, answer.reasons("step_2")) == (5, ["corrupt"])
    cli("verify", run)
    assert cli("latest", run.name).code == 5


def test_a_copy_that_was_set_aside_wrongly_comes_back_by_verify(cli, run: Path, at: CopyAt) -> None:
    shard = run / "step_2" / SHARD
    flip(shard, keep_times=True)
    accuse(at)
    flip(shard, keep_times=True)
    assert cli("latest", run.name).code == 5
    cli.done("verify", run)
    assert cli("latest", run.name).code == 0


def test_bytes_that_are_right_the_second_time_are_not_held_against_it(
    cli, run: Path, at: CopyAt
) -> None:
    before = receipts(run)
    assert accuse(at).corrupt == frozenset()
    assert receipts(run) == before
    assert cli("latest", run.name).code == 0


def test_a_file_that_was_written_anew_is_re_opened_and_not_corrupt(
    cli, run: Path, at: CopyAt
) -> None:
    before = receipts(run)
    flip(run / "step_2" / SHARD, keep_times=False)
    assert accuse(at).corrupt == frozenset()
    assert receipts(run) == before
    assert cli.json("latest", run.name).reasons("step_2") == ["re-opened"]


def test_what_could_not_be_read_keeps_its_verdict(run: Path, at: CopyAt) -> None:
    flip(run / "step_2" / SHARD, keep_times=True)
    before = receipts(run)
    assert accuse(at, Reason.UNREADABLE).corrupt == frozenset()
    assert receipts(run) == before
