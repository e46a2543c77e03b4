"""Scrub: compare in rotation what has longest not been compared, so that nothing is left out.

Deterministic: what is due is decided from the catalog alone, oldest verdict first, and every
turn takes its share, so that each byte is read within ``verify_max_age`` and no turn reads all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from ckptgov.catalog.facts import PlacedCopy
from ckptgov.errors import CkptgovError, CouldNotLook, PartlyDone, VerificationFailed
from ckptgov.model.answers import VerifiedCheckpoint, VerifyAnswer
from ckptgov.model.checkpoint import VerifyLevel
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Note, Reason
from ckptgov.model.pacing import FlowClass
from ckptgov.ops.context import Context
from ckptgov.ops.moving import paced_reading
from ckptgov.ops.policies import verify_max_ages
from ckptgov.ops.record import record_look
from ckptgov.work.answer import share_journal
from ckptgov.work.ask import verified
from ckptgov.work.look import RunLook
from ckptgov.work.seal import SealSettings
from ckptgov.work.verify import VerifyOutcome, verify_sealed

_COMPARED = frozenset(
    {CopyState.VERIFIED, CopyState.PARTIAL, CopyState.REOPENED, CopyState.UNREADABLE}
)
"""States of copies that are compared again; what is quarantined or on its way out is not."""
_TURNS_AHEAD = 2
"""What would be too old two turns from now is due: a turn may be late, and takes its time."""


class Standing(Struct, frozen=True, kw_only=True):
    """A copy and when it was last compared (0: never)."""

    run: str
    run_id: str
    content_id: str
    place: str
    bytes: int
    verified_at_ns: int

    @property
    def turn(self) -> tuple[int, str, str, str]:
        """Its place in the rotation: oldest first, the same for whoever asks."""
        return self.verified_at_ns, self.run_id, self.content_id, self.place


def due(
    copies: Iterable[Standing], *, now_ns: int, max_age_s: float, share_s: float
) -> tuple[Standing, ...]:
    """What to compare in one turn, oldest first.

    At least the share of all bytes that a turn has to do when turns come every ``share_s``, and
    whatever would be older than ``max_age_s`` before the turn after the next is over.
    """
    ordered = sorted(copies, key=lambda one: one.turn)
    share_bytes = math.ceil(sum(one.bytes for one in ordered) * min(1.0, share_s / max_age_s))
    oldest_ns = now_ns - int(max(0.0, max_age_s - _TURNS_AHEAD * share_s) * 1e9)
    taken: list[Standing] = []
    done_bytes = 0
    for one in ordered:
        if done_bytes >= share_bytes and one.verified_at_ns > oldest_ns:
            break
        taken.append(one)
        done_bytes += one.bytes
    return tuple(taken)


def scrub(
    context: Context,
    tiers: Sequence[str],
    *,
    share_s: float,
    stop: Callable[[], bool] = lambda: False,
) -> VerifyAnswer:
    """One turn over the copies at some tiers; each checkpoint stands on its own.

    ``stop`` is asked between two checkpoints; what was compared by then is recorded.
    """
    wanted = _due_by_run(context, tuple(_standing(context, tiers)), share_s=share_s)
    groups: dict[str, list[Standing]] = {}
    for one in wanted:
        groups.setdefault(one.run, []).append(one)
    done: list[VerifiedCheckpoint] = []
    missed: list[str] = []
    notes: list[Note] = []
    for run, those in groups.items():
        if stop():
            break
        try:
            done += _compare_run(context, run, those, stop, notes, missed)
        except CkptgovError as error:
            missed.append(error.message)
    return VerifyAnswer(
        checkpoints=tuple(done),
        notes=tuple(dict.fromkeys(notes)),
        error=_error_of(done, missed),
    )


def _due_by_run(context: Context, copies: Sequence[Standing], *, share_s: float) -> list[Standing]:
    """What is due of runs that are compared equally often, oldest first over all of them."""
    ages = verify_max_ages(context, {one.run for one in copies})
    now_ns = context.author.clock.now_ns()
    wanted: list[Standing] = []
    for age_s in sorted(set(ages.values())):
        those = [one for one in copies if ages[one.run] == age_s]
        wanted += due(those, now_ns=now_ns, max_age_s=age_s, share_s=share_s)
    return sorted(wanted, key=lambda one: one.turn)


def _standing(context: Context, tiers: Sequence[str]) -> Iterator[Standing]:
    """Copies at those of the tiers' places that this process can look at."""
    here = {
        place.place
        for tier in context.settings.tiers
        if tier.name in tiers
        and (place := context.catalog.place_by_root(tier.root, node=tier.node)) is not None
    }
    for run in context.catalog.runs():
        run_id = run.identity.run_id
        copies = [one for one in context.catalog.copies(run_id) if _is_compared(one, here)]
        if not copies:
            continue
        sizes = {one.content_id: one.bytes for one in context.catalog.checkpoints(run_id)}
        for one in copies:
            yield Standing(
                run=run.identity.name,
                run_id=run_id,
                content_id=one.content_id,
                place=one.place,
                bytes=sizes.get(one.content_id, 0),
                verified_at_ns=one.verified_at_ns or 0,
            )


def _is_compared(one: PlacedCopy, here: set[str]) -> bool:
    return one.place in here and one.state in _COMPARED


def _compare_run(
    context: Context,
    run: str,
    those: Sequence[Standing],
    stop: Callable[[], bool],
    notes: list[Note],
    missed: list[str],
) -> list[VerifiedCheckpoint]:
    asked = context.asked(run)
    if asked is None:
        return []
    share_journal(asked.looks)
    if {one.place for one in those} - {look.place.uuid for look in asked.looks}:
        notes += asked.unreachable
        missed.append(asked.unreachable[0].text if asked.unreachable else run)
    done: list[VerifiedCheckpoint] = []
    for look in asked.looks:
        wanted = {one.content_id for one in those if one.place == look.place.uuid}
        if not wanted:
            continue
        what = f"scrub {run}"
        with paced_reading(context, [look], what=what, flow_class=FlowClass.BACKGROUND):
            compared = list(_compare(context, look, wanted, stop))
        look.refresh()
        at_ns = context.author.clock.now_ns()
        record_look(context.catalog, look, those[0].run_id, at_ns=at_ns, sightings=None)
        done += [verified(look, one) for one in compared]
    return done


def _compare(
    context: Context, look: RunLook, wanted: set[str], stop: Callable[[], bool]
) -> Iterator[VerifyOutcome]:
    settings = SealSettings(threads=context.settings.digest_threads, progress=context.progress)
    for stored in look.stored:
        copy = look.sealed(stored)
        if copy is None or copy.manifest.content_id not in wanted or look.is_gone(copy):
            continue
        if stop():
            return
        yield verify_sealed(
            look,
            copy,
            level=VerifyLevel.DIGEST,
            clock=context.author.clock,
            settings=settings,
        )


def _error_of(done: Sequence[VerifiedCheckpoint], missed: Sequence[str]) -> CkptgovError | None:
    """What could not be looked at goes first: of bad bytes the copies' states tell already."""
    if missed:
        return PartlyDone(
            f"{len(missed)} could not be looked at, the others are done; first: {missed[0]}"
        )
    bad = [one.findings[0] for one in done if one.findings]
    if all(one.reason is Reason.UNREADABLE for one in bad):
        return CouldNotLook(f"{bad[0].path}: {bad[0].evidence}") if bad else None
    return VerificationFailed(
        f"{len(bad)} of {len(done)} did not compare equal; "
        f"first: {bad[0].path}: {bad[0].evidence} ({bad[0].reason.value})"
    )
