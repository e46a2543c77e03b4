"""What a plan's entries are worth on storage: bytes really freed, and whether they are as known.

A copy that changed since it was verified, one that a mover is at work on, and what the journal at
the run's home says and the catalog does not know yet, correct the facts the plan was made from; it
is then made again from the corrected ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.errors import CkptgovError, RefusedBySafety, StaleState
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import CheckpointToKeep, PlanEntry, RunToKeep
from ckptgov.ops.context import Context
from ckptgov.ops.copy_lease import arriving
from ckptgov.ops.removal_guard import catch_up
from ckptgov.ops.standing_run import is_here
from ckptgov.work.look import RunLook, look_settings
from ckptgov.work.remove import Freed, measure

_Copy = tuple[str, str, str]
"""Run id, content id and place."""


class Measured:
    """What was measured for one plan, over all the times it is made."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._places = {one.place: one for one in context.catalog.places()}
        self._shared = [key for key, one in self._places.items() if one.node is None]
        self._freed: dict[_Copy, Freed | None] = {}
        self._changed: dict[_Copy, CopyState] = {}
        self._caught_up: dict[str, bool] = {}
        self._held: dict[tuple[str, str], str | None] = {}
        self.notes: list[tuple[str, str]] = []
        """Run and what was found of it that a person should see to."""
        self.failures: dict[str, str] = {}
        """Run id to why a copy of it could not be looked at: nothing of the run goes."""

    def corrected(self, run: RunToKeep) -> RunToKeep:
        """The run with what measuring found instead of what the catalog said."""
        found = tuple(self._corrected(run.run_id, one) for one in run.checkpoints)
        return replace(run, checkpoints=found) if found != run.checkpoints else run

    def _corrected(self, run_id: str, one: CheckpointToKeep) -> CheckpointToKeep:
        held = self._held.get((run_id, one.content_id))
        if held is not None:
            one = replace(one, leases=one.leases | {held})
        if any((run_id, one.content_id, copy.place) in self._changed for copy in one.copies):
            copies = tuple(
                replace(
                    copy,
                    state=self._changed.get((run_id, one.content_id, copy.place), copy.state),
                )
                for copy in one.copies
            )
            one = replace(one, copies=copies)
        return one

    def measure(self, entries: Sequence[PlanEntry]) -> bool:
        """Look at what is to go and was not looked at before; whether all is as the plan has it."""
        before = self._found()
        by_root: dict[tuple[str, str], list[PlanEntry]] = {}
        for one in entries:
            if (one.run_id, one.content_id, one.place) in self._freed:
                continue
            if one.run_id not in self._caught_up:
                self._catch_up(one)
            self._ask_movers(one)
            by_root.setdefault((one.run_id, one.place), []).append(one)
        for (run_id, place), those in by_root.items():
            self._measure_at(run_id, place, those)
        return before == self._found()

    def _found(self) -> tuple[int, ...]:
        held = sum(why is not None for why in self._held.values())
        news = sum(self._caught_up.values())
        return len(self._changed), held, len(self.failures), news

    def _catch_up(self, one: PlanEntry) -> None:
        """Pins, marks and decisions may stand at the run's home, and not yet in the catalog."""
        catalog = self._context.catalog
        before = len(catalog.binding_records(one.run_id))
        try:
            catch_up(self._context, one.run)
        except CkptgovError as error:
            self.failures.setdefault(one.run_id, error.message)
        self._caught_up[one.run_id] = len(catalog.binding_records(one.run_id)) > before

    def _ask_movers(self, one: PlanEntry) -> None:
        key = (one.run_id, one.content_id)
        places = [] if key in self._held else list(self._shared)
        if one.node is not None:
            places.append(one.place)
        self._held.setdefault(key, None)
        if any(arriving(self._context, [one.content_id], place) for place in places):
            self._held[key] = "a mover that copies it"

    def _measure_at(self, run_id: str, place: str, entries: Sequence[PlanEntry]) -> None:
        facts = self._places[place]
        if not is_here(self._context, facts.node):
            # Its agent measures when it removes; until then what the catalog knows is told.
            self._freed |= {(run_id, one.content_id, place): None for one in entries}
            return
        roots = [one for one in self._context.catalog.roots_of(run_id) if one.place == place]
        try:
            for one in entries:
                self._freed[run_id, one.content_id, place] = None
            self._look(run_id, roots[0], entries)
        except (FileNotFoundError, NotADirectoryError):
            self._changed |= {(run_id, one.content_id, place): CopyState.LOST for one in entries}
        except CkptgovError as error:
            self.failures.setdefault(run_id, error.message)

    def _look(self, run_id: str, root: RunRootFacts, entries: Sequence[PlanEntry]) -> None:
        context, facts = self._context, self._places[root.place]
        tier = context.tier_of(facts.root, facts.node)
        if tier is None:
            return
        place = context.place(tier)
        settings = look_settings(
            place, context.author.clock, clock_margin_s=context.settings.clock_margin_s
        )
        with RunLook(place, root.path, settings, partial=facts.node is not None) as look:
            for one in entries:
                key = (run_id, one.content_id, root.place)
                try:
                    self._freed[key] = freed = measure(place, look, one.content_id)
                    if not freed.files:
                        self._changed[key] = CopyState.LOST  # its trainer removed it, mostly
                except StaleState as error:
                    self._changed[key] = CopyState.REOPENED
                    self.notes.append((one.run, f"{one.checkpoint} stays: {error.message}"))
                except RefusedBySafety as error:
                    self._held[run_id, one.content_id] = "something else in its directory"
                    self.notes.append((one.run, f"{one.checkpoint} stays: {error.message}"))

    def give_up(self, entries: Iterable[PlanEntry]) -> None:
        """Leave runs alone that change faster than they can be planned."""
        for one in entries:
            if (one.run_id, one.content_id, one.place) not in self._freed:
                self.failures.setdefault(one.run_id, "it changes while it is planned")

    def freed(self, entries: Iterable[PlanEntry]) -> tuple[PlanEntry, ...]:
        """The entries with what their going really frees."""
        return tuple(self._with_freed(one) for one in entries)

    def _with_freed(self, one: PlanEntry) -> PlanEntry:
        found = self._freed.get((one.run_id, one.content_id, one.place))
        if found is None:
            return one
        return replace(one, bytes=found.bytes, files=found.files, size_bytes=found.size_bytes)
