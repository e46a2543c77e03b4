"""What each flow needs to move: budgets as resources, and which of them a flow draws on.

A resource is a subject ("tier s3", "tier nvme of node a", "node a") and what is limited there. A
budget of None is no resource at all.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from ckptgov.model.pacing import Budget, FlowRequest
from ckptgov.model.settings import Scope, Settings

DEFAULT_FLOWS = 4
"""Flows that move at once over a tier whose budget limits a rate and says no number of flows."""


class Rates(NamedTuple):
    """What one flow may take; None is without limit. Requests are counted per 1000 seconds,
    because a share of a few requests per second is less than one."""

    read_bytes_per_s: int | None
    write_bytes_per_s: int | None
    read_requests_per_ks: int | None
    write_requests_per_ks: int | None


UNLIMITED = Rates(None, None, None, None)


class What(StrEnum):
    """What a budget limits besides the number of flows."""

    READ = "read"
    WRITE = "write"
    REQUESTS = "requests"


Key = tuple[str, What]


class Limits(Struct, frozen=True, kw_only=True):
    """Every budget by its subject; ``node_tiers`` are the tiers that each node has for itself."""

    budgets: dict[str, Budget]
    node_tiers: frozenset[str] = frozenset()
    fallback_percent: int = 10

    def tier(self, name: str, node: str) -> str:
        """The subject that a tier's name means on a node."""
        return f"tier {name} of node {node}" if name in self.node_tiers else f"tier {name}"

    def flows_at(self, subject: str) -> int | None:
        """How many flows may move at once there; None is without limit."""
        budget = self.budgets.get(subject, Budget())
        if budget.flows is not None or subject.startswith("node "):
            return budget.flows
        return DEFAULT_FLOWS if budget != Budget() else None


def limits_of(settings: Settings) -> Limits:
    """All budgets of the settings."""
    node_tiers = frozenset(one.name for one in settings.tiers if one.scope is Scope.NODE)
    limits = Limits(budgets={}, node_tiers=node_tiers, fallback_percent=settings.fallback_percent)
    for tier in settings.tiers:
        limits.budgets[limits.tier(tier.name, tier.node or "")] = tier.budget
    for node in settings.nodes:
        limits.budgets[f"node {node.name}"] = node.budget
    return limits


class Need(NamedTuple):
    """What one flow draws on. Its bytes move at one rate, over all of ``byte_keys`` together;
    the calls for reading and for writing have a rate each."""

    slots: tuple[str, ...]
    read_keys: tuple[Key, ...]
    write_keys: tuple[Key, ...]
    read_request_keys: tuple[Key, ...]
    write_request_keys: tuple[Key, ...]

    @property
    def byte_keys(self) -> tuple[Key, ...]:
        return self.read_keys + self.write_keys

    @property
    def key_sets(self) -> tuple[tuple[Key, ...], ...]:
        """The resources of its three rates: bytes, calls for reading, calls for writing."""
        return (self.byte_keys, self.read_request_keys, self.write_request_keys)

    @property
    def is_free(self) -> bool:
        """Whether no budget concerns this flow."""
        return not self.slots and not any(self.key_sets)

    def rates(self, levels: tuple[int, int, int]) -> Rates:
        """Its three rates as the four a flow is paced by."""
        moved, read_calls, written_calls = levels
        return Rates(
            moved if self.read_keys else None,
            moved if self.write_keys else None,
            read_calls if self.read_request_keys else None,
            written_calls if self.write_request_keys else None,
        )


def need_of(request: FlowRequest, limits: Limits) -> Need:
    """Which limited resources a flow draws on."""
    node = f"node {request.node}"
    source = None if request.source is None else limits.tier(request.source, request.node)
    target = None if request.target is None else limits.tier(request.target, request.node)
    reading = () if source is None else (source, node)
    writing = () if target is None else (target, node)
    touched = dict.fromkeys((*reading[:1], *writing[:1], node))
    counted = () if request.is_companion else touched
    return Need(
        slots=tuple(one for one in counted if limits.flows_at(one) is not None),
        read_keys=_limited(limits, reading, What.READ),
        write_keys=_limited(limits, writing, What.WRITE),
        read_request_keys=_limited(limits, reading, What.REQUESTS),
        write_request_keys=_limited(limits, writing, What.REQUESTS),
    )


def capacity(limits: Limits, key: Key, pace_permille: int = 1000) -> int:
    """What the budget behind a key gives, in bytes/s or calls per 1000 s."""
    configured = _configured(limits.budgets[key[0]], key[1])
    assert configured is not None, "a key stands for a limit"
    return configured * pace_permille // 1000


def fallback_of(need: Need, limits: Limits) -> tuple[int, int, int]:
    """The three rates a flow falls back to when it hears nothing.

    The share kept aside of every budget, divided by the flows that move there at once, so that
    all of them together stay within it.
    """
    least = [0, 0, 0]
    for index, keys in enumerate(need.key_sets):
        shares = [_kept_aside(need, limits, key) for key in keys]
        least[index] = min(shares, default=0)
    return (least[0], least[1], least[2])


def _kept_aside(need: Need, limits: Limits, key: Key) -> int:
    lines = sum(keys.count(key) for keys in need.key_sets)  # a copy within one tier calls it twice
    flows = limits.flows_at(key[0]) or DEFAULT_FLOWS
    return capacity(limits, key) * limits.fallback_percent // (100 * flows * lines)


def _limited(limits: Limits, subjects: tuple[str, ...], what: What) -> tuple[Key, ...]:
    return tuple(
        (one, what)
        for one in subjects
        if one in limits.budgets and _configured(limits.budgets[one], what) is not None
    )


def _configured(budget: Budget, what: What) -> int | None:
    match what:
        case What.READ:
            return budget.read_bytes_per_s
        case What.WRITE:
            return budget.write_bytes_per_s
        case What.REQUESTS:
            calls = budget.requests_per_s
            return None if calls is None else calls * 1000
