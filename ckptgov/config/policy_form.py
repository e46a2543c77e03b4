"""The form of a policy file: which keys there are, and what they mean."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Collection, Mapping

from msgspec import Struct

from ckptgov.config.document import TIER_NAME, Item, compose, shown
from ckptgov.config.moving import links_between
from ckptgov.config.policy_limits import (
    capacity_of,
    floors_of,
    lifecycle_of,
    old_lines_of,
    safety_of,
)
from ckptgov.config.policy_rules import LONGEST_S, rules_of
from ckptgov.errors import ConfigError
from ckptgov.model.policy import (
    CapacityRule,
    Floors,
    KeepRules,
    Lifecycle,
    Policy,
    Safety,
    Selector,
)
from ckptgov.model.settings import Link

_KEYS = (
    *("policy", "runs", "team", "teams", "tags", "timezone"),
    *("keep", "weights", "old_lines", "floors", "capacity", "safety", "lifecycle"),
    *("flush", "seal", "verify"),
)
_SEAL_KEYS = ("settle",)
_VERIFY_KEYS = ("max_age",)
_TAG = re.compile(r"!?[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TEAM = re.compile(r"[^/\x00-\x1f\x7f*?\[\]]{1,200}")
_WILD = re.compile(r"[*?\[]")


class ReadPolicy(Struct, frozen=True, kw_only=True):
    """A policy, and the lines its name and its selector begin on."""

    policy: Policy
    name_line: int
    selector_line: int


def read_policy(
    text: str, *, file: str, tiers: Collection[str] | None, stores: Collection[str]
) -> ReadPolicy:
    """One policy out of the text of its file; ``file`` is for messages and kept in the policy.

    ``tiers``: the names of the configured ones (None: not known); ``stores``: those of them
    that are reached through a URL.

    Raises:
        ConfigError: anything wrong or impossible, with file and line.
    """
    root = compose(text, file)
    if root is None:
        raise ConfigError(f"{file}:1: says nothing", hint="a policy begins with: policy: NAME")
    entries = root.table(_KEYS, required=("policy",))
    keep = _rules_by_tier(entries.get("keep"), tiers)
    weights = _rules_by_tier(entries.get("weights"), tiers)
    lifecycle = lifecycle_of(entries["lifecycle"]) if "lifecycle" in entries else Lifecycle()
    seal = entries["seal"].table(_SEAL_KEYS, required=_SEAL_KEYS) if "seal" in entries else {}
    verify = (
        entries["verify"].table(_VERIFY_KEYS, required=_VERIFY_KEYS) if "verify" in entries else {}
    )
    policy = Policy(
        name=_name(entries["policy"]),
        digest="sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        file=file,
        selector=_selector(entries),
        timezone=_timezone(entries["timezone"]) if "timezone" in entries else "UTC",
        keep=keep,
        weights=weights,
        old_lines=old_lines_of(entries["old_lines"]) if "old_lines" in entries else None,
        floors=floors_of(entries["floors"], tiers) if "floors" in entries else Floors(),
        capacity=_capacity(entries.get("capacity"), tiers, (keep, weights), lifecycle),
        safety=safety_of(entries["safety"]) if "safety" in entries else Safety(),
        lifecycle=lifecycle,
        links=_links(entries["flush"], tiers, stores) if "flush" in entries else None,
        settle_s=seal["settle"].duration_s(0, LONGEST_S) if seal else None,
        verify_max_age_s=verify["max_age"].duration_s(1, LONGEST_S) if verify else None,
    )
    chosen = [entries[key].line for key in ("runs", "team", "teams", "tags") if key in entries]
    name_line = entries["policy"].line
    return ReadPolicy(
        policy=policy, name_line=name_line, selector_line=min(chosen, default=name_line)
    )


def _name(item: Item) -> str:
    name = item.text()
    if not TIER_NAME.fullmatch(name):
        raise item.wrong(
            '"policy" may hold letters, digits, ".", "_" and "-" only, '
            "and begins with a letter or digit"
        )
    return name


def _rules_by_tier(item: Item | None, tiers: Collection[str] | None) -> Mapping[str, KeepRules]:
    """A tier without any rule is left out: it keeps everything, as one that is not named."""
    entries = item.by_tier(tiers) if item is not None else {}
    rules = {tier: rules_of(entry) for tier, entry in entries.items()}
    return {tier: one for tier, one in rules.items() if not one.is_empty}


def _capacity(
    item: Item | None,
    tiers: Collection[str] | None,
    kept: Collection[Mapping[str, KeepRules]],
    lifecycle: Lifecycle,
) -> Mapping[str, CapacityRule]:
    entries = item.by_tier(tiers) if item is not None else {}
    retired = [lifecycle.retired_keep] if lifecycle.retired_keep is not None else []
    return {
        tier: capacity_of(entry, tier, [*(one[tier] for one in kept if tier in one), *retired])
        for tier, entry in entries.items()
    }


def _links(item: Item, tiers: Collection[str] | None, stores: Collection[str]) -> tuple[Link, ...]:
    if item.is_empty:
        raise item.wrong('"flush" says nothing', hint="flush: [] moves nothing on its own")
    names = sorted(tiers) if tiers is not None else None
    return links_between(item.items(), names, stores=stores)


def _timezone(item: Item) -> str:
    """A zone of the IANA database.

    Raises:
        ConfigError: there is no such zone, or no database on this machine.
    """
    from zoneinfo import ZoneInfo, available_timezones  # dear to import, and rarely said

    name = item.text()
    if name == "UTC":
        return name
    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        known = available_timezones()
        if not known:
            raise item.wrong(
                f'"timezone" is {shown(name)}, and this machine has no time zone database',
                hint="install the package tzdata, of the system or of Python",
            ) from error
        close = difflib.get_close_matches(name, known, n=1)
        instead = f'did you mean "{close[0]}"?' if close else 'write it like "Europe/Berlin"'
        raise item.wrong(f'"timezone" is {shown(name)}, no IANA time zone; {instead}') from error
    return name


def _selector(entries: Mapping[str, Item]) -> Selector:
    if "team" in entries and "teams" in entries:
        raise entries["teams"].wrong(
            f'"team" (line {entries["team"].line}) and "teams" are one thing: write one of them'
        )
    teams = _teams(entries.get("team", entries.get("teams")))
    tags = _tags(entries["tags"]) if "tags" in entries else ()
    if "runs" not in entries:
        return Selector(teams=teams, tags=tags)
    return Selector(runs=_runs(entries["runs"], teams), teams=teams, tags=tags)


def _teams(item: Item | None) -> tuple[str, ...]:
    wrong = "is no team: write what stands before the slash of a run's name"
    return _texts(item, _TEAM, wrong) if item is not None else ()


def _tags(item: Item) -> tuple[str, ...]:
    wrong = 'is no tag: letters, digits, ".", "_" and "-"; "!" in front means without it'
    tags = _texts(item, _TAG, wrong)
    for tag in tags:
        if tag.startswith("!") and tag[1:] in tags:
            raise item.wrong(f'no run has and has not the tag "{tag[1:]}"')
    return tags


def _runs(item: Item, teams: tuple[str, ...]) -> tuple[str, ...]:
    globs = _texts(item, None, "")
    for member, glob in zip(_members(item), globs, strict=True):
        _check_glob(member, glob.removeprefix("!"))
        team, slash, _ = glob.partition("/")
        is_told = bool(teams) and not glob.startswith("!") and not _WILD.search(team)
        if is_told and (team not in teams or not slash):
            raise member.wrong(f"{shown(glob)} matches no run of {', '.join(map(shown, teams))}")
        if f"!{glob}" in globs:
            raise member.wrong(f"{shown(glob)} is taken in and left out at once")
    if all(glob.startswith("!") for glob in globs):
        raise item.wrong(
            '"runs" selects no run: it only leaves out', hint='begin with "*": ["*", "!scratch/*"]'
        )
    return globs


def _check_glob(item: Item, glob: str) -> None:
    parts = glob.split("/")
    is_odd = not glob.isprintable() or len(glob.encode("utf-8", "replace")) > 400
    if is_odd or ("[" not in glob and (len(parts) > 2 or "" in parts)):
        raise item.wrong(
            f'{shown(glob)} matches no run: their names are "name" or "team/name"',
            hint='"*" matches "/" as well; "lm/*" are all runs of the team lm',
        )


def _texts(item: Item, form: re.Pattern[str] | None, wrong: str) -> tuple[str, ...]:
    """One text, or a list of them, each once."""
    texts: list[str] = []
    for member in _members(item):
        text = member.text()
        if form is not None and not form.fullmatch(text):
            raise member.wrong(f"{shown(text)} {wrong}")
        if text in texts:
            raise member.wrong(f"{shown(text)} is named twice")
        texts.append(text)
    if not texts:
        raise item.wrong(f'"{item.name}" names none')
    return tuple(texts)


def _members(item: Item) -> tuple[Item, ...]:
    return item.items() if item.is_list() else (item,)
