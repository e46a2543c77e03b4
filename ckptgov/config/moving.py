"""The part of the schema that says what moves where, and how fast: budgets, links, nodes."""

from __future__ import annotations

import re
from collections.abc import Collection

from ckptgov.config.document import Item, shown
from ckptgov.config.units import parse_rate, parse_requests
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import Link, TierSettings

_DAY_S = 86400
_BUDGET_KEYS = ("read", "write", "requests", "flows")
_LINK_KEYS = ("from", "to", "every", "every_steps", "last", "pins", "hold")
_CHOOSING_KEYS = ("every", "every_steps", "last", "pins")
_PIN = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
MAX_FLOWS = 100_000
MAX_EVERY = 1_000_000
MAX_EVERY_STEPS = 10**15


def budget_of(item: Item) -> Budget:
    """What may be taken from a tier or a node; a key left out is without limit."""
    entries = item.table(_BUDGET_KEYS)
    read, write, requests = (entries.get(key) for key in ("read", "write", "requests"))
    return Budget(
        read_bytes_per_s=None if read is None else read.amount(parse_rate),
        write_bytes_per_s=None if write is None else write.amount(parse_rate),
        requests_per_s=None if requests is None else requests.amount(parse_requests),
        flows=entries["flows"].whole(1, MAX_FLOWS) if "flows" in entries else None,
    )


def links_of(items: tuple[Item, ...], tiers: tuple[TierSettings, ...]) -> tuple[Link, ...]:
    """The links in order: between configured tiers, each pair once, and in no circle."""
    names = sorted({one.name for one in tiers})
    return links_between(items, names, stores={one.name for one in tiers if one.is_url})


def links_between(
    items: tuple[Item, ...], tiers: Collection[str] | None, *, stores: Collection[str]
) -> tuple[Link, ...]:
    """The same by the tiers' names (None: they are not known); ``stores`` have no hard links."""
    links: list[Link] = []
    for item in items:
        link = _link(item, tiers, stores)
        if any((one.source, one.target) == (link.source, link.target) for one in links):
            raise item.wrong(
                f'a link from "{link.source}" to "{link.target}" is declared twice',
                hint="one link may have several rules: what any of them chooses is flushed",
            )
        way_back = _way(links, link.target, link.source)
        if way_back:
            raise item.wrong(f"links go in a circle: {' -> '.join([link.source, *way_back])}")
        links.append(link)
    return tuple(links)


def _link(item: Item, tiers: Collection[str] | None, stores: Collection[str]) -> Link:
    entries = item.table(_LINK_KEYS, required=("from", "to"))
    if tiers is not None and not tiers:
        raise item.wrong("a link goes from tier to tier, and no tier is configured")
    source, target = _end(entries["from"], tiers), _end(entries["to"], tiers)
    if source == target:
        raise item.wrong(f"a link from {shown(source)} to itself moves nothing")
    if not any(key in entries for key in _CHOOSING_KEYS):
        raise item.wrong(
            "a link needs a rule that chooses what is flushed: "
            '"every", "every_steps", "last" or "pins"',
            hint="every: 1 flushes each checkpoint",
        )
    hold = entries["hold"].flag() if "hold" in entries else False
    if hold and source in stores:
        raise entries["hold"].wrong(
            f'"hold" keeps checkpoints by hard links, and tier "{source}" is a store without any'
        )
    every, every_s = _every(entries["every"]) if "every" in entries else (None, None)
    steps, last = entries.get("every_steps"), entries.get("last")
    return Link(
        source=source,
        target=target,
        every=every,
        every_steps=None if steps is None else steps.whole(1, MAX_EVERY_STEPS),
        every_s=every_s,
        last=None if last is None else last.whole(1, MAX_EVERY),
        pins=pins_of(entries["pins"]) if "pins" in entries else (),
        hold=hold,
    )


def _end(item: Item, tiers: Collection[str] | None) -> str:
    return item.tier(None) if tiers is None else item.one_of(tiers)


def _every(item: Item) -> tuple[int | None, float | None]:
    """A number of checkpoints, or a length of time."""
    if item.is_whole():
        return item.whole(1, MAX_EVERY), None
    return None, item.duration_s(1, 3650 * _DAY_S)


def pins_of(item: Item) -> tuple[str, ...]:
    """Names that pins are made under, each once."""
    names: list[str] = []
    for member in item.items():
        name = member.text()
        if not _PIN.fullmatch(name):
            raise member.wrong("a pin's name is 1 to 200 characters without control characters")
        if name in names:
            raise member.wrong(f"{shown(name)} is named twice")
        names.append(name)
    if not names:
        raise item.wrong(f'"{item.name}" names none')
    return tuple(names)


def _way(links: list[Link], start: str, end: str) -> list[str]:
    """The tiers from ``start`` to ``end`` along the links; empty where no way leads there."""
    ways, todo = {start: [start]}, [start]
    while todo:
        here = todo.pop()
        for link in links:
            if link.source == here and link.target not in ways:
                ways[link.target] = [*ways[here], link.target]
                todo.append(link.target)
    return ways.get(end, [])
