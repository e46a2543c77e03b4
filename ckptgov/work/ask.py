"""Questions about a run, answered from looks alone: latest, list, verify.

The same code answers for a directory nobody registered and for a run at several places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import (
    CkptgovError,
    CouldNotLook,
    NeverAny,
    NoneRestorable,
    VerificationFailed,
)
from ckptgov.model.answers import (
    LatestAnswer,
    RestartAnswer,
    RunListing,
    VerifiedCheckpoint,
    VerifyAnswer,
)
from ckptgov.model.checkpoint import VerifyLevel
from ckptgov.model.clock import Clock
from ckptgov.model.facts import (
    CheckpointFacts,
    Choice,
    CopyFacts,
    Note,
    Query,
    Reason,
    ResumeArgs,
    Verdict,
)
from ckptgov.planning.choose import STEP_OVER_LIMIT
from ckptgov.work.addresses import join as absolute
from ckptgov.work.answer import answer, share_journal
from ckptgov.work.look import RunLook
from ckptgov.work.runstore import RunStore

if TYPE_CHECKING:
    from ckptgov.work.author import Author
    from ckptgov.work.decide import Decision
    from ckptgov.work.seal import SealSettings
    from ckptgov.work.verify import VerifyOutcome


class Asked(Struct, frozen=True, kw_only=True):
    """A run as it can be looked at from here: its looks, and the places that did not answer."""

    run: str | None
    looks: tuple[RunLook, ...]
    unreachable: tuple[Note, ...] = ()
    more: tuple[CheckpointFacts, ...] = ()
    only_name: str | None = None
    node: str | None = None
    sealed_only: bool = False
    step_over_limit: int = STEP_OVER_LIMIT

    @property
    def home(self) -> RunStore:
        """Where the run's journal is written first: its first place."""
        return self.looks[0].store


class RestartRequest(Struct, frozen=True, kw_only=True):
    """What deciding a restart needs beside the question itself."""

    restart_id: str
    author: Author
    run_id: Callable[[], str]
    seal: Callable[[CheckpointFacts], str]


def latest(
    asked: Asked,
    query: Query,
    *,
    restart: RestartRequest | None = None,
    everything: bool = False,
) -> LatestAnswer:
    """The newest checkpoint that may be handed out, or the error that says why there is none."""
    query = replace(query, only_name=asked.only_name)
    choices: list[Choice] = []

    def choose(wanted: Query) -> Choice:
        choice = _with_unreachable(_choice(asked, wanted, everything), asked)
        choices.append(choice)
        if choice.chosen is None:
            raise _why_none(asked, choice)
        return choice

    try:
        if restart is None:
            choice = choose(query)
            assert choice.chosen is not None
            return _answer(asked, choice, choice.chosen, None)
        return _decided(asked, query, restart, choose)
    except CkptgovError as error:
        choice = choices[-1] if choices else Choice(chosen=None, verdicts=())
        return LatestAnswer(run=asked.run, choice=choice, chosen=None, error=error)


def _choice(asked: Asked, query: Query, everything: bool) -> Choice:
    return answer(
        asked.looks,
        query,
        unsealed=not asked.sealed_only,
        everything=everything,
        step_over_limit=asked.step_over_limit,
        more=asked.more,
    )


def _decided(
    asked: Asked,
    query: Query,
    restart: RestartRequest,
    choose: Callable[[Query], Choice],
) -> LatestAnswer:
    from ckptgov.work.decide import decide

    decision: Decision = decide(
        asked.looks,
        asked.home,
        share_journal(asked.looks),
        restart_id=restart.restart_id,
        query=query,
        run_id=restart.run_id,
        author=restart.author,
        choose=choose,
        seal=restart.seal,
    )
    choice = decision.choice or Choice(
        chosen=decision.chosen,
        verdicts=(Verdict(checkpoint=decision.chosen, findings=()),),
    )
    told = RestartAnswer(
        restart_id=decision.restart.restart_id,
        epoch=decision.restart.epoch,
        decided_here=decision.decided_here,
    )
    return _answer(asked, choice, decision.chosen, told)


