"""Tiers, budgets, links and registered runs as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptgov.model.pacing import Budget
from ckptgov.model.settings import Link, NodeSettings, TierSettings
from ckptgov.model.verbs import RegisteredRun
from ckptgov.wire.documents import Document, text


def tiers(found: Iterable[TierSettings], *, dry_run: bool = False) -> Document:
    """The document of ``tier list`` and ``tier add``."""
    return {"dry_run": dry_run, "tiers": [tier(one) for one in found]}


def tier(one: TierSettings) -> Document:
    """One configured tier."""
    return {
        "name": one.name,
        "root": text(one.root),
        "scope": one.scope.value,
        "node": one.node,
        "ingest": one.ingest,
        "endpoint": one.endpoint,
        "budget": budget(one.budget),
        "proof": one.proof.value if one.proof is not None else None,
        "quota_bytes": one.quota_bytes,
    }


def budget(one: Budget) -> dict[str, int | None]:
    """What may be taken; null is without limit."""
    return {
        "read_bytes_per_s": one.read_bytes_per_s,
        "write_bytes_per_s": one.write_bytes_per_s,
        "requests_per_s": one.requests_per_s,
        "flows": one.flows,
    }


def budgets(
    of_tiers: Iterable[TierSettings],
    of_nodes: Iterable[NodeSettings],
    *,
    fallback_percent: int,
    dry_run: bool = False,
) -> Document:
    """The document of ``tier budget``."""
    return {
        "dry_run": dry_run,
        "tiers": [
            {"tier": one.name, "node": one.node, "budget": budget(one.budget)} for one in of_tiers
        ],
        "nodes": [{"node": one.name, "budget": budget(one.budget)} for one in of_nodes],
        "fallback_percent": fallback_percent,
    }


def links(found: Iterable[Link], *, dry_run: bool = False) -> Document:
    """The document of ``tier link``."""
    return {"dry_run": dry_run, "links": [_link(one) for one in found]}


def _link(one: Link) -> Document:
    return {
        "from": one.source,
        "to": one.target,
        "every": one.every,
        "every_s": one.every_s,
        "every_steps": one.every_steps,
        "last": one.last,
        "pins": list(one.pins),
        "hold": one.hold,
    }


def runs(found: Sequence[RegisteredRun], *, dry_run: bool = False) -> Document:
    """The document of ``run list`` and ``run create``."""
    return {"dry_run": dry_run, "runs": [run(one) for one in found]}


def run(one: RegisteredRun) -> Document:
    """A registered run and where it lies."""
    return {
        "run": one.name,
        "run_id": one.run_id or None,
        "roots": [text(root) for root in one.roots],
        "checkpoints": one.checkpoints,
        "bytes": one.bytes,
    }
