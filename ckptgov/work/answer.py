"""The choice over all places of one run, proving no more candidates than it takes."""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.model.facts import CheckpointFacts, Choice, Query
from ckptgov.model.journal import NumberedRecord
from ckptgov.planning.choose import STEP_OVER_LIMIT, RunFacts, choose
from ckptgov.planning.lines import ordered
from ckptgov.planning.merge import join_places
from ckptgov.work.look import Candidate, RunLook


def share_journal(looks: Sequence[RunLook]) -> tuple[NumberedRecord, ...]:
    """Merge the places' journals by record id and let every look judge by all of it."""
    records = tuple(ordered(item for look in looks for item in look.records))
    for look in looks:
        look.use_records(records)
    return records


def answer(
    looks: Sequence[RunLook],
    query: Query,
    *,
    unsealed: bool = True,
    everything: bool = False,
    step_over_limit: int = STEP_OVER_LIMIT,
    more: Sequence[CheckpointFacts] = (),
) -> Choice:
    """The choice over all places of one run, proving no more candidates than it takes.

    ``everything`` proves all of them (for ``explain`` and ``list``). ``more`` are facts known
    from elsewhere (a catalog's last sightings) that give reasons and are never offered.
    """
    waiting = _grouped([one for look in looks for one in look.candidates(unsealed=unsealed)])
    records = share_journal(looks)
    proven: list[CheckpointFacts] = list(more)
    choice = _choose(looks, proven, records, query, step_over_limit)
    while waiting:
        batch, waiting = _next_batch(waiting, everything=everything)
        for group in batch:
            facts = [fact for one in group if (fact := one.prove()) is not None]
            proven += join_places([[fact] for fact in facts])
        choice = _choose(looks, proven, records, query, step_over_limit)
        if not everything and _is_settled(choice, waiting):
            break
    return choice


def _choose(
    looks: Sequence[RunLook],
    proven: Sequence[CheckpointFacts],
    records: tuple[NumberedRecord, ...],
    query: Query,
    step_over_limit: int,
) -> Choice:
    notes = tuple(note for look in looks for note in look.notes())
    facts = RunFacts(checkpoints=tuple(proven), records=records, notes=notes)
    return choose(facts, query, step_over_limit=step_over_limit)


def _grouped(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Candidates of one key (one content, seen at several places) are proven together."""
    groups: dict[str, list[Candidate]] = {}
    for one in candidates:
        groups.setdefault(one.key, []).append(one)
    return sorted(groups.values(), key=_step_first, reverse=True)


def _step_first(group: Sequence[Candidate]) -> tuple[int, int]:
    step = group[0].known_step
    return (1, 0) if step is None else (0, step)


def _next_batch(
    waiting: list[list[Candidate]], *, everything: bool
) -> tuple[list[list[Candidate]], list[list[Candidate]]]:
    """All without a known step first, then one step at a time, highest first."""
    if everything:
        return waiting, []
    first = _step_first(waiting[0])
    if first[0] == 1:
        return (
            [one for one in waiting if one[0].known_step is None],
            [one for one in waiting if one[0].known_step is not None],
        )
    return (
        [one for one in waiting if _step_first(one) == first],
        [one for one in waiting if _step_first(one) != first],
    )


def _is_settled(choice: Choice, waiting: Sequence[Sequence[Candidate]]) -> bool:
    if choice.chosen is None or not waiting:
        return choice.chosen is not None
    next_step = waiting[0][0].known_step
    chosen = choice.chosen.step
    return next_step is not None and chosen is not None and chosen > next_step
