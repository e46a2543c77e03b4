"""Keep rules: which of one tier's candidates each rule keeps, and in what words.

Rules are a union, and blind to each other: one checkpoint may take a slot of each. Candidates
come oldest first in the order of ``latest``; that order also says which is the newest. Spans and
buckets go by when the catalog first saw a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import inf, isfinite

from ckptgov.model.policy import Best, Calendar, KeepRules
from ckptgov.model.retention import CheckpointToKeep, KeepReason, Why
from ckptgov.planning.buckets import Buckets
from ckptgov.planning.retention_words import count, moment, nanoseconds, span, span_ns

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

Kept = tuple[int, Why]
"""Position among the candidates, and a reason to keep it."""


class Asked:
    """What rules are applied to: the candidates of one tier, and the run they are of."""

    __slots__ = ("buckets", "candidates", "newest_ns", "notes", "now_ns", "recorded_best", "tier")

    def __init__(
        self,
        candidates: Sequence[CheckpointToKeep],
        *,
        tier: str,
        buckets: Buckets,
        now_ns: int,
        recorded_best: str | None,
    ) -> None:
        """``candidates`` come oldest first, at least one."""
        self.candidates = candidates
        self.tier = tier
        self.buckets = buckets
        self.now_ns = now_ns
        self.recorded_best = recorded_best
        self.newest_ns = candidates[-1].saved_at_ns
        self.notes: list[str] = []


def kept_by(rules: KeepRules, asked: Asked) -> list[list[Why]]:
    """For each candidate every reason that a rule gives to keep it; what is odd goes to notes."""
    reasons: list[list[Why]] = [[] for _ in asked.candidates]
    for index, why in _all_rules(rules, asked):
        reasons[index].append(why)
    return reasons


def _all_rules(rules: KeepRules, asked: Asked) -> Iterator[Kept]:
    if rules.last is not None:
        yield from _last(rules.last, asked)
    if rules.first is not None:
        yield from _first(rules.first, asked)
    if rules.within_s is not None:
        yield from _within(rules.within_s, asked)
    for calendar, number in sorted(rules.buckets, key=lambda each: _CALENDARS.index(each[0])):
        yield from _bucketed(calendar, number, asked)
    if rules.every_steps is not None:
        yield from _every_steps(rules.every_steps, asked)
    if rules.every_s is not None:
        yield from _every(rules.every_s, asked)
    for best in rules.best:
        yield from _best(best, asked)
    if rules.recorded_best:
        yield from _recorded_best(asked)
    if rules.steps or rules.tags:
        yield from _named(rules, asked)
    if rules.older_than_detection_s is not None:
        yield from _older_than_detection(rules.older_than_detection_s, asked)


_CALENDARS = tuple(Calendar)


def _last(number: int, asked: Asked) -> Iterator[Kept]:
    total = len(asked.candidates)
    for rank in range(1, min(number, total) + 1):
        text = f"kept: last {count(number)} (number {rank} from the newest)"
        yield total - rank, Why(KeepReason.LAST, text)


def _first(number: int, asked: Asked) -> Iterator[Kept]:
    for index in range(min(number, len(asked.candidates))):
        text = f"kept: first {count(number)} (number {index + 1} from the oldest)"
        yield index, Why(KeepReason.FIRST, text)


def _within(within_s: float, asked: Asked) -> Iterator[Kept]:
    words, reach_ns = span(within_s), nanoseconds(within_s)
    for index, one in enumerate(asked.candidates):
        before_ns = asked.newest_ns - one.saved_at_ns
        if before_ns <= reach_ns:
            text = f"kept: within {words} of the newest ({span_ns(before_ns)} before it)"
            yield index, Why(KeepReason.WITHIN, text)


def _bucketed(calendar: Calendar, number: int, asked: Asked) -> Iterator[Kept]:
    newest: dict[str, int] = {}
    for index, one in enumerate(asked.candidates):
        newest[asked.buckets.name(calendar, one.saved_at_ns)] = index
    by_time = sorted(
        newest.items(), key=lambda item: asked.candidates[item[1]].saved_at_ns, reverse=True
    )
    reason, most, zone = KeepReason(calendar.value), count(number), asked.buckets.timezone
    where = "" if zone == "UTC" else f", {zone}"
    for rank, (name, index) in enumerate(by_time[:number], start=1):
        yield index, Why(reason, f"kept: {calendar.value} {rank} of {most} ({name}{where})")


def _every_steps(steps: int, asked: Asked) -> Iterator[Kept]:
    met: set[int] = set()
    for index, one in enumerate(asked.candidates):
        multiple = (one.step or 0) // steps
        if multiple not in met:
            met.add(multiple)
            start = multiple * steps
            text = (
                f"kept: every {steps} steps (the first at or above {start}, below {start + steps})"
            )
            yield index, Why(KeepReason.EVERY_STEPS, text)


def _every(every_s: float, asked: Asked) -> Iterator[Kept]:
    words, least_ns = span(every_s), nanoseconds(every_s)
    by_time = sorted(enumerate(asked.candidates), key=lambda each: each[1].saved_at_ns)
    kept_ns: int | None = None
    for index, one in by_time:
        if kept_ns is None:
            yield index, Why(KeepReason.EVERY, f"kept: every {words} (the oldest)")
        elif one.saved_at_ns - kept_ns >= least_ns:
            after = span_ns(one.saved_at_ns - kept_ns)
            text = f"kept: every {words} ({after} after the one kept before it)"
            yield index, Why(KeepReason.EVERY, text)
        else:
            continue
        kept_ns = one.saved_at_ns


def finite(value: str) -> float | None:
    """A metric's value where it is a finite decimal number, else None."""
    spelled = value.strip()
    if not _DECIMAL.fullmatch(spelled):
        return None
    number = float(spelled)
    return number if isfinite(number) else None


