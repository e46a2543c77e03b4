"""From the places that a service names to what this host can reach of them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckptgov.client.verbs import Client
from ckptgov.errors import CouldNotLook, UsageError
from ckptgov.governor.local import Governor
from ckptgov.model.clock import SystemClock
from ckptgov.model.facts import CheckpointFacts, CopyFacts, Note
from ckptgov.model.settings import Settings
from ckptgov.wire.members import Members
from ckptgov.work import addresses, ask
from ckptgov.work.locate import Location, locate
from ckptgov.work.tier import Place

if TYPE_CHECKING:
    from ckptgov.model.cluster import NodeFacts
    from ckptgov.model.settings import TierSettings


class PlacesHere:
    """The service's tiers as this host sees them: by its own settings, or at the same paths."""

    def __init__(
        self,
        client: Client,
        local: Governor,
        *,
        environ: Mapping[str, str],
        stack: ExitStack,
    ) -> None:
        self._client = client
        self._local = local
        self._environ = environ
        self._stack = stack

    def settings(self) -> Settings:
        """What this host's own file says; the defaults where it has none."""
        from ckptgov.config.home import home_dir
        from ckptgov.config.load import load_settings

        return load_settings(home_dir(self._environ), self._environ)

    def _tiers(self) -> tuple[TierSettings, ...]:
        """This host's tiers, then those that only the service has."""
        return self.settings().tiers or self._client.tiers()

    def asked_of(self, run: str, chosen: CheckpointFacts, node: str | None) -> ask.Asked:
        """The places of a checkpoint that can be looked at from here, and why not the others."""
        looks, missing = [], []
        for copy in chosen.copies:
            try:
                found = self._located(copy)
            except CouldNotLook as error:
                missing.append(Note("unreachable", copy.root, error.message))
                continue
            looks.append(self._local.look(found.place, found.below, copy.node is not None))
        if not looks:
            raise CouldNotLook(
                f"{chosen.name}: none of the places that hold it can be reached from here"
                + "".join(f"; {one.text}" for one in missing),
                hint="is the shared tier mounted on this host?",
            )
        return ask.Asked(
            run=run, looks=tuple(looks), unreachable=tuple(missing), node=node, sealed_only=True
        )

    def _located(self, copy: CopyFacts) -> Location:
        """The run root of a copy, at the very place that the service means.

        At the path that it has there, where this host's own settings have the tier, or through
        the agent of the node whose disk it is.

        Raises:
            CouldNotLook: it cannot be reached from here, or another place is there.
        """
        troubles: list[CouldNotLook] = []
        for way in (self._at_the_same_path, self._by_own_settings, self._at_peer):
            try:
                found = way(copy)
            except CouldNotLook as error:
                troubles.append(error)
                continue
            if found is not None:
                return found
        raise troubles[-1] if copy.node is not None else troubles[0]

    def _at_the_same_path(self, copy: CopyFacts) -> Location | None:
        return self._located_at(copy.root, copy)

    def _by_own_settings(self, copy: CopyFacts) -> Location | None:
        address = self._own_address(copy)
        return None if address is None else self._located_at(address, copy)

    def _at_peer(self, copy: CopyFacts) -> Location | None:
        from ckptgov.ops.peers import place_at_peer

        tier = self._service_tier(copy)
        below = addresses.relative(copy.root, tier.root) if tier is not None else None
        if copy.node is None or tier is None or below is None:
            return None
        node = self._node(copy.node)
        place = place_at_peer(
            tier,
            node,
            self.settings(),
            SystemClock(),
            now_ns=node.beat_at_ns,  # the service, by its own clock, counts on the node
            environ=self._environ,
        )
        self._stack.callback(place.storage.close)
        return Location(
            place=self._checked(place, copy, copy.root), below=below, run_roots=(below,)
        )

    def _node(self, name: str) -> NodeFacts:
        """A node that the service counts on.

        Raises:
            CouldNotLook: it does not.
        """
        from ckptgov.wire.decode_settings import node

        for each in Members(self._client.service.nodes()).objects("nodes"):
            if each.text("node") == name:
                if each.flag("is_reachable"):
                    return node(each)
                raise CouldNotLook(f"node {name} is {each.text('state')}, and out of reach")
        raise CouldNotLook(f"node {name} was never heard of by the service")

    def _located_at(self, address: str, copy: CopyFacts) -> Location:
        endpoint = None
        if addresses.is_url(address):
            endpoint = next((one.endpoint for one in self._tiers() if one.name == copy.tier), None)
        found = locate(address, endpoint=endpoint)
        self._stack.callback(found.place.storage.close)
        root = addresses.real(found.place.root)
        below = addresses.relative(addresses.real(address), root) or ""
        return replace(found, place=self._checked(found.place, copy, address), below=below)

    def _checked(self, place: Place, copy: CopyFacts, address: str) -> Place:
        """The place under the copy's names, if it is the one that the service means."""
        if place.uuid != copy.place:
            raise CouldNotLook(f"{address}: is another place than {copy.place} of tier {copy.tier}")
        return replace(place, tier=copy.tier, node=copy.node)

    def _own_address(self, copy: CopyFacts) -> str | None:
        """Where this host's own settings have the copy's run root, if elsewhere."""
        key = (copy.tier, copy.node)
        own = [one for one in self.settings().tiers if (one.name, one.node) == key]
        theirs = self._service_tier(copy) if own else None
        if theirs is None or theirs.root == own[0].root:
            return None
        below = addresses.relative(copy.root, theirs.root)
        return None if below is None else addresses.join(own[0].root, below)

    def _service_tier(self, copy: CopyFacts) -> TierSettings | None:
        """The tier of a copy as the service has it."""
        key = (copy.tier, copy.node)
        return next((one for one in self._client.tiers() if (one.name, one.node) == key), None)

    def below_a_tier(self, address: str, node: str | None) -> tuple[str, str]:
        """The tier that a path lies in, and the path below its root.

        Raises:
            UsageError: it lies in none.
        """
        for one in (*self.settings().tiers, *self._client.tiers()):
            below = addresses.relative(addresses.real(address), addresses.real(one.root))
            if below and node in (None, one.node):
                return one.name, below
        raise UsageError(
            f"{address} lies below no tier",
            hint="see 'ckptgov tier list'; or say it: --tier NAME and the path below its root",
        )
