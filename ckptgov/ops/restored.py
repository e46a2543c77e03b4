"""The answer of a restore, done or only planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.model.facts import Finding
from ckptgov.model.movement import RestoreAnswer, RestoreSource
from ckptgov.ops.bringing import Bringing
from ckptgov.work.addresses import join as absolute
from ckptgov.work.ask import resume_at
from ckptgov.work.landing import Landed
from ckptgov.work.tier import Place


class Brought(Struct, frozen=True, kw_only=True):
    """What became of it. ``linked`` is shard path to the place whose file got a second name."""

    landed: Landed
    linked: Mapping[str, str]
    faults: tuple[Finding, ...]


def planned(bringing: Bringing, rate_of: Callable[[Place], float | None]) -> RestoreAnswer:
    """What would come from where, and how long it takes at the places' known rates."""
    given: dict[str, tuple[int, int]] = {}
    for shard in bringing.shards:
        _add(given, bringing.sources[shard.path][0].place, 1, shard.bytes)
    places = {one.place.uuid or one.place.root: one.place for one in bringing.copies}
    rates = {place: rate_of(places[place]) for place in given}
    times_s = [bytes_ / rate for at, (_, bytes_) in given.items() if (rate := rates[at])]
    answer = _answer(bringing, bringing.to.name, given)
    return replace(answer, eta_s=max(times_s) if len(times_s) == len(given) else None)


def told(bringing: Bringing, brought: Brought, *, took_s: float) -> RestoreAnswer:
    landed = brought.landed
    given: dict[str, tuple[int, int]] = {}
    for place, shards, bytes_ in landed.read_at:
        _add(given, place, shards, bytes_)
    for shard in bringing.shards:
        if shard.path in brought.linked:
            _add(given, brought.linked[shard.path], 1, shard.bytes)
    return replace(
        _answer(bringing, landed.name, given),
        sent_bytes=landed.sent_bytes,
        resumed_bytes=landed.resumed_bytes,
        took_s=took_s,
        stood_already=landed.stood_already and not brought.linked,
        faults=brought.faults,
    )


def _add(given: dict[str, tuple[int, int]], place: str, shards: int, bytes_: int) -> None:
    before = given.get(place, (0, 0))
    given[place] = (before[0] + shards, before[1] + bytes_)


def _answer(bringing: Bringing, name: str, given: Mapping[str, tuple[int, int]]) -> RestoreAnswer:
    chosen, directory = bringing.chosen, bringing.to.directory
    assert chosen.content_id is not None
    places = {one.place.uuid or one.place.root: one.place for one in reversed(bringing.copies)}
    return RestoreAnswer(
        run=bringing.asked.run,
        name=name,
        step=chosen.step,
        step_kind=chosen.step_kind,
        content_id=chosen.content_id,
        path=absolute(directory, name),
        resume=resume_at(chosen, directory, name),
        bytes=sum(one.bytes for one in bringing.shards),
        shards=len(bringing.shards),
        matched=bringing.only is not None,
        sources=tuple(
            RestoreSource(
                place=place,
                tier=places[place].tier,
                root=places[place].root,
                shards=shards,
                bytes=bytes_,
            )
            for place, (shards, bytes_) in sorted(given.items())
        ),
    )
