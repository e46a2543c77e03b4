"""What ``exec`` decides: what to start, with which words, and what to say when it has ended.

Nothing here starts or waits: ``supervising`` does. The verbs are the governor's or a client's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from msgspec import Struct

from ckptgov.errors import CouldNotLook, NeverAny, NoneRestorable, StaleState
from ckptgov.integrations import command
from ckptgov.integrations.command import Template
from ckptgov.integrations.restart_id import OUTER
from ckptgov.integrations.supervising import Ended
from ckptgov.model.answers import LatestAnswer
from ckptgov.model.facts import Query, ResumeArgs
from ckptgov.model.journal import RestoreOutcome
from ckptgov.model.movement import RestoreAnswer

SET_FOR_CHILD = ("PATH", "PARENT", "STEP", "TAG", "RESTART_ID", "EPOCH", "READY_FILE")
"""What a started command finds as ``CKPTGOV_…``; what does not hold for it is unset."""


class Asker(Protocol):
    """Whatever answers ``latest`` and brings a checkpoint near."""

    def latest(
        self,
        target: str,
        query: Query,
        *,
        restart_id: str | None = None,
        node: str | None = None,
        place: str | None = None,
        everything: bool = False,
    ) -> LatestAnswer: ...

    def restore(
        self,
        target: str,
        *,
        to: str,
        step: int | None = None,
        query: Query | None = None,
        content_id: str | None = None,
        from_tier: str | None = None,
        match: tuple[str, ...] = (),
        node: str | None = None,
        hardlink: bool = False,
        dry_run: bool = False,
        stop: Callable[[], bool] = ...,
    ) -> RestoreAnswer: ...


class Wanted(Struct, frozen=True, kw_only=True):
    """What ``exec`` was asked for. ``restart_id`` None: nothing is decided (a dry run)."""

    run: str
    command: Template
    query: Query
    restart_id: str | None
    node: str | None = None
    stage: str | None = None


class Start(Struct, frozen=True, kw_only=True):
    """What to start. ``resume`` None: from nothing; ``epoch`` None: nothing was decided."""

    words: tuple[str, ...]
    resume: ResumeArgs | None
    restart_id: str | None
    epoch: int | None
    decided_here: bool
    told: LatestAnswer


def choose_start(asker: Asker, wanted: Wanted, *, decide_fresh: Callable[[], int | None]) -> Start:
    """From what this restart starts, for all its ranks alike.

    ``decide_fresh`` records that it starts from nothing and returns the epoch, or raises where
    that may not be; it is asked only after a complete look found nothing.

    Raises:
        CkptgovError: the reason why nothing may be started.
    """
    told = _ask(asker, wanted)
    if told.error is None and told.chosen is not None and told.resume is not None:
        return _resumed(asker, wanted, told, told.resume)
    if told.error is None:
        raise CouldNotLook(f"{wanted.run}: the answer holds neither a checkpoint nor a reason")
    if not _says_nothing(told):
        raise told.error
    words = command.fresh(wanted.command)
    try:
        epoch = decide_fresh()
    except StaleState:  # another rank found what we did not see yet: then its answer is ours
        told = _ask(asker, wanted)
        if told.error is not None or told.resume is None:
            raise
        return _resumed(asker, wanted, told, told.resume)
    return Start(
        words=words,
        resume=None,
        restart_id=wanted.restart_id,
        epoch=epoch,
        decided_here=True,
        told=told,
    )


def _ask(asker: Asker, wanted: Wanted) -> LatestAnswer:
    return asker.latest(wanted.run, wanted.query, restart_id=wanted.restart_id, node=wanted.node)


def _says_nothing(told: LatestAnswer) -> bool:
    """Never any; or none, and no checkpoint to give a reason for: an earlier fresh start may be
    all that is recorded. ``decide_fresh`` looks at that again before it agrees."""
    is_none = isinstance(told.error, NoneRestorable) and not told.choice.verdicts
    return isinstance(told.error, NeverAny) or is_none


def _resumed(asker: Asker, wanted: Wanted, told: LatestAnswer, resume: ResumeArgs) -> Start:
    assert told.chosen is not None
    if wanted.stage is not None:
        resume = asker.restore(
            wanted.run,
            to=wanted.stage,
            query=wanted.query,
            content_id=told.chosen.content_id,
            node=wanted.node,
        ).resume
    return Start(
        words=command.resumed(wanted.command, resume),
        resume=resume,
        restart_id=wanted.restart_id,
        epoch=told.restart.epoch if told.restart is not None else None,
        decided_here=told.restart is not None and told.restart.decided_here,
        told=told,
    )


def environment(
    environ: Mapping[str, str], start: Start, *, ready_file: str | None
) -> dict[str, str]:
    """What the command finds in its environment: ours, and of the start what holds for it."""
    told = {"RESTART_ID": start.restart_id, "READY_FILE": ready_file}
    told["EPOCH"] = str(start.epoch) if start.epoch is not None else None
    if start.resume is not None:
        told["PATH"], told["PARENT"] = start.resume.path, start.resume.parent
        told["TAG"] = start.resume.tag
        told["STEP"] = str(start.resume.step) if start.resume.step is not None else None
    ours = {f"CKPTGOV_{name}": told.get(name) for name in SET_FOR_CHILD}
    assert OUTER in ours
    kept = {name: value for name, value in environ.items() if name not in ours}
    return kept | {name: value for name, value in ours.items() if value is not None}


def outcome_of(
    ended: Ended, *, has_started: bool, load_failed_codes: Collection[int]
) -> tuple[RestoreOutcome, str | None] | None:
    """What is to be told of an end; None where nothing is.

    Only a code that the command was declared to use says that the checkpoint did not load: an
    early crash alone does not, or a crash loop for another reason would walk a run back to zero
    (P6). Nor does such a code from a command that had said it started.
    """
    if ended.code in load_failed_codes and ended.signal is None and not has_started:
        return RestoreOutcome.LOAD_FAILED, f"exit code {ended.code}"
    if ended.code == 0:
        return None if has_started else (RestoreOutcome.STARTED, None)
    if ended.was_told_to_stop:
        return None
    how = f"signal {ended.signal}" if ended.signal is not None else f"exit code {ended.code}"
    return RestoreOutcome.FAILED_LATER, f"{how} after {ended.lived_s:.0f} s"