def _best(best: Best, asked: Asked) -> Iterator[Kept]:
    values: list[tuple[float, int, str]] = []
    for index, one in enumerate(asked.candidates):
        told = dict(one.metrics).get(best.metric)
        if told is None:
            yield from _awaited(best, index, one, asked)
        elif (worth := _worth(best, told)) is not None:
            values.append((worth, -index if best.ties_to_oldest else index, told.strip()))
    values.sort(reverse=True)  # of equal ones the one that ties go to first
    mode = "max" if best.is_highest else "min"
    for rank, (_, place, told) in enumerate(values[: best.count], start=1):
        text = f"kept: best {rank} of {count(best.count)} by {best.metric} ({told}, {mode})"
        yield abs(place), Why(KeepReason.BEST, text)
    if len(values) < best.count and (not values or count(best.count) != "all"):
        kind = "a value" if best.nan_is_worst else "a finite value"
        asked.notes.append(
            f"best by {best.metric} at {asked.tier} keeps {len(values)}, and {count(best.count)} "
            f"{'is' if best.count == 1 else 'are'} wanted: {len(values)} of "
            f"{len(asked.candidates)} checkpoints there have {kind}"
        )


def _worth(best: Best, told: str) -> float | None:
    """What a value is worth, more being better; None: no place for it."""
    value = finite(told)
    if value is None:
        return -inf if best.nan_is_worst else None
    return value if best.is_highest else -value


def _awaited(best: Best, index: int, one: CheckpointToKeep, asked: Asked) -> Iterator[Kept]:
    until_ns = one.saved_at_ns + nanoseconds(best.missing_for_s)
    if asked.now_ns < until_ns:
        text = f"kept: no {best.metric} yet, awaited until {moment(until_ns)}"
        yield index, Why(KeepReason.METRIC_AWAITED, text)


def _recorded_best(asked: Asked) -> Iterator[Kept]:
    if asked.recorded_best is None:
        asked.notes.append(f"recorded_best at {asked.tier}: the trainer's state names none")
        return
    name = last_part(asked.recorded_best)
    for index in range(len(asked.candidates) - 1, -1, -1):
        if last_part(asked.candidates[index].name) == name:
            text = f"kept: the trainer's own state calls {name} its best"
            yield index, Why(KeepReason.RECORDED_BEST, text)
            return
    asked.notes.append(
        f"recorded_best at {asked.tier}: the trainer's state names {name}, which is not among the "
        f"{len(asked.candidates)} checkpoints there"
    )


def last_part(name: str) -> str:
    """What stands after the last slash."""
    return name.rstrip("/").rpartition("/")[2]


def _named(rules: KeepRules, asked: Asked) -> Iterator[Kept]:
    steps, tags = frozenset(rules.steps), frozenset(rules.tags)
    for index, one in enumerate(asked.candidates):
        if one.step in steps:
            yield index, Why(KeepReason.STEPS, f"kept: step {one.step} is named by the policy")
        found = tags & one.tags
        if found:
            yield index, Why(KeepReason.TAGS, f"kept: tagged {', '.join(sorted(found))}")


def _older_than_detection(detection_s: float, asked: Asked) -> Iterator[Kept]:
    words, bound_ns = span(detection_s), asked.newest_ns - nanoseconds(detection_s)
    older = [index for index, one in enumerate(asked.candidates) if one.saved_at_ns <= bound_ns]
    if older:
        text = f"kept: the newest that is at least {words} older than the newest of all"
        yield older[-1], Why(KeepReason.OLDER_THAN_DETECTION, text)
    younger = [
        (one.saved_at_ns, index)
        for index, one in enumerate(asked.candidates)
        if one.saved_at_ns > bound_ns
    ]
    if younger:
        text = f"kept: the next to become {words} older than the newest of all"
        yield min(younger)[1], Why(KeepReason.OLDER_THAN_DETECTION, text)
