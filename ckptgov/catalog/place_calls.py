"""What can be asked and told of places, runs, and where runs lie."""

from __future__ import annotations

from ckptgov.catalog import runs
from ckptgov.catalog.database import Database
from ckptgov.catalog.facts import PlaceFacts, RunFacts, RunRootFacts
from ckptgov.model.checkpoint import RunIdentity


class PlaceCalls:
    """Part of ``Catalog``."""

    _database: Database

    def put_place(self, place: PlaceFacts) -> None:
        """Record the place met at its root just now; it becomes the current one there.

        Known already: what changed is taken over, ``first_seen_at_ns`` stays. Another place that
        was current at the same root of the same node is current no longer.
        """
        with self._database.write() as connection:
            runs.put_place(connection, place, at_ns=self._database.now_ns(connection))

    def places(self) -> tuple[PlaceFacts, ...]:
        """Every place ever met, by tier and node."""
        with self._database.read() as connection:
            return runs.places(connection)

    def place_by_root(self, root: str, *, node: str | None = None) -> PlaceFacts | None:
        """The current place at a tier root; ``node`` for a node's own disk."""
        with self._database.read() as connection:
            found = runs.places_at(connection, root, node)
        return found[0] if found else None

    def put_run(self, identity: RunIdentity, at_ns: int) -> None:
        """Register a run; again with the same id and name changes nothing.

        Raises:
            UsageError: the name belongs to another run id, or the id to another name.
        """
        with self._database.write() as connection:
            runs.put_run(connection, identity, at_ns=at_ns)

    def run_by_name(self, name: str) -> RunFacts | None:
        """The run of this name."""
        with self._database.read() as connection:
            return runs.run_by_name(connection, name)

    def run_by_id(self, run_id: str) -> RunFacts | None:
        """The run of this id."""
        with self._database.read() as connection:
            return runs.run_by_id(connection, run_id)

    def runs(self) -> tuple[RunFacts, ...]:
        """Every run, by name."""
        with self._database.read() as connection:
            return runs.runs(connection)

    def put_run_root(self, root: RunRootFacts) -> None:
        """Record where a run lies; again with another sidecar replaces the sidecar.

        Raises:
            UsageError: the path at this place belongs to another run.
        """
        with self._database.write() as connection:
            runs.put_run_root(connection, root, at_ns=self._database.now_ns(connection))

    def drop_run_root(self, root: RunRootFacts) -> None:
        """Forget that a run lies there: its directory is gone. Again does nothing."""
        with self._database.write() as connection:
            runs.drop_run_root(connection, root, at_ns=self._database.now_ns(connection))

    def roots_of(self, run_id: str) -> tuple[RunRootFacts, ...]:
        """Where a run lies, by place and path."""
        with self._database.read() as connection:
            return runs.roots_of(connection, run_id)

    def roots(self) -> tuple[RunRootFacts, ...]:
        """Where every run lies, by run id, place and path."""
        with self._database.read() as connection:
            return runs.roots(connection)

    def run_at(self, place: str, path: str) -> RunFacts | None:
        """The run whose root is exactly ``path`` below the tier root of ``place``."""
        with self._database.read() as connection:
            return runs.run_at(connection, place, path)
