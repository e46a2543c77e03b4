"""Changing budgets in ``ckptgov.yaml``, limit by limit, so that comments beside them stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ckptgov.config.change import Way, with_value, without_value
from ckptgov.config.edit import Step, Value, appended, budget_fields, edit, flow
from ckptgov.errors import UsageError
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import NodeSettings, Settings

Change = Callable[[Budget], Budget]
Put = Callable[[Settings, Budget], Settings]
_MEMBERS = {
    "read": "read_bytes_per_s",
    "write": "write_bytes_per_s",
    "requests": "requests_per_s",
    "flows": "flows",
}


def change_budget(
    home: str,
    tier_name: str | None,
    node: str | None,
    change: Change,
    *,
    dry_run: bool = False,
) -> Settings:
    """Change a tier's or a node's budget; returns what the file says then, or would say.

    With a tier: the tier's, on ``node`` for one of ``scope: node`` (None: on each of its nodes).
    Without: what ``node`` may move in all. ``Budget()`` takes every limit away.

    Raises:
        UsageError: no such tier is configured, or neither is named.
        ConfigError: the file does not load, its form leaves no place for the change, or it cannot
            be written. Then nothing was changed.
    """

    def steps(now: Settings) -> Sequence[Step]:
        if tier_name is not None:
            return _tier_steps(now, tier_name, node, change)
        if node is None:
            raise UsageError("a budget is a tier's or a node's", hint="name one of them")
        return _node_steps(now, node, change)

    return edit(home, steps, dry_run=dry_run)


def _tier_steps(now: Settings, name: str, node: str | None, change: Change) -> list[Step]:
    steps: list[Step] = []
    is_found = False
    for place, tier in enumerate(now.tiers):
        if tier.name == name and node in (None, tier.node):
            is_found = True
            steps += _steps(("tiers", place), tier.budget, change(tier.budget), _into_tier(place))
    if not is_found:
        where = f" on node {node}" if node is not None else ""
        known = ", ".join(sorted({one.name for one in now.tiers})) or "none"
        raise UsageError(f"no tier {name}{where} is configured", hint=f"configured: {known}")
    return steps


def _node_steps(now: Settings, node: str, change: Change) -> list[Step]:
    for place, one in enumerate(now.nodes):
        if one.name != node:
            continue
        budget = change(one.budget)
        if budget == Budget() != one.budget:
            # A node's entry is there for its budget: the key stays.
            return [_set(("nodes", place), "budget", {}, _into_node(place), budget)]
        return _steps(("nodes", place), one.budget, budget, _into_node(place))
    budget = change(Budget())
    if budget == Budget():
        return []
    entry = flow({"name": node, "budget": budget_fields(budget)})
    added = NodeSettings(name=node, budget=budget)
    return [
        Step(appended("nodes", entry), lambda now: replace(now, nodes=(*now.nodes, added))),
    ]


def _steps(way: Way, old: Budget, new: Budget, put: Put) -> list[Step]:
    """From one budget to another. What is set comes first: a table is never left empty."""
    if new == old:
        return []
    if new == Budget():
        return [_take(way, "budget", put, new)]
    if old == Budget():
        return [_set(way, "budget", budget_fields(new), put, new)]
    fields, had = budget_fields(new), budget_fields(old)
    way = (*way, "budget")
    steps: list[Step] = []
    reached = old
    for key, value in fields.items():
        if had.get(key) != value:
            reached = replace(reached, **{_MEMBERS[key]: getattr(new, _MEMBERS[key])})
            steps.append(_set(way, key, value, put, reached))
    for key in had.keys() - fields.keys():
        reached = replace(reached, **{_MEMBERS[key]: None})
        steps.append(_take(way, key, put, reached))
    return steps


def _set(way: Way, key: str, value: Value, put: Put, reached: Budget) -> Step:
    return Step(
        lambda text, path: with_value(text, way, key, flow(value), path=path),
        lambda now: put(now, reached),
    )


def _take(way: Way, key: str, put: Put, reached: Budget) -> Step:
    return Step(
        lambda text, path: without_value(text, way, key, path=path),
        lambda now: put(now, reached),
    )


def _into_tier(place: int) -> Put:
    def put(now: Settings, budget: Budget) -> Settings:
        tiers = list(now.tiers)
        tiers[place] = replace(tiers[place], budget=budget)
        return replace(now, tiers=tuple(tiers))

    return put


def _into_node(place: int) -> Put:
    def put(now: Settings, budget: Budget) -> Settings:
        nodes = list(now.nodes)
        nodes[place] = replace(nodes[place], budget=budget)
        return replace(now, nodes=tuple(nodes))

    return put
