"""Tiers, budgets, nodes and registered runs: documents back to values."""

from __future__ import annotations

from msgspec import Struct

from ckptgov.model.cluster import NodeFacts, NodeState
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import NodeSettings, Proof, Scope, TierSettings
from ckptgov.wire.documents import Document
from ckptgov.wire.members import Members


class ToldRun(Struct, frozen=True, kw_only=True):
    """A registered run as a service tells it."""

    name: str
    run_id: str
    roots: tuple[str, ...]
    checkpoints: int
    bytes: int


def runs(document: Document) -> tuple[ToldRun, ...]:
    """The answer of ``run list`` and ``run create``."""
    return tuple(_run(each) for each in Members(document).objects("runs"))


def _run(told: Members) -> ToldRun:
    return ToldRun(
        name=told.text("run"),
        run_id=told.maybe(told.text, "run_id") or "",
        roots=told.paths("roots"),
        checkpoints=told.whole("checkpoints"),
        bytes=told.whole("bytes"),
    )


def tiers(document: Document) -> tuple[TierSettings, ...]:
    """The answer of ``tier list``."""
    return tuple(_tier(each) for each in Members(document).objects("tiers"))


def _tier(told: Members) -> TierSettings:
    return TierSettings(
        name=told.text("name"),
        root=told.path("root"),
        scope=told.one_of("scope", Scope),
        node=told.maybe(told.text, "node"),
        ingest=told.flag("ingest"),
        endpoint=told.maybe(told.text, "endpoint"),
        budget=budget(told.member("budget")),
        proof=told.one_of("proof", Proof) if told.has("proof") else None,
        quota_bytes=told.maybe(told.whole, "quota_bytes"),
    )


def budget(told: Members) -> Budget:
    """What may be taken from a tier or by a node."""
    return Budget(
        read_bytes_per_s=told.maybe(told.whole, "read_bytes_per_s"),
        write_bytes_per_s=told.maybe(told.whole, "write_bytes_per_s"),
        requests_per_s=told.maybe(told.whole, "requests_per_s"),
        flows=told.maybe(told.whole, "flows"),
    )


def budgets(document: Document) -> tuple[tuple[TierSettings, ...], tuple[NodeSettings, ...], int]:
    """The answer of ``tier budget``: a tier's name, node and budget are all that it tells."""
    told = Members(document)
    of_tiers = tuple(
        TierSettings(
            name=each.text("tier"),
            root="",
            node=each.maybe(each.text, "node"),
            budget=budget(each.member("budget")),
        )
        for each in told.objects("tiers")
    )
    of_nodes = tuple(
        NodeSettings(name=each.text("node"), budget=budget(each.member("budget")))
        for each in told.objects("nodes")
    )
    return of_tiers, of_nodes, told.whole("fallback_percent")


def node(told: Members) -> NodeFacts:
    """One node as the service knows it."""
    return NodeFacts(
        node=told.text("node"),
        state=told.one_of("state", NodeState),
        reason=told.text("reason"),
        boot=told.text("boot"),
        version=told.text("version"),
        peer_url=told.maybe(told.text, "peer_url"),
        first_seen_at_ns=told.whole("first_seen_at_ns"),
        beat_at_ns=told.whole("beat_at_ns"),
    )
