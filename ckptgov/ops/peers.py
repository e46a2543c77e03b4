"""Another node's tier as a place, through that node's agent."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from ckptgov.errors import ConfigError, CouldNotLook, UsageError
from ckptgov.model.clock import Clock
from ckptgov.model.cluster import NodeFacts, NodeState
from ckptgov.model.settings import Settings, TierSettings
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.peer import TOKEN, TOKEN_FILE, PeerStorage, peer_tokens
from ckptgov.work.tier import Place, read_identity


def place_at_peer(
    tier: TierSettings,
    node: NodeFacts | None,
    settings: Settings,
    clock: Clock,
    *,
    now_ns: int,
    environ: Mapping[str, str] | None = None,
    jitter: Callable[[], float] = random.random,
) -> Place:
    """The root of a tier on a node whose disks are no paths here, with its identity read.

    ``now_ns`` is by the clock that stamped the node's beat.

    Raises:
        CouldNotLook: the node is silent, declared dead or serves nothing, there is no token, or
            its agent does not answer.
    """
    url = _address(tier, node, settings.service.node_timeout_s, now_ns)
    token = _token(tier, os.environ if environ is None else environ)
    try:
        storage = PeerStorage(
            url,
            node=tier.node or "",
            tier=tier.name,
            token=token,
            clock=clock,
            random=jitter,
            policy=RetryPolicy(cap_s=5.0, total_s=30.0, elapsed_s=min(300.0, 3 * settings.stall_s)),
            timeout_s=min(60.0, settings.stall_s / 2),
        )
    except UsageError as error:
        raise CouldNotLook(f"node {tier.node}: {error.message}") from error
    try:
        identity = read_identity(storage)
    except BaseException:
        storage.close()
        raise
    uuid = identity.place if identity is not None else None
    return Place(storage=storage, uuid=uuid, tier=tier.name, node=tier.node, root=tier.root)


def _token(tier: TierSettings, environ: Mapping[str, str]) -> str:
    """What is shown to the agent. Raises CouldNotLook."""
    where = f"tier {tier.name} lies on node {tier.node}"
    try:
        tokens = peer_tokens(environ)
    except ConfigError as error:  # the run's other places may still answer
        raise CouldNotLook(f"{where}: {error.message}", hint=error.hint) from error
    if not tokens:
        raise CouldNotLook(
            f"{where}, and there is no token to show its agent",
            hint=f"set {TOKEN} or {TOKEN_FILE}",
        )
    return tokens[0]


def _address(tier: TierSettings, node: NodeFacts | None, timeout_s: float, now_ns: int) -> str:
    """Where the node's agent serves. Raises CouldNotLook."""
    where = f"tier {tier.name} lies on node {tier.node}"
    if node is None:
        raise CouldNotLook(
            f"{where}, which was never heard of",
            hint=f"start its agent: 'ckptgov agent --node {tier.node}'",
        )
    if node.state is NodeState.DEAD:
        reason = f": {node.reason}" if node.reason else ""
        raise CouldNotLook(f"{where}, which is declared dead{reason}")
    if not node.is_reachable(now_ns, timeout_s=timeout_s):
        silent_s = (now_ns - node.beat_at_ns) / 1e9
        since = datetime.fromtimestamp(node.beat_at_ns // 10**9, UTC).isoformat()
        raise CouldNotLook(
            f"{where}, which is silent since {since} ({silent_s:.0f} s)",
            hint="look at the node and its agent",
        )
    if node.peer_url is None:
        raise CouldNotLook(f"{where}, whose agent serves no shards")
    return node.peer_url
