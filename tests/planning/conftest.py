"""Builders of facts and records: one line a checkpoint, one line a record."""

from __future__ import annotations

import pytest

from ckptgov.layouts.base import resume_args
from ckptgov.model.checkpoint import Evidence, Purpose, StepKind
from ckptgov.model.facts import CheckpointFacts, CopyFacts, Finding, Found, Reason
from ckptgov.model.journal import (
    LineCause,
    LineOpened,
    MarkBad,
    NumberedRecord,
    Outcome,
    Record,
    Restart,
    RestoreOutcome,
    Rollback,
    Sealed,
    Stamp,
    UnmarkBad,
)

RUN = "11111111-2222-4333-8444-555555555555"


class History:
    """A journal that grows; every record is one tick later than the one before."""

    def __init__(self) -> None:
        self.items: list[NumberedRecord] = []

    def stamp(self) -> Stamp:
        number = len(self.items) + 1
        return Stamp(id=f"id-{number:04}", run_id=RUN, at_ns=number * 1000, by="uid:1@n")

    def add(self, record: Record) -> Record:
        self.items.append(NumberedRecord(len(self.items) + 1, record))
        return record

    def sealed(self, step: int, *, line: int = 1, content: str | None = None) -> str:
        content_id = content or f"sha256:{step:04}-{line}"
        self.add(
            Sealed(
                stamp=self.stamp(),
                content_id=content_id,
                step=step,
                step_kind=StepKind.STEP,
                line=line,
                attempt=0,
            )
        )
        return content_id

    def rollback(self, to_step: int, line: int) -> None:
        self.add(Rollback(stamp=self.stamp(), to_step=to_step, line=line))

    def line(self, number: int, parent: int, base: int, cause: LineCause) -> None:
        self.add(
            LineOpened(stamp=self.stamp(), line=number, parent=parent, base_step=base, cause=cause)
        )

    def bad(self, *, content: str | None = None, start: int | None = None, end: int | None = None):
        self.add(MarkBad(stamp=self.stamp(), content_id=content, from_step=start, until_step=end))

    def good(self, *, content: str | None = None, start: int | None = None) -> None:
        self.add(UnmarkBad(stamp=self.stamp(), content_id=content, from_step=start))

    def outcome(self, content: str, outcome: RestoreOutcome, restart: str = "r", epoch: int = 0):
        self.add(
            Outcome(
                stamp=self.stamp(),
                content_id=content,
                restart_id=restart,
                epoch=epoch,
                outcome=outcome,
            )
        )

    def restart(self, content: str, restart: str = "r") -> None:
        self.add(Restart(stamp=self.stamp(), restart_id=restart, epoch=0, content_id=content))


def facts(
    step: int | None,
    *,
    name: str | None = None,
    line: int = 1,
    attempt: int = 0,
    content: str | None = None,
    sealed: bool = True,
    reason: Reason | None = None,
    world_size: int | None = None,
    reshardable: bool | None = None,
    purposes: tuple[Purpose, ...] = (Purpose.RESUME, Purpose.WEIGHTS),
    verified_at_ns: int | None = None,
) -> CheckpointFacts:
    shown = name or f"step_{step}"
    kind = StepKind.STEP if step is not None else StepKind.NONE
    found = Found(name=shown, layout="dcp", step=step, step_kind=kind)
    evidence = Evidence.DIGEST if sealed else Evidence.STRUCTURE
    findings = () if reason is None else (Finding(reason, shown, "evidence"),)
    return CheckpointFacts(
        name=shown,
        layout="dcp",
        step=step,
        step_kind=kind,
        content_id=(content or f"sha256:{step:04}-{line}") if sealed and step is not None else None,
        purposes=purposes,
        world_size=world_size,
        reshardable=reshardable,
        bytes=1,
        line=line,
        attempt=attempt,
        evidence=Evidence.NONE if findings else evidence,
        findings=findings,
        copies=(
            CopyFacts(
                place="p",
                tier="t",
                node=None,
                root="/r",
                shards=None,
                evidence=evidence,
                verified_at_ns=verified_at_ns,
            ),
        ),
        resume=resume_args(found, step=step, tag=shown),
    )


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def checkpoint():
    return facts
