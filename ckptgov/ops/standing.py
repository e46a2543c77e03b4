"""Questions about a run, answered from the catalog: the same values that looks give.

The cost does not grow with the run: checkpoints are read newest first, page by page, and no more
of them than the answer takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlacedCopy, SealedFacts
from ckptgov.errors import CkptgovError, CouldNotLook, NoneRestorable
from ckptgov.model.answers import LatestAnswer, RestartAnswer, RunListing
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.facts import CheckpointFacts, Choice, Note, Query, Verdict
from ckptgov.model.journal import begins_at_zero
from ckptgov.ops.context import Context
from ckptgov.ops.standing_facts import (
    completed,
    facts_of,
    is_fit_known,
    reshardable,
    sighted,
)
from ckptgov.ops.standing_run import StandingRun, decoded, standing_run
from ckptgov.planning.choose import RunFacts, choose
from ckptgov.work import addresses, ask
from ckptgov.work.ask import nearest_copy, resume_at

FIRST_PAGE = 16
LARGEST_PAGE = 2048
MOST_TOLD = 10_000
"""Checkpoints passed over that an answer keeps; older ones are judged and not told."""
MOST_LISTED = 1000
_MOST_SHARDS_READ = 200_000
"""Shards of manifests a listing reads for what only manifests tell; then that is "not known"."""

_Key = tuple[int, int, int]


class Standing(Struct, frozen=True, kw_only=True):
    """An answer, and how long it stands while nothing is committed about the run.

    ``good_until_ns`` by the wall clock; None: until then; 0: it was looked up just now and says
    nothing about later.
    """

    answer: LatestAnswer
    run_id: str | None = None
    good_until_ns: int | None = None


class Walk(Struct, kw_only=True):
    """A run's checkpoints judged newest first, as far as an answer took."""

    run: StandingRun
    choice: Choice = Choice(chosen=None, verdicts=())
    placed: dict[str, tuple[PlacedCopy, ...]] = {}
    is_empty: bool = True
    is_cut: bool = False


def latest(
    context: Context,
    name: str,
    query: Query,
    *,
    node: str | None = None,
    place: str | None = None,
    everything: bool = False,
) -> Standing:
    """The newest checkpoint that may be handed out, or the error that says why there is none."""
    run_id: str | None = None
    choice = Choice(chosen=None, verdicts=())
    try:
        node = node_asking(context.catalog, node, place)
        run = standing_run(context, name, node=node)
        run_id = run.run_id
        if not run.is_plain:
            return _looked_up(context, run, query, node=node, everything=everything)
        walk = walk_newest(context, run, query, everything=everything)
        choice = walk.choice
        if choice.chosen is None:
            if is_untouched(context.catalog, walk):
                return _looked_up(context, run, query, node=node, everything=everything)
            raise why_none(walk)
        answer = answer_with(run, choice, choice.chosen, node=node)
        return Standing(answer=answer, run_id=run_id, good_until_ns=run.good_until_ns)
    except CkptgovError as error:
        known = name if run_id is not None else None
        answer = LatestAnswer(run=known, choice=choice, chosen=None, error=error)
        until_ns = None if run_id is None else run.good_until_ns
        return Standing(answer=answer, run_id=run_id, good_until_ns=until_ns)


def node_asking(catalog: Catalog, node: str | None, place: str | None) -> str | None:
    """The node whose disk comes first: the one named, or the one the named place lies on."""
    if place is None:
        return node
    return next((one.node for one in catalog.places() if one.place == place), node)


def _looked_up(
    context: Context, run: StandingRun, query: Query, *, node: str | None, everything: bool
) -> Standing:
    """By looks: where the catalog cannot tell, or must not ("never any" needs a complete look)."""
    asked = context.asked(run.name, node=node, sealed_only=True)
    assert asked is not None, "it was known a moment ago"
    query = replace(query, min_evidence=Evidence.DIGEST)
    answer = ask.latest(asked, query, everything=everything)
    return Standing(answer=answer, run_id=run.run_id, good_until_ns=0)


def walk_newest(
    context: Context, run: StandingRun, query: Query, *, everything: bool = False
) -> Walk:
    """Judge checkpoints newest first until one may be handed out; ``everything``: all of them."""
    query = replace(query, min_evidence=Evidence.DIGEST)
    limit = context.settings.step_over_limit
    proven = sighted(run, context.catalog.sightings(run.run_id))
    walk = Walk(run=run, placed={}, is_empty=not proven)
    walk.choice = _choose(run, proven, query, limit)
    for page in pages(context.catalog, run.run_id, step=query.step):
        walk.is_empty = False
        facts = _with_copies(context.catalog, walk, page)
        if query.world_size is not None:
            facts = [_hopeful(one, query.world_size) for one in facts]
        if len(proven) > MOST_TOLD:
            facts = _worth_telling(run, facts, query, limit)
            walk.is_cut = True
        proven += facts
        _fit_or_pass(context.catalog, walk, proven, query, limit)
        if not everything and _is_settled(walk.choice):
            break
    _complete_chosen(context.catalog, walk)
    walk.choice = _with_notes(walk)
    return walk


