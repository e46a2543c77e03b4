"""What other nodes read of this node's disks, under the arbiter like everything else that moves.

For each tier one flow of class ``restore`` stays open, also while nobody reads: while the arbiter
is silent it then has its fallback rate, so that a restore from a living node goes on. It is a
companion: the restore that reads through it was admitted where it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from ckptgov.model.pacing import FlowClass, FlowRequest, Pacer
from ckptgov.model.settings import Scope, Settings
from ckptgov.ops.flows import FlowDesk, OpenFlow
from ckptgov.service.peer_server import PeerServer

WAIT_LIMIT_S = 20.0
"""A reader is told to come back rather than kept waiting in silence for longer."""


class ServedTiers:
    """The tiers of one node as its agent serves them, and the flows behind them."""

    def __init__(
        self,
        node: str,
        desk: FlowDesk,
        settings: Callable[[], Settings],
        new_id: Callable[[], str],
        stack: ExitStack,
    ) -> None:
        self._node = node
        self._desk = desk
        self._settings = settings
        self._new_id = new_id
        self._stack = stack
        self._lock = threading.Lock()
        self._flows: dict[str, OpenFlow] = {}

    def roots(self) -> Mapping[str, str]:
        """Tier to directory, as configured now."""
        tiers = self._settings().tiers
        return {
            one.name: one.root
            for one in tiers
            if one.scope is Scope.NODE and one.node == self._node and not one.is_url
        }

    def pacer(self, tier: str) -> Pacer:
        """What bytes of a tier wait for."""
        return self._flow(tier).reading

    def moved(self, tier: str, count_bytes: int) -> None:
        """These bytes left."""
        self._flow(tier).moved(count_bytes)

    def _flow(self, tier: str) -> OpenFlow:
        with self._lock:
            if tier not in self._flows:
                request = FlowRequest(
                    flow_id=self._new_id(),
                    what="shards for other nodes",
                    flow_class=FlowClass.RESTORE,
                    source=tier,
                    target=None,
                    node=self._node,
                    bytes=0,
                    is_companion=True,
                )
                self._flows[tier] = self._stack.enter_context(
                    self._desk.open(request, wait_limit_s=WAIT_LIMIT_S)
                )
            return self._flows[tier]


@contextmanager
def serving_peers(
    node: str,
    *,
    desk: FlowDesk,
    settings: Callable[[], Settings],
    new_id: Callable[[], str],
    tokens: Callable[[], Collection[str]],
    host: str,
    port: int = 0,
) -> Iterator[PeerServer]:
    """Serve a node's own tiers to whoever shows a token, while the block lasts.

    ``desk`` must outlive the block.

    Raises:
        StorageError: the address cannot be listened at.
    """
    with ExitStack() as stack:
        tiers = ServedTiers(node, desk, settings, new_id, stack)
        server = PeerServer(
            node,
            tiers.roots,
            tokens=tokens,
            pacer_of=tiers.pacer,
            moved=tiers.moved,
            host=host,
            port=port,
        )
        stack.enter_context(server)  # closed before its flows are
        for tier in tiers.roots():
            tiers.pacer(tier)
        stack.callback(server.close)
        server.start()
        yield server
