"""Documents of policies back to what they were made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ckptgov.errors import ConfigError
from ckptgov.model.policy import (
    ALL,
    Best,
    Calendar,
    CapacityRule,
    Floors,
    KeepRules,
    Lifecycle,
    OldLines,
    Policy,
    Safety,
    Selector,
    Yields,
)
from ckptgov.model.policy_check import PolicyCheck
from ckptgov.model.settings import Link
from ckptgov.wire.documents import Document
from ckptgov.wire.members import Members

T = TypeVar("T")


def policies(document: Document) -> tuple[Policy, ...]:
    """The answer of ``policy show``."""
    return tuple(_policy(each) for each in Members(document).objects("policies"))


def policy_of_run(document: Document) -> Policy | None:
    """The answer of ``policy show RUN``."""
    return _maybe(Members(document), "policy", _policy)


def check(document: Document) -> PolicyCheck:
    """The answer of ``policy check``: of each policy only what it is called."""
    told = Members(document)
    return PolicyCheck(
        directory=told.path("directory"),
        policies=tuple(
            Policy(name=each.text("name"), digest=each.text("digest"), file=each.path("file"))
            for each in told.objects("policies")
        ),
        errors=tuple(_mistake(each) for each in told.objects("errors")),
        runs=tuple(
            (each.maybe(each.text, "policy"), each.text("run")) for each in told.objects("runs")
        ),
    )


def _mistake(told: Members) -> ConfigError:
    return ConfigError(told.path("message"), hint=told.maybe(told.text, "hint"))


def _policy(told: Members) -> Policy:
    return Policy(
        name=told.text("name"),
        digest=told.text("digest"),
        file=told.path("file"),
        selector=_selector(told.member("selector")),
        timezone=told.text("timezone"),
        keep=_by_tier(told, "keep", _rules),
        weights=_by_tier(told, "weights", _rules),
        old_lines=_maybe(told, "old_lines", _old_lines),
        floors=_floors(told.member("floors")),
        capacity=_by_tier(told, "capacity", _capacity),
        safety=_safety(told.member("safety")),
        lifecycle=_lifecycle(told.member("lifecycle")),
        links=tuple(_link(each) for each in told.objects("links")) if told.has("links") else None,
        settle_s=told.maybe(told.number, "settle_s"),
        verify_max_age_s=told.maybe(told.number, "verify_max_age_s"),
    )


def _maybe(told: Members, name: str, read: Callable[[Members], T]) -> T | None:
    return read(told.member(name)) if told.has(name) else None


def _by_tier(told: Members, name: str, read: Callable[[Members], T]) -> dict[str, T]:
    of_tiers = told.member(name)
    return {tier: read(of_tiers.member(tier)) for tier in of_tiers.whole_document()}


def _selector(told: Members) -> Selector:
    return Selector(runs=told.texts("runs"), teams=told.texts("teams"), tags=told.texts("tags"))


def _rules(told: Members) -> KeepRules:
    buckets = told.member("buckets")
    return KeepRules(
        last=_count(told, "last"),
        first=_count(told, "first"),
        within_s=told.maybe(told.number, "within_s"),
        buckets=tuple(
            (Calendar(name), count)
            for name in buckets.whole_document()
            if name in tuple(Calendar) and (count := _count(buckets, name)) is not None
        ),
        every_steps=told.maybe(told.whole, "every_steps"),
        every_s=told.maybe(told.number, "every_s"),
        best=tuple(_best(each) for each in told.objects("best")),
        recorded_best=told.flag("recorded_best"),
        steps=told.wholes("steps"),
        tags=told.texts("tags"),
        older_than_detection_s=told.maybe(told.number, "older_than_detection_s"),
    )


def _best(told: Members) -> Best:
    return Best(
        metric=told.text("metric"),
        is_highest=told.flag("is_highest"),
        count=_count(told, "count") or 1,
        ties_to_oldest=told.has("ties_to_oldest") and told.flag("ties_to_oldest"),
        nan_is_worst=told.has("nan_is_worst") and told.flag("nan_is_worst"),
        missing_for_s=told.number("missing_for_s"),
    )


def _count(told: Members, name: str) -> int | None:
    return ALL if told.whole_document().get(name) == "all" else told.maybe(told.whole, name)


def _old_lines(told: Members) -> OldLines:
    return OldLines(after_s=told.number("after_s"), newest_too=told.flag("newest_too"))


def _floors(told: Members) -> Floors:
    return Floors(
        min_restorable=told.whole("min_restorable"),
        min_durable_copies=told.whole("min_durable_copies"),
        min_age_s=told.number("min_age_s"),
    )


def _capacity(told: Members) -> CapacityRule:
    return CapacityRule(
        quota_bytes=told.maybe(told.whole, "quota_bytes"),
        quota_files=told.maybe(told.whole, "quota_files"),
        high_percent=told.maybe(told.whole, "high_percent"),
        low_percent=told.maybe(told.whole, "low_percent"),
        yields=told.words("yields", Yields),
        reserve_saves=told.whole("reserve_saves"),
    )


def _safety(told: Members) -> Safety:
    return Safety(
        max_count=told.whole("max_count"),
        max_fraction_percent=told.whole("max_fraction_percent"),
        max_bytes=told.maybe(told.whole, "max_bytes"),
        grace_s=told.number("grace_s"),
        trash_s=told.number("trash_s"),
        adoption_grace_s=told.number("adoption_grace_s"),
    )


def _lifecycle(told: Members) -> Lifecycle:
    return Lifecycle(
        dead_after_s=told.number("dead_after_s"),
        retire_dead_after_s=told.maybe(told.number, "retire_dead_after_s"),
        retired_keep=_maybe(told, "retired_keep", _rules),
        retired_after_s=told.number("retired_after_s"),
        retired_may_be_emptied=told.flag("retired_may_be_emptied"),
    )


def _link(told: Members) -> Link:
    return Link(
        source=told.text("from"),
        target=told.text("to"),
        every=told.maybe(told.whole, "every"),
        every_s=told.maybe(told.number, "every_s"),
        every_steps=told.maybe(told.whole, "every_steps"),
        last=told.maybe(told.whole, "last"),
        pins=told.texts("pins"),
        hold=told.flag("hold"),
    )
