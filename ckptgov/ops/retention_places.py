"""Which places a plan may count on: reached just now, of the right identity, and ours to clear."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ckptgov.catalog.facts import PlaceFacts
from ckptgov.errors import CkptgovError, CouldNotLook
from ckptgov.model.cluster import NodeState
from ckptgov.ops.context import Context
from ckptgov.ops.standing_run import Site, is_here
from ckptgov.work.tier import read_identity


class _Seen(Struct, frozen=True, kw_only=True):
    why_not: CkptgovError | None = None
    is_governed: bool = True


class SeenPlaces:
    """Every place is looked at once for one plan; another plan looks anew.

    The disk of another node is judged by its beats: its agent checks the identity before it
    removes anything there.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._own = context.catalog.identity()
        nodes = context.catalog.nodes.nodes()
        self._dead = frozenset(one.node for one in nodes if one.state is NodeState.DEAD)
        self._seen: dict[str, _Seen] = {}

    def why_not(self, site: Site) -> str | None:
        """What keeps a run's place out of reach; None: it was reached."""
        if site.why_not is not None:
            return site.why_not
        error = self._look(site.place).why_not
        return error.message if error is not None else None

    def is_governed(self, place: PlaceFacts) -> bool:
        """Whether this catalog, and no other or later one, decides what is removed there."""
        return self._look(place).is_governed

    def require(self, site: Site) -> None:
        """Refuse to judge a run by a place that is not what the catalog takes it for.

        Raises:
            CouldNotLook: it is missing, unmounted, or another one.
        """
        error = self._look(site.place).why_not
        if error is not None:
            raise CouldNotLook(error.message, hint=error.hint) from error

    def unseen(self, sites: Iterable[Site]) -> frozenset[str]:
        """Tiers of which a place could not be looked at.

        What was declared dead, and a disk that was replaced by another, is not waited for: copies
        there count for nothing already.
        """
        return frozenset(
            site.place.tier
            for site in sites
            if site.place.is_current
            and site.place.node not in self._dead
            and self.why_not(site) is not None
        )

    def _look(self, place: PlaceFacts) -> _Seen:
        if place.place not in self._seen:
            self._seen[place.place] = self._looked_at(place)
        return self._seen[place.place]

    def _looked_at(self, place: PlaceFacts) -> _Seen:
        context = self._context
        if not is_here(context, place.node):
            return _Seen()
        tier = context.tier_of(place.root, place.node)
        if tier is None:
            gone = CouldNotLook(f"tier {place.tier} at {place.root} is not configured any more")
            return _Seen(why_not=gone, is_governed=False)
        try:
            identity = read_identity(context.place(tier).storage)
        except CkptgovError as error:
            return _Seen(why_not=error, is_governed=False)
        if identity is None or identity.place != place.place:
            other = "no identity" if identity is None else f"place {identity.place}"
            return _Seen(
                why_not=CouldNotLook(
                    f"tier {place.tier} at {place.root}: {other} is there, "
                    f"{place.place} was expected",
                    hint="is the file system mounted? 'ckptgov tier check' tells more",
                ),
                is_governed=False,
            )
        is_ours = identity.catalog == self._own.uuid and identity.epoch <= self._own.epoch
        return _Seen(is_governed=is_ours)