def _with_unreachable(choice: Choice, asked: Asked) -> Choice:
    return replace(choice, notes=(*choice.notes, *asked.unreachable))


def _why_none(asked: Asked, choice: Choice) -> CkptgovError:
    """Never any, some but none restorable, could not look: three answers."""
    if asked.unreachable:
        return CouldNotLook(
            f"no restorable checkpoint here, and {asked.unreachable[0].text}",
            hint="a place that does not answer may hold one; nothing is known to be absent",
        )
    where = asked.run or asked.looks[0].place.root
    if not choice.verdicts and all(look.is_untouched() for look in asked.looks):
        return NeverAny(f"{where}: there never was a checkpoint")
    if not choice.verdicts:
        return NoneRestorable(f"{where}: records of checkpoints, but none of them is there")
    return NoneRestorable(
        f"{where}: {_reasons(choice.verdicts)}", hint="'ckptgov explain' says why"
    )


def _reasons(verdicts: Sequence[Verdict]) -> str:
    first = verdicts[0]
    finding = first.findings[0] if first.findings else None
    words = (
        f"newest: {finding.path}: {finding.evidence} ({finding.reason.value})" if finding else ""
    )
    count = len(verdicts)
    return f"{count} checkpoint{'s' if count != 1 else ''}, none restorable; {words}"


def _answer(
    asked: Asked, choice: Choice, chosen: CheckpointFacts, restart: RestartAnswer | None
) -> LatestAnswer:
    copy = nearest_copy(chosen.copies, node=asked.node)
    root = copy.root if copy is not None else asked.looks[0].place.root
    name = copy.name if copy is not None and copy.name else chosen.name
    return LatestAnswer(
        run=asked.run,
        choice=choice,
        chosen=chosen,
        path=absolute(root, name),
        resume=resume_at(chosen, root, name),
        restart=restart,
    )


def resume_at(chosen: CheckpointFacts, root: str, name: str) -> ResumeArgs:
    """What the loader wants, for a copy called ``name`` below ``root``.

    A copy may lie elsewhere than where it was saved: under ``attempt-<n>/``, or restored.
    """
    told = chosen.resume

    def moved(path: str) -> str:
        if name == chosen.name:
            return absolute(root, path)
        if path == chosen.name or path.startswith(chosen.name + "/"):
            return absolute(root, name + path[len(chosen.name) :])
        below, own = name.rpartition("/")[0], chosen.name.rpartition("/")[0]
        return absolute(root, below) if path == own else absolute(root, path)

    return ResumeArgs(
        path=moved(told.path), parent=moved(told.parent), step=told.step, tag=told.tag
    )


def nearest_copy(copies: Sequence[CopyFacts], *, node: str | None) -> CopyFacts | None:
    """Where the asking node reads it: its own disk, then a shared place, then another node's.

    A whole copy wherever one lies: what a path names is to load by itself (P1). A part only where
    there is nothing else.
    """
    usable = [one for one in copies if one.is_reachable and not one.findings] or list(copies)

    def distance(one: CopyFacts) -> tuple[int, int]:
        near = 0 if node is not None and one.node == node else 1 if one.node is None else 2
        return (0 if one.shards is None else 1, near)

    return min(usable, key=distance, default=None)


def listing(asked: Asked, query: Query | None = None) -> RunListing:
    """Every checkpoint of a run with its verdict and everything noticed."""
    wanted = replace(query or Query(), only_name=asked.only_name)
    choice = _with_unreachable(_choice(asked, wanted, True), asked)
    notes = [*choice.notes, *_pointer_notes(asked, choice)]
    notes += [note for verdict in choice.verdicts for note in verdict.checkpoint.notes]
    first = asked.looks[0]
    return RunListing(
        run=asked.run or (first.identity.name if first.identity is not None else None),
        run_id=first.identity.run_id if first.identity is not None else None,
        root=absolute(first.place.root, first.run_root),
        verdicts=choice.verdicts,
        notes=tuple(dict.fromkeys(notes)),
        staging=tuple(one for look in asked.looks for one in look.survey.staging),
        active_line=first.lines.active.number,
    )


