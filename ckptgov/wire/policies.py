"""Policies as JSON documents: keys are the field names of the model, an open count is ``all``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ckptgov.errors import CkptgovError, ConfigError
from ckptgov.model.policy import (
    ALL,
    Best,
    CapacityRule,
    Floors,
    KeepRules,
    Lifecycle,
    OldLines,
    Policy,
    Safety,
    Selector,
)
from ckptgov.model.policy_check import PolicyCheck
from ckptgov.wire.documents import Document, error_document, text
from ckptgov.wire.settings import links


def policies(found: Iterable[Policy]) -> Document:
    """The document of ``policy show`` without a name."""
    return {"policies": [policy(one) for one in found]}


def policy_of_run(run: str, found: Policy | None) -> Document:
    """The document of ``policy show RUN``; null: the run has no policy."""
    return {"run": run, "policy": None if found is None else policy(found)}


def checked(
    found: Iterable[Policy], errors: Sequence[CkptgovError], error: CkptgovError | None
) -> Document:
    """The document of ``policy check``: what is right, and everything that is wrong."""
    document: Document = {
        "policies": [
            {"name": one.name, "file": text(one.file), "digest": one.digest} for one in found
        ],
        "errors": [error_document(one)["error"] for one in errors],
    }
    return document if error is None else {**error_document(error), **document}


def check(found: PolicyCheck) -> Document:
    """The document of ``policy check`` without a file: of those in force, for every run."""
    runs = [{"run": run, "policy": policy} for policy, run in found.runs]
    document = checked(found.policies, found.errors, mistakes(found.errors))
    return {**document, "directory": text(found.directory), "runs": runs}


def mistakes(errors: Sequence[ConfigError]) -> ConfigError | None:
    """How many there are, and the first."""
    if not errors:
        return None
    return ConfigError(f"{len(errors)} mistakes; first: {errors[0].message}", hint=errors[0].hint)


def policy(one: Policy) -> Document:
    """One policy with everything that holds by default."""
    return {
        "name": one.name,
        "file": text(one.file),
        "digest": one.digest,
        "selector": _selector(one.selector),
        "timezone": one.timezone,
        "keep": _by_tier(one.keep),
        "weights": _by_tier(one.weights),
        "old_lines": None if one.old_lines is None else _old_lines(one.old_lines),
        "floors": _floors(one.floors),
        "capacity": {tier: _capacity(limit) for tier, limit in one.capacity.items()},
        "safety": _safety(one.safety),
        "lifecycle": _lifecycle(one.lifecycle),
        "links": None if one.links is None else links(one.links)["links"],
        "settle_s": one.settle_s,
        "verify_max_age_s": one.verify_max_age_s,
    }


def _selector(one: Selector) -> Document:
    return {"runs": list(one.runs), "teams": list(one.teams), "tags": list(one.tags)}


def _by_tier(rules: Mapping[str, KeepRules]) -> Document:
    return {tier: _rules(one) for tier, one in rules.items()}


def _rules(one: KeepRules) -> Document:
    return {
        "last": _count(one.last),
        "first": _count(one.first),
        "within_s": one.within_s,
        "buckets": {calendar.value: _count(count) for calendar, count in one.buckets},
        "every_steps": one.every_steps,
        "every_s": one.every_s,
        "best": [_best(each) for each in one.best],
        "recorded_best": one.recorded_best,
        "steps": list(one.steps),
        "tags": list(one.tags),
        "older_than_detection_s": one.older_than_detection_s,
    }


def _best(one: Best) -> Document:
    return {
        "metric": one.metric,
        "is_highest": one.is_highest,
        "count": _count(one.count),
        "ties_to_oldest": one.ties_to_oldest,
        "nan_is_worst": one.nan_is_worst,
        "missing_for_s": one.missing_for_s,
    }


def _count(count: int | None) -> int | str | None:
    return "all" if count == ALL else count


def _old_lines(one: OldLines) -> Document:
    return {"after_s": one.after_s, "newest_too": one.newest_too}


def _floors(one: Floors) -> Document:
    return {
        "min_restorable": one.min_restorable,
        "min_durable_copies": one.min_durable_copies,
        "min_age_s": one.min_age_s,
    }


def _capacity(one: CapacityRule) -> Document:
    return {
        "quota_bytes": one.quota_bytes,
        "quota_files": one.quota_files,
        "high_percent": one.high_percent,
        "low_percent": one.low_percent,
        "yields": [each.value for each in one.yields],
        "reserve_saves": one.reserve_saves,
    }


def _safety(one: Safety) -> Document:
    return {
        "max_count": one.max_count,
        "max_fraction_percent": one.max_fraction_percent,
        "max_bytes": one.max_bytes,
        "grace_s": one.grace_s,
        "trash_s": one.trash_s,
        "adoption_grace_s": one.adoption_grace_s,
    }


def _lifecycle(one: Lifecycle) -> Document:
    return {
        "dead_after_s": one.dead_after_s,
        "retire_dead_after_s": one.retire_dead_after_s,
        "retired_keep": None if one.retired_keep is None else _rules(one.retired_keep),
        "retired_after_s": one.retired_after_s,
        "retired_may_be_emptied": one.retired_may_be_emptied,
    }