def pages(catalog: Catalog, run_id: str, *, step: int | None) -> Iterator[list[SealedFacts]]:
    """Sealed checkpoints newest first, or those of one step; pages grow while they are wanted."""
    before: _Key | None = None if step is None else (step + 1, 0, 0)
    limit = FIRST_PAGE
    while True:
        page = list(catalog.newest(run_id, before=before, limit=limit))
        is_last = len(page) < limit
        if page:
            before = _key(page[-1])
        if step is not None:
            is_last = is_last or page[-1].step != step
            page = [one for one in page if one.step == step]
        if page:
            yield page
        if is_last:
            return
        limit = min(limit * 4, LARGEST_PAGE)


def _key(one: SealedFacts) -> _Key:
    return (one.step if one.step is not None else -1, one.line, one.attempt)


def _with_copies(
    catalog: Catalog, walk: Walk, page: Sequence[SealedFacts]
) -> list[CheckpointFacts]:
    placed = catalog.copies_of(walk.run.run_id, [one.content_id for one in page])
    found = []
    for sealed in page:
        copies = placed.get(sealed.content_id, ())
        facts = facts_of(walk.run, sealed, copies)
        if facts is not None:
            walk.placed[sealed.content_id] = copies
            found.append(facts)
    return found


def _hopeful(one: CheckpointFacts, world_size: int) -> CheckpointFacts:
    """As if it loaded on any number of ranks: its manifest is read only once it is chosen."""
    return one if one.world_size == world_size else replace(one, reshardable=True)


def _fit_or_pass(
    catalog: Catalog, walk: Walk, proven: list[CheckpointFacts], query: Query, limit: int
) -> None:
    """Choose; where the chosen one's fit was only hoped for, learn it and choose again."""
    learned: dict[str | None, bool | None] = {}
    while True:
        walk.choice = _choose(walk.run, proven, query, limit)
        chosen = walk.choice.chosen
        is_hoped = query.world_size is not None and chosen is not None
        if not is_hoped or chosen is None or chosen.world_size == query.world_size:
            return
        if chosen.content_id in learned:
            return
        # Those remembered cost nothing: all of them at once, or the rest one by one.
        for index, one in enumerate(proven):
            if one.content_id is None or one.content_id in learned:
                continue
            if one.content_id == chosen.content_id or is_fit_known(one):
                told = reshardable(catalog, walk.run.run_id, one)
                learned[one.content_id] = told
                if one.world_size != query.world_size:
                    proven[index] = replace(one, reshardable=told)


def _choose(
    run: StandingRun, proven: Sequence[CheckpointFacts], query: Query, limit: int
) -> Choice:
    facts = RunFacts(checkpoints=tuple(proven), records=run.judging)
    return choose(facts, query, step_over_limit=limit)


def _is_settled(choice: Choice) -> bool:
    """Whether nothing older can matter: one was chosen, or too many in a row failed to load."""
    return choice.chosen is not None or any(one.is_restorable for one in choice.verdicts)


def _worth_telling(
    run: StandingRun, facts: Sequence[CheckpointFacts], query: Query, limit: int
) -> list[CheckpointFacts]:
    """Of a page behind very many: what may be handed out."""
    choice = _choose(run, facts, query, limit)
    return [one.checkpoint for one in choice.verdicts if one.is_restorable]


def _complete_chosen(catalog: Catalog, walk: Walk) -> None:
    chosen = walk.choice.chosen
    if chosen is None or chosen.content_id is None:
        return
    told = completed(catalog, walk.run.run_id, chosen, walk.placed[chosen.content_id])
    verdicts = tuple(
        replace(one, checkpoint=told) if one.checkpoint.content_id == told.content_id else one
        for one in walk.choice.verdicts
    )
    walk.choice = replace(walk.choice, chosen=told, verdicts=verdicts)


def _with_notes(walk: Walk) -> Choice:
    notes = [*walk.choice.notes, *walk.run.unreachable]
    if walk.is_cut:
        text = f"only the newest {MOST_TOLD} of those passed over are told"
        notes.append(Note("not-told", "", text))
    return replace(walk.choice, notes=tuple(notes))


