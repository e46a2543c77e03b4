"""What can be asked and told of checkpoints, sealed or not, and their copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptgov.catalog import checkpoints, copies, removal_rows, sums
from ckptgov.catalog.database import Database
from ckptgov.catalog.facts import KEEP, Keep, PlacedCopy, SealedFacts, SightingFacts
from ckptgov.catalog.sums import CopySums, LeavingSum
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Finding, Sighting


class CheckpointCalls:
    """Part of ``Catalog``."""

    _database: Database

    def put_sealed(self, sealed: SealedFacts, manifest: bytes) -> bool:
        """Record a sealed checkpoint with its manifest's bytes; whether it was new.

        The first record of a content id in a run stands; a later one changes nothing.
        """
        with self._database.write() as connection:
            return checkpoints.put_sealed(connection, sealed, manifest)

    def checkpoints(self, run_id: str) -> tuple[SealedFacts, ...]:
        """A run's sealed checkpoints by step (stepless ones first), attempt and content id."""
        with self._database.read() as connection:
            return checkpoints.checkpoints(connection, run_id)

    def sealed_of(self, run_id: str, content_ids: Sequence[str]) -> dict[str, SealedFacts]:
        """Those of some checkpoints that are sealed in a run, by content id."""
        with self._database.read() as connection:
            return checkpoints.sealed_of(connection, run_id, content_ids)

    def totals(self, run_id: str | None = None) -> dict[str, tuple[int, int]]:
        """How many checkpoints are sealed and their bytes, of one run or each; by run id.

        Runs that have none are left out.
        """
        with self._database.read() as connection:
            return checkpoints.totals(connection, run_id)

    def newest(
        self, run_id: str, *, before: tuple[int, int, int] | None, limit: int
    ) -> tuple[SealedFacts, ...]:
        """About ``limit`` sealed checkpoints of a run, the highest (step, line, attempt) first.

        ``before`` continues below these three, which are the last one's of the page before;
        stepless ones come last and count as step -1. Those equal in all three are on one page,
        which may be longer for it.
        """
        with self._database.read() as connection:
            return checkpoints.newest(connection, run_id, before, limit)

    def manifest_bytes(self, run_id: str, content_id: str) -> bytes:
        """The manifest as it was given to ``put_sealed``.

        Raises:
            FileNotFoundError: no such checkpoint is sealed in this run.
        """
        with self._database.read() as connection:
            return checkpoints.manifest_bytes(connection, run_id, content_id)

    def put_copy(self, copy: PlacedCopy, at_ns: int) -> None:
        """Record a copy at a place where this checkpoint had none.

        Raises:
            FileExistsError: there is one in some state; ``transition`` changes it.
            RefusedBySafety: in a state that only a removal brings a copy to.
            ValueError: VERIFIED without evidence.
        """
        removal_rows.check_own(copy.state)
        with self._database.write() as connection:
            copies.put_copy(connection, copy, at_ns=at_ns)

    def copies(self, run_id: str) -> tuple[PlacedCopy, ...]:
        """A run's copies in every state, by content id and place."""
        with self._database.read() as connection:
            return copies.copies(connection, run_id)

    def copies_of(
        self, run_id: str, content_ids: Sequence[str]
    ) -> dict[str, tuple[PlacedCopy, ...]]:
        """The copies of some checkpoints of a run, by place; of one without any an empty tuple."""
        with self._database.read() as connection:
            return copies.copies_of(connection, run_id, content_ids)

    def copy_sums(self, run_id: str) -> CopySums:
        """What a run's copies come to by place and state; of what is whole no copy is read."""
        with self._database.read() as connection:
            return sums.copy_sums(connection, run_id)

    def leaving(self) -> tuple[LeavingSum, ...]:
        """What is condemned, being moved aside or in the trash, of all runs, by place and state."""
        with self._database.read() as connection:
            return sums.leaving(connection)

    def transition(
        self,
        run_id: str,
        content_id: str,
        place: str,
        *,
        expected: CopyState,
        to: CopyState,
        at_ns: int,
        evidence: Evidence | None = None,
        verified_at_ns: int | None = None,
        findings: Iterable[Finding] | None = None,
        coverage: bytes | Keep | None = KEEP,
        name: str | None = None,
    ) -> None:
        """Change a copy's state, if it is still ``expected``.

        What is not given stays, save that VERIFIED clears the findings. ``evidence`` says that a
        verdict was reached, at ``verified_at_ns`` (``at_ns`` if not given: an undo gives the old
        one back).

        Copies are condemned, and go on from there, by ``removals``; only the loss of a condemned
        one is told here.

        Raises:
            StaleState: the copy is in another state, or there is none; it is being removed.
            RefusedBySafety: to a state that only a removal brings a copy to.
            ValueError: ``to`` may not follow ``expected``; VERIFIED without evidence.
        """
        copies.check_allowed(expected, to)
        removal_rows.check_own(to)
        key = (run_id, content_id, place)
        with self._database.write() as connection:
            removal_rows.let_go(connection, key, expected=expected, to=to)
            copies.change(
                connection,
                key,
                expected=expected,
                to=to,
                at_ns=at_ns,
                evidence=evidence,
                verified_at_ns=verified_at_ns,
                findings=findings,
                coverage=coverage,
                name=name,
            )

    def confirm(
        self,
        run_id: str,
        content_id: str,
        place: str,
        *,
        expected: CopyState,
        at_ns: int,
        evidence: Evidence,
        findings: Iterable[Finding] | None = None,
        coverage: bytes | Keep | None = KEEP,
    ) -> None:
        """Record a new verdict that leaves the state as it is (verified again, a part grew).

        Raises:
            StaleState: the copy is not ``expected``, or it is being removed.
            ValueError: VERIFIED without evidence.
        """
        key = (run_id, content_id, place)
        with self._database.write() as connection:
            removal_rows.let_go(connection, key, expected=expected, to=expected)
            copies.change(
                connection,
                key,
                expected=expected,
                to=expected,
                at_ns=at_ns,
                evidence=evidence,
                verified_at_ns=None,
                findings=findings,
                coverage=coverage,
                name=None,
            )

    def put_sightings(
        self, run_id: str, place: str, sightings: Sequence[Sighting], at_ns: int
    ) -> None:
        """Replace what is known of a run's unsealed candidates at one place.

        To be called only with everything one complete look found there, each (name, variant)
        once. The first sighting's time of what was known already stays.
        """
        with self._database.write() as connection:
            checkpoints.put_sightings(connection, run_id, place, sightings, at_ns)

    def sightings(self, run_id: str) -> tuple[SightingFacts, ...]:
        """A run's unsealed candidates by place, name and variant."""
        with self._database.read() as connection:
            return checkpoints.sightings(connection, run_id)
