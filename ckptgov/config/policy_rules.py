"""Keep rules of a policy file, and which of them another one leaves nothing to keep."""

from __future__ import annotations

from collections.abc import Mapping

from ckptgov.config.document import Item, shown
from ckptgov.config.moving import pins_of
from ckptgov.model.policy import ALL, Best, Calendar, KeepRules

_DAY_S = 86400
LONGEST_S = 3650 * _DAY_S
MAX_STEP = 10**15
_KEYS = (
    "last",
    "first",
    "within",
    *(each.value for each in Calendar),
    "every_steps",
    "every",
    "best",
    "recorded_best",
    "steps",
    "tags",
    "older_than_detection",
)
_BEST_KEYS = ("metric", "mode", "count", "ties", "nan", "missing_for")
_PARTS: Mapping[Calendar, tuple[Calendar, ...]] = {
    Calendar.DAILY: (Calendar.HOURLY,),
    Calendar.WEEKLY: (Calendar.HOURLY, Calendar.DAILY),
    Calendar.MONTHLY: (Calendar.HOURLY, Calendar.DAILY),
    Calendar.YEARLY: (Calendar.HOURLY, Calendar.DAILY, Calendar.MONTHLY),
}
"""Which buckets lie wholly within one of another calendar: a week does not lie within a month."""


def rules_of(item: Item) -> KeepRules:
    """What is kept at one tier; nothing said keeps everything.

    Raises:
        ConfigError: an unknown key, a count below 1, a rule that keeps nothing which another one
            does not keep already.
    """
    if item.is_empty:
        return KeepRules()
    entries = item.table(_KEYS)
    rules = KeepRules(
        last=_count(entries, "last"),
        first=_count(entries, "first"),
        within_s=_duration(entries, "within"),
        buckets=tuple((each, entries[each].count() or ALL) for each in Calendar if each in entries),
        every_steps=_whole(entries, "every_steps"),
        every_s=_duration(entries, "every"),
        best=_bests(entries["best"]) if "best" in entries else (),
        recorded_best=entries["recorded_best"].flag() if "recorded_best" in entries else False,
        steps=_steps(entries["steps"]) if "steps" in entries else (),
        tags=pins_of(entries["tags"]) if "tags" in entries else (),
        older_than_detection_s=_duration(entries, "older_than_detection"),
    )
    _check_reach(entries, rules)
    return rules


def _count(entries: Mapping[str, Item], name: str) -> int | None:
    return entries[name].count() or ALL if name in entries else None


def _duration(entries: Mapping[str, Item], name: str) -> float | None:
    return entries[name].duration_s(1, LONGEST_S) if name in entries else None


def _whole(entries: Mapping[str, Item], name: str) -> int | None:
    return entries[name].whole(1, MAX_STEP) if name in entries else None


def _steps(item: Item) -> tuple[int, ...]:
    steps: list[int] = []
    for member in item.items():
        step = member.whole(0, MAX_STEP)
        if step in steps:
            raise member.wrong(f"step {step} is named twice")
        steps.append(step)
    if not steps:
        raise item.wrong('"steps" names none')
    return tuple(steps)


def _bests(item: Item) -> tuple[Best, ...]:
    """One table, or a list of them."""
    members = item.items() if item.is_list() else (item,)
    bests: list[Best] = []
    for member in members:
        best = _best(member)
        if any(_covers(one, best) or _covers(best, one) for one in bests):
            raise member.wrong(
                f"the best by {shown(best.metric)} are kept twice: one of them keeps nothing more"
            )
        bests.append(best)
    if not bests:
        raise item.wrong('"best" names no metric')
    return tuple(bests)


def _covers(one: Best, other: Best) -> bool:
    """Whether one keeps all that the other could ever keep."""
    if (one.metric, one.is_highest, one.ties_to_oldest) != (
        other.metric,
        other.is_highest,
        other.ties_to_oldest,
    ):
        return False
    is_wider = one.count >= other.count and one.nan_is_worst >= other.nan_is_worst
    return is_wider and one.missing_for_s >= other.missing_for_s


def _best(item: Item) -> Best:
    entries = item.table(_BEST_KEYS, required=("metric", "mode"))
    missing = entries.get("missing_for")
    return Best(
        metric=entries["metric"].text(),
        is_highest=entries["mode"].one_of(("min", "max")) == "max",
        count=(entries["count"].count() or ALL) if "count" in entries else 1,
        ties_to_oldest=_is(entries, "ties", "oldest", else_="newest"),
        nan_is_worst=_is(entries, "nan", "worst", else_="never"),
        missing_for_s=0.0 if missing is None else missing.duration_s(0, LONGEST_S),
    )


def _is(entries: Mapping[str, Item], name: str, word: str, *, else_: str) -> bool:
    """Whether the one of two words is given that is not the default."""
    return name in entries and entries[name].one_of((word, else_)) == word


def _check_reach(entries: Mapping[str, Item], rules: KeepRules) -> None:
    """Refuse a rule when another rule of the same tier keeps all that it could ever keep."""
    for name, words in _keeping_all(rules):
        for other in entries:
            if other != name and (other != "recorded_best" or rules.recorded_best):
                raise _unreachable(entries, other, name, words)
    counts = dict(rules.buckets)
    for coarse, parts in _PARTS.items():
        for part in parts:
            if coarse in counts and counts.get(part) == ALL:
                raise _unreachable(entries, coarse, part, f"{part}: all")
    each = rules.every_steps
    if rules.steps and each is not None and all(step % each == 0 for step in rules.steps):
        raise _unreachable(entries, "steps", "every_steps", f"every_steps: {each}")


def _keeping_all(rules: KeepRules) -> list[tuple[str, str]]:
    """Rules that keep every candidate there is."""
    found = []
    if rules.last == ALL:
        found.append(("last", "last: all"))
    if rules.first == ALL:
        found.append(("first", "first: all"))
    if rules.every_steps == 1:
        found.append(("every_steps", "every_steps: 1"))
    return found


def _unreachable(entries: Mapping[str, Item], rule: str, by: str, words: str) -> Exception:
    return entries[rule].wrong(
        f'"{rule}" keeps nothing that "{words}" (line {entries[by].line}) does not keep already',
        hint="leave one of them out",
    )