def is_untouched(catalog: Catalog, walk: Walk) -> bool:
    """Whether the catalog knows of no checkpoint, sealed or not, and of no record of one."""
    run = walk.run
    if not walk.is_empty or catalog.newest(run.run_id, before=None, limit=1):
        return False
    records = decoded(catalog.records(run.run_id))
    return all(begins_at_zero(item.record) for item in records)


def why_none(walk: Walk) -> CkptgovError:
    """Some but none restorable, or could not look. "Never any" is not the catalog's to say."""
    unreachable = walk.run.unreachable
    if unreachable:
        return CouldNotLook(
            f"no restorable checkpoint here, and {unreachable[0].text}",
            hint="a place that does not answer may hold one; nothing is known to be absent",
        )
    verdicts = walk.choice.verdicts
    if not verdicts:
        return NoneRestorable(f"{walk.run.name}: records of checkpoints, but none of them is there")
    return NoneRestorable(
        f"{walk.run.name}: {_reasons(verdicts)}", hint="'ckptgov explain' says why"
    )


def _reasons(verdicts: Sequence[Verdict]) -> str:
    count = len(verdicts)
    words = f"{count} checkpoint{'s' if count != 1 else ''}, none restorable"
    finding = next((one for verdict in verdicts for one in verdict.findings), None)
    if finding is None:
        return words
    return f"{words}; newest: {finding.path}: {finding.evidence} ({finding.reason.value})"


def answer_with(
    run: StandingRun,
    choice: Choice,
    chosen: CheckpointFacts,
    *,
    node: str | None,
    restart: RestartAnswer | None = None,
) -> LatestAnswer:
    """The answer for an asker on ``node``: paths at the nearest copy that counts.

    Where none counts any more (a decision outlives them), at the nearest that can be reached.
    """
    reachable = [one for one in chosen.copies if one.is_reachable]
    copy = nearest_copy(reachable or chosen.copies, node=node)
    assert copy is not None, "facts without a copy are none"
    name = copy.name or chosen.name
    return LatestAnswer(
        run=run.name,
        choice=choice,
        chosen=chosen,
        path=addresses.join(copy.root, name),
        resume=resume_at(chosen, copy.root, name),
        restart=restart,
    )


def checkpoint_named(
    context: Context, run: StandingRun, content_id: str, *, step: int | None
) -> CheckpointFacts | None:
    """One sealed checkpoint by its content; None where it is not known or no copy is left."""
    for page in pages(context.catalog, run.run_id, step=step):
        for sealed in page:
            if sealed.content_id == content_id:
                placed = context.catalog.copies_of(run.run_id, [content_id]).get(content_id, ())
                facts = facts_of(run, sealed, placed)
                if facts is None:
                    return None
                return completed(context.catalog, run.run_id, facts, placed)
    return None


def listing(
    context: Context,
    name: str,
    query: Query | None = None,
    *,
    node: str | None = None,
    most: int = MOST_LISTED,
) -> RunListing:
    """A run's newest checkpoints with their verdicts, at most ``most`` sealed ones.

    Raises:
        UnknownRun, CouldNotLook: as ``latest``.
    """
    run = standing_run(context, name, node=node)
    wanted = replace(query or Query(), min_evidence=Evidence.DIGEST)
    facts = sighted(run, context.catalog.sightings(run.run_id))
    walk = Walk(run=run, placed={})
    notes = list(run.unreachable)
    count = 0
    for page in pages(context.catalog, run.run_id, step=wanted.step):
        facts += _with_copies(context.catalog, walk, page[: most - count])
        count += len(page)
        if count >= most:
            notes.append(Note("not-told", "", f"only the newest {most} sealed ones are listed"))
            break
    told = tuple(_completed_within(context.catalog, run.run_id, facts, walk.placed))
    choice = _choose(run, told, wanted, context.settings.step_over_limit)
    notes = [*choice.notes, *notes]
    notes += [note for verdict in choice.verdicts for note in verdict.checkpoint.notes]
    first = next(iter(run.sites.values()))
    return RunListing(
        run=run.name,
        run_id=run.run_id,
        root=first.address,
        verdicts=choice.verdicts,
        notes=tuple(dict.fromkeys(notes)),
        active_line=run.lines.active.number,
    )


def _completed_within(
    catalog: Catalog,
    run_id: str,
    facts: Iterable[CheckpointFacts],
    placed: Mapping[str, Sequence[PlacedCopy]],
) -> Iterator[CheckpointFacts]:
    """With what manifests tell, as long as not too many shards must be read for it."""
    left = _MOST_SHARDS_READ
    for one in facts:
        if one.content_id is None:
            yield one
            continue
        is_free = is_fit_known(one) and all(copy.shards is None for copy in one.copies)
        if not is_free:
            left -= one.shard_count
        if is_free or left >= 0:
            yield completed(catalog, run_id, one, placed[one.content_id])
        else:
            yield one
