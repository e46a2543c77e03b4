"""``latest`` in every mode: one pure function from a run's facts to an answer with reasons.

The answer is the highest step of the active line that is whole, good for the purpose, reachable
and fitting. Time never orders checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.model.checkpoint import Evidence, StepKind
from ckptgov.model.facts import (
    CheckpointFacts,
    Choice,
    CopyFacts,
    Finding,
    Note,
    Query,
    Reason,
    Verdict,
)
from ckptgov.model.journal import LineCause, NumberedRecord, Outcome, RestoreOutcome
from ckptgov.planning.lines import Lines, is_marked_bad, ordered, read_lines

STEP_OVER_LIMIT = 3
"""How many checkpoints that failed to load are passed over before the loader is blamed."""

_UNLOADABLE = frozenset({RestoreOutcome.CORRUPT, RestoreOutcome.LOAD_FAILED})


class RunFacts(Struct, frozen=True, kw_only=True):
    """A run as it stands: its checkpoints over all places, and its journal."""

    checkpoints: tuple[CheckpointFacts, ...]
    records: tuple[NumberedRecord, ...]
    notes: tuple[Note, ...] = ()


def choose(facts: RunFacts, query: Query, *, step_over_limit: int = STEP_OVER_LIMIT) -> Choice:
    """Pick the newest checkpoint that may be handed out, with a verdict for every one."""
    records = ordered(facts.records)
    lines = read_lines(records)
    unloadable = reported_unloadable(records)
    verdicts = [
        Verdict(checkpoint=one, findings=_findings(one, query, records, lines, unloadable))
        for one in sorted(_trusted(facts.checkpoints, unloadable), key=_newest_first)
    ]
    notes = [*facts.notes, *_line_notes(lines)]
    chosen = next((one.checkpoint for one in verdicts if one.is_restorable), None)
    stepped = _stepped_over(verdicts, chosen, unloadable)
    if stepped:
        notes.append(_step_over_note(stepped, step_over_limit))
        if len(stepped) > step_over_limit:
            chosen = None
    if chosen is not None and chosen.is_gathered:
        # Put together from sound shards, which is what the asker is about to do.
        chosen = replace(chosen, evidence=Evidence.DIGEST, findings=())
    return Choice(chosen=chosen, verdicts=tuple(verdicts), notes=tuple(notes))


def _newest_first(one: CheckpointFacts) -> tuple[int, int, int, int, int, bytes]:
    """Step, then line, then attempt, then evidence, then names that say a step, then the name."""
    name = one.name.rsplit("/", 1)[-1]
    return (
        -(one.step if one.step is not None else -1),
        -one.line,
        -one.attempt,
        0 if one.evidence is Evidence.DIGEST else 1,
        0 if any(letter.isdigit() for letter in name) else 1,
        one.name.encode("utf-8", "surrogateescape"),
    )


def _findings(
    one: CheckpointFacts,
    query: Query,
    records: Sequence[NumberedRecord],
    lines: Lines,
    unloadable: dict[str, Outcome],
) -> tuple[Finding, ...]:
    is_gathered = query.may_gather and one.is_gathered
    found = [] if is_gathered else list(one.findings)
    if query.only_name is not None and one.name != query.only_name:
        found.append(Finding(Reason.SUPERSEDED, one.name, "another checkpoint was asked for"))
    found += _history_findings(one, records, lines)
    found += _load_findings(one, query, unloadable)
    found += _purpose_findings(one, query)
    found += _fit_findings(one, query)
    if query.step is not None and one.step != query.step:
        found.append(Finding(Reason.SUPERSEDED, one.name, f"step {query.step} was asked for"))
    return tuple(found)


def _history_findings(
    one: CheckpointFacts, records: Sequence[NumberedRecord], lines: Lines
) -> Iterable[Finding]:
    if one.step is None or one.step_kind is StepKind.NONE:
        yield Finding(Reason.STEPLESS, one.name, "carries no step; listed, never latest")
        mark = is_marked_bad(records, content_id=one.content_id, step=None, line=one.line)
    else:
        if not lines.includes(one.line, one.step):
            yield Finding(Reason.SUPERSEDED, one.name, _superseded_words(one, lines))
        mark = is_marked_bad(records, content_id=one.content_id, step=one.step, line=one.line)
    if mark is not None:
        yield Finding(Reason.BAD, one.name, mark)


def _superseded_words(one: CheckpointFacts, lines: Lines) -> str:
    active = lines.active
    why = f"{active.cause.value}" if active.cause else "a later line"
    return (
        f"belongs to line {one.line}; line {active.number} "
        f"({why} to step {active.base_step}) has replaced it"
    )


def _load_findings(
    one: CheckpointFacts, query: Query, unloadable: dict[str, Outcome]
) -> Iterable[Finding]:
    if one.content_id is None:
        return
    if one.content_id in query.without:
        yield Finding(Reason.BAD, one.name, "reported unloadable in an earlier epoch of this id")
        return
    report = unloadable.get(one.content_id)
    if report is None:
        return
    if any(_is_cleared_copy(report, copy) for copy in one.copies):
        return
    yield Finding(
        Reason.BAD,
        one.name,
        f"restart {report.restart_id} reported {report.outcome.value} ({report.stamp.by})",
    )


def _trusted(
    checkpoints: Iterable[CheckpointFacts], unloadable: dict[str, Outcome]
) -> Iterator[CheckpointFacts]:
    """Of what was reported corrupt, the copies alone that were compared since, if there are any."""
    for one in checkpoints:
        report = unloadable.get(one.content_id or "")
        cleared = tuple(
            copy for copy in one.copies if report is not None and _is_cleared_copy(report, copy)
        )
        yield replace(one, copies=cleared) if cleared else one


def _is_cleared_copy(report: Outcome, copy: CopyFacts) -> bool:
    """Whether its last comparison, which found nothing wrong, came after the report."""
    is_good = copy.evidence is Evidence.DIGEST and not copy.findings
    return is_good and is_cleared(report, copy.verified_at_ns)


def is_cleared(report: Outcome, compared_at_ns: int | None) -> bool:
    """Whether a copy that was last compared then is past this report: corruption was looked for
    since, and not found. That it did not load is ended by no comparison."""
    is_doubt = report.outcome is RestoreOutcome.CORRUPT
    return is_doubt and compared_at_ns is not None and compared_at_ns > report.stamp.at_ns


def _purpose_findings(one: CheckpointFacts, query: Query) -> Iterable[Finding]:
    if query.purpose not in one.purposes:
        have = ", ".join(one.purposes) or "nothing"
        yield Finding(Reason.WRONG_PURPOSE, one.name, f"complete for {have} only")
    is_unproven = query.min_evidence is Evidence.DIGEST and one.evidence is not Evidence.DIGEST
    if is_unproven and not one.findings and not one.is_gathered:
        yield Finding(
            Reason.UNVERIFIED,
            one.name,
            "its bytes were not compared with a manifest here"
            if one.content_id
            else "not sealed: there is no manifest to compare with",
        )


def _fit_findings(one: CheckpointFacts, query: Query) -> Iterable[Finding]:
    asked = query.world_size
    if asked is None or one.reshardable or one.world_size == asked:
        return
    if one.world_size is None and one.reshardable is None:
        return
    saved = one.world_size if one.world_size is not None else "an unknown number of"
    why = (
        "cannot be loaded on another number"
        if one.reshardable is False
        else "is not known to load on another number"
    )
    yield Finding(
        Reason.DOES_NOT_FIT,
        one.name,
        f"saved by {saved} ranks and {why}; {asked} were asked for",
    )


def reported_unloadable(records: Sequence[NumberedRecord]) -> dict[str, Outcome]:
    """Content ids whose newest report about loading says no, with that report."""
    standing: dict[str, Outcome] = {}
    for item in records:
        record = item.record
        if not isinstance(record, Outcome):
            continue
        if record.outcome in _UNLOADABLE:
            standing[record.content_id] = record
        elif record.outcome in (RestoreOutcome.STARTED, RestoreOutcome.FAILED_LATER):
            standing.pop(record.content_id, None)
    return standing


def _stepped_over(
    verdicts: Sequence[Verdict], chosen: CheckpointFacts | None, unloadable: dict[str, Outcome]
) -> list[CheckpointFacts]:
    stepped = []
    for verdict in verdicts:
        one = verdict.checkpoint
        if one is chosen:
            break
        only_bad = all(finding.reason is Reason.BAD for finding in verdict.findings)
        if only_bad and one.content_id in unloadable:
            stepped.append(one)
    return stepped


def _step_over_note(stepped: Sequence[CheckpointFacts], limit: int) -> Note:
    names = ", ".join(one.name for one in stepped)
    if len(stepped) > limit:
        return Note(
            "alert",
            stepped[0].name,
            f"{len(stepped)} checkpoints in a row failed to load ({names}): this looks like the "
            "loader, not the checkpoints; nothing older is offered until one is reported started "
            "or the marks are lifted",
        )
    return Note("alert", stepped[0].name, f"passed over because it failed to load: {names}")


def _line_notes(lines: Lines) -> Iterable[Note]:
    active = lines.active
    if active.cause is LineCause.LOWER_STEP:
        yield Note(
            "unsettled-line",
            "",
            f"line {active.number} was opened because a lower step appeared after a higher one "
            f"was sealed (base step {active.base_step}); settle it with 'ckptgov rollback'",
        )
