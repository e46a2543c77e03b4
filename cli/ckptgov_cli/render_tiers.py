"""Tiers, budgets and links to text or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckptgov.config.units import duration_text, rate_text
from ckptgov.wire import settings as documents
from ckptgov_cli import output

if TYPE_CHECKING:
    from ckptgov.model.pacing import Budget
    from ckptgov.model.settings import Link, NodeSettings, TierSettings


def tiers(found: Sequence[TierSettings], *, as_json: bool, dry_run: bool = False) -> int:
    """The configured tiers."""
    if as_json:
        output.emit(documents.tiers(found, dry_run=dry_run))
        return 0
    if dry_run:
        output.talk("would add:")
    rows = [
        [
            one.name,
            one.scope.value,
            one.node or "-",
            "ingest" if one.ingest else "-",
            one.root,
            one.endpoint or "-",
            _shown(one.budget),
        ]
        for one in found
    ]
    output.table(("TIER", "SCOPE", "NODE", "INGEST", "ROOT", "ENDPOINT", "BUDGET"), rows)
    return 0


def _limits(one: Budget) -> list[str]:
    """Read, write, requests, flows; a dash where there is no limit."""
    return [
        rate_text(one.read_bytes_per_s) if one.read_bytes_per_s is not None else "-",
        rate_text(one.write_bytes_per_s) if one.write_bytes_per_s is not None else "-",
        f"{one.requests_per_s}/s" if one.requests_per_s is not None else "-",
        str(one.flows) if one.flows is not None else "-",
    ]


def _shown(one: Budget) -> str:
    names = ("read", "write", "requests", "flows")
    pairs = zip(names, _limits(one), strict=True)
    return ", ".join(f"{name} {limit}" for name, limit in pairs if limit != "-") or "-"


def budgets(
    every_tier: Sequence[TierSettings],
    every_node: Sequence[NodeSettings],
    fallback_percent: int,
    *,
    tier: str | None,
    node: str | None,
    as_json: bool,
    dry_run: bool,
) -> int:
    """Every budget, or those of one tier or node."""
    of_tiers = [
        one
        for one in every_tier
        if tier in (None, one.name) and node in (None, one.node) and (tier or not node)
    ]
    of_nodes = [] if tier else [one for one in every_node if node in (None, one.name)]
    if as_json:
        output.emit(
            documents.budgets(
                of_tiers, of_nodes, fallback_percent=fallback_percent, dry_run=dry_run
            )
        )
        return 0
    if dry_run:
        output.talk("would be:")
    rows = [[one.name, one.node or "-", *_limits(one.budget)] for one in of_tiers]
    rows += [["-", one.name, *_limits(one.budget)] for one in of_nodes]
    output.table(("TIER", "NODE", "READ", "WRITE", "REQUESTS", "FLOWS"), rows)
    return 0


def links(found: Sequence[Link], *, as_json: bool, dry_run: bool = False) -> int:
    """What flows where."""
    if as_json:
        output.emit(documents.links(found, dry_run=dry_run))
        return 0
    if dry_run:
        output.talk("would add:")
    rows = [[one.source, one.target, _rules(one), "hold" if one.hold else "-"] for one in found]
    output.table(("FROM", "TO", "FLUSHES", "HOLD"), rows)
    return 0


def _rules(one: Link) -> str:
    told = []
    if one.every is not None:
        told.append("each" if one.every == 1 else f"one of {one.every}")
    if one.every_s is not None:
        told.append(f"one in {duration_text(one.every_s)}")
    if one.every_steps is not None:
        told.append(f"one in {one.every_steps} steps")
    if one.last is not None:
        told.append(f"the newest {one.last}")
    if one.pins:
        told.append("pinned " + ", ".join(one.pins))
    return "; ".join(told)