def with_pointer_notes(asked: Asked, told: LatestAnswer) -> LatestAnswer:
    """The same answer, saying where a framework's own "latest" disagrees."""
    notes = (*told.choice.notes, *_pointer_notes(asked, told.choice))
    return replace(told, choice=replace(told.choice, notes=tuple(dict.fromkeys(notes))))


def _pointer_notes(asked: Asked, choice: Choice) -> list[Note]:
    """Pointers are hints: told when they disagree, never followed."""
    chosen = choice.chosen.name if choice.chosen is not None else None
    notes = []
    for look in asked.looks:
        for pointer in look.survey.pointers:
            if pointer.names is not None and pointer.names == chosen:
                continue
            says = f"names {pointer.names}" if pointer.names else f"says {pointer.text!r}"
            newest = f"the newest restorable is {chosen}" if chosen else "none is restorable"
            notes.append(Note("pointer-disagrees", pointer.path, f"pointer {says}; {newest}"))
    return notes


def verify(
    asked: Asked,
    *,
    level: VerifyLevel,
    clock: Clock,
    settings: SealSettings,
    write: bool = True,
) -> VerifyAnswer:
    """Compare everything asked for; each checkpoint stands on its own."""
    from ckptgov.work.verify import verify_sealed, verify_unsealed

    share_journal(asked.looks)
    checkpoints: list[VerifiedCheckpoint] = []
    for look in asked.looks:
        for stored in look.stored:
            copy = look.sealed(stored)
            if copy is None or asked.only_name not in (None, copy.manifest.name):
                continue
            if look.is_gone(copy):
                continue
            outcome = verify_sealed(
                look, copy, level=level, clock=clock, settings=settings, write=write
            )
            checkpoints.append(verified(look, outcome))
        checkpoints += [
            verified(look, verify_unsealed(look, found, level=level))
            for found in look.unsealed()
            if asked.only_name in (None, found.name)
        ]
    notes = tuple(dict.fromkeys(note for look in asked.looks for note in look.notes()))
    return VerifyAnswer(
        checkpoints=tuple(sorted(checkpoints, key=_newest_first)),
        notes=(*notes, *asked.unreachable),
        error=_verify_error(asked, checkpoints, notes),
    )


def _newest_first(one: VerifiedCheckpoint) -> tuple[int, str]:
    return (-(one.step if one.step is not None else -1), one.name)


def verified(look: RunLook, outcome: VerifyOutcome) -> VerifiedCheckpoint:
    """What became of one checkpoint at one place, as it is told."""
    return VerifiedCheckpoint(
        name=outcome.name,
        step=outcome.step,
        step_kind=outcome.step_kind,
        layout=outcome.layout,
        variant=outcome.variant,
        content_id=outcome.content_id,
        place=look.place.uuid or "",
        bytes=outcome.bytes,
        evidence=outcome.evidence.value,
        findings=outcome.findings,
        notes=outcome.notes,
    )


def _verify_error(
    asked: Asked, checkpoints: Sequence[VerifiedCheckpoint], notes: Sequence[Note]
) -> CkptgovError | None:
    bad = [one for one in checkpoints if one.findings]
    broken = [one for one in notes if one.kind == "unreadable-manifest"]
    wrong = [
        one for one in bad if any(each.reason is not Reason.UNREADABLE for each in one.findings)
    ]
    if wrong:
        first = wrong[0].findings[0]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return VerificationFailed(f"{first.path}: {first.evidence} ({first.reason.value}){more}")
    if broken:
        return VerificationFailed(f"{broken[0].path}: {broken[0].text}")
    if bad:
        first = bad[0].findings[0]
        return CouldNotLook(f"{first.path}: {first.evidence}")
    if not checkpoints:
        where = asked.run or asked.looks[0].place.root
        return NeverAny(f"{where}: there is nothing to verify")
    return None
