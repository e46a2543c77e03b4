"""How full places are, what goes of them, and what is above its limit once that is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.model.policy import CapacityRule, Policy
from ckptgov.model.retention import PlanEntry, Removal, RunLife, TierOutlook
from ckptgov.planning.retention import Decided


class Fill(Struct, frozen=True, kw_only=True):
    """How full one place is. ``used_bytes`` and ``files`` lie there in any form, the trash among
    them until it is purged.

    With ``quota_bytes`` percentages are of that, else of the file system (``total_bytes``).
    ``free_bytes`` and ``free_files`` are what a writer may still take by the file system; None
    where it tells nothing. ``leaving_bytes`` and ``leaving_files`` are among what is used, and on
    their way out already (condemned, or in the trash): they are not freed a second time.
    """

    place: str
    tier: str
    node: str | None
    used_bytes: int
    free_bytes: int | None = None
    total_bytes: int | None = None
    quota_bytes: int | None = None
    files: int | None = None
    free_files: int | None = None
    leaving_bytes: int = 0
    leaving_files: int = 0

    @property
    def size_bytes(self) -> int | None:
        """What percentages are of."""
        return self.total_bytes if self.quota_bytes is None else self.quota_bytes

    @property
    def room_bytes(self) -> int | None:
        """What may still be written: the smaller of what quota and file system leave."""
        rooms = [] if self.free_bytes is None else [self.free_bytes]
        if self.quota_bytes is not None:
            rooms.append(self.quota_bytes - self.used_bytes)
        return min(rooms, default=None)

    @property
    def size_files(self) -> int | None:
        """How many files there could be."""
        if self.files is None or self.free_files is None:
            return None
        return self.files + self.free_files


class Sums:
    """Bytes and files by some key."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, first: str, second: str, size_bytes: int, files: int) -> None:
        """``first`` and ``second`` are the key: policy and tier, or tier and place."""
        held = self.of(first, second)
        self._by_key[first, second] = (held[0] + size_bytes, held[1] + files)

    def of(self, first: str, second: str) -> tuple[int, int]:
        """What was added up."""
        return self._by_key.get((first, second), (0, 0))


class Tally:
    """What a sweep over all runs adds up: what they hold, what goes, what their next saves take."""

    def __init__(self) -> None:
        self.policies: dict[str, Policy] = {}
        self.held = Sums()  # by policy and tier, where it has a quota there
        self.gone = Sums()  # of that
        self.freed = Sums()  # by tier and place
        self.reserve = Sums()  # by tier and place

    def count(self, decided: Decided, going: Iterable[PlanEntry]) -> None:
        """One run as it is, and what retention lets go of it."""
        policy = decided.terms.policy
        if decided.terms.has_policy:
            self.policies.setdefault(policy.name, policy)
            self._count_held(decided, policy)
            self._count_next_save(decided, policy)
        for entry in going:
            self.let_go(policy, entry)

    def let_go(self, policy: Policy, entry: PlanEntry) -> None:
        """One copy that goes."""
        self.freed.add(entry.tier, entry.place, entry.bytes, entry.files)
        if _has_quota(policy.capacity.get(entry.tier)):
            self.gone.add(policy.name, entry.tier, entry.bytes, entry.files)

    def held_after(self, policy: str, tier: str) -> tuple[int, int]:
        """What a policy's runs hold on a tier with a quota once all that goes is gone."""
        held, gone = self.held.of(policy, tier), self.gone.of(policy, tier)
        return held[0] - gone[0], held[1] - gone[1]

    def _count_held(self, decided: Decided, policy: Policy) -> None:
        limited = {tier for tier, rule in policy.capacity.items() if _has_quota(rule)}
        if not limited:
            return
        for one in decided.judged:
            for tier in limited & one.rulings.keys():
                at = one.rulings[tier].at
                for copy in (*at.verified, *at.unproven):
                    self.held.add(policy.name, tier, copy.bytes, copy.files)

    def _count_next_save(self, decided: Decided, policy: Policy) -> None:
        if decided.terms.life is not RunLife.LIVE:
            return
        for tier, rule in policy.capacity.items():
            if rule.reserve_saves:
                for place, size_bytes in _newest_sizes(decided, tier).items():
                    self.reserve.add(tier, place, rule.reserve_saves * size_bytes, 0)


def _has_quota(rule: CapacityRule | None) -> bool:
    return rule is not None and (rule.quota_bytes is not None or rule.quota_files is not None)


def _newest_sizes(decided: Decided, tier: str) -> dict[str, int]:
    """Place to how much the newest checkpoint that has a copy there takes of it."""
    sizes: dict[str, int] = {}
    for one in decided.judged:
        ruling = one.rulings.get(tier)
        for copy in () if ruling is None else (*ruling.at.verified, *ruling.at.unproven):
            sizes.setdefault(copy.place, copy.bytes)
    return sizes


class Lack:
    """How much a place is above its limits as it is now; what goes there makes it less."""

    __slots__ = ("bytes", "files")

    def __init__(self, size_bytes: int, files: int) -> None:
        self.bytes = size_bytes
        self.files = files

    def needs(self, size_bytes: int, files: int) -> bool:
        """Whether it would be less without so much."""
        return (self.bytes > 0 and size_bytes > 0) or (self.files > 0 and files > 0)

    def take(self, size_bytes: int, files: int) -> None:
        """So much went."""
        self.bytes -= size_bytes
        self.files -= files


def lack_now(fill: Fill, rules: Iterable[CapacityRule]) -> Lack:
    """What lies at a place, in any form, above the low mark of rules above whose high one it is.

    Unlike in a plan, what is on its way out still counts: it takes room until it is gone. Where no
    rule has marks, what is above the quota.
    """
    marks = [
        (one.high_percent, one.low_percent)
        for one in rules
        if one.high_percent is not None and one.low_percent is not None
    ] or [(100, 100)]

    def above(used: int, whole: int | None) -> int:
        if not whole:
            return 0
        return max(
            (used - whole * low // 100 for high, low in marks if used * 100 > whole * high),
            default=0,
        )

    return Lack(above(fill.used_bytes, fill.size_bytes), above(fill.files or 0, fill.size_files))


def needed_of(trash: Iterable[Removal], lack: Lack, *, now_ns: int) -> Iterator[Removal]:
    """What of a place's trash goes before its time, so that nothing is lacking any more.

    What is due goes in any case, so it comes first; then what has lain there longest. Whoever is
    given one tells ``lack`` what came of it, before the next.
    """
    for one in sorted(trash, key=lambda each: _by_time(each, now_ns)):
        if lack.needs(one.bytes, one.files):
            yield one


def _by_time(one: Removal, now_ns: int) -> tuple[bool, int, str, str]:
    lies_since_ns = one.due_at_ns - int(one.trash_s * 1e9)
    return one.due_at_ns > now_ns, lies_since_ns, one.run_id, one.content_id


def used_after(fill: Fill, tally: Tally) -> tuple[int, int]:
    """Bytes and files at a place once all that goes is gone."""
    freed_bytes, freed_files = tally.freed.of(fill.tier, fill.place)
    return (
        max(0, fill.used_bytes - fill.leaving_bytes - freed_bytes),
        max(0, (fill.files or 0) - fill.leaving_files - freed_files),
    )


def short_of_room(fill: Fill, tally: Tally) -> int:
    """Bytes that the next saves lack at a place once all that goes is gone; negative: none."""
    room = fill.room_bytes
    if room is None:
        return 0
    freed_bytes, _ = tally.freed.of(fill.tier, fill.place)
    return tally.reserve.of(fill.tier, fill.place)[0] - room - fill.leaving_bytes - freed_bytes


def outlooks(tally: Tally, fills: Sequence[Fill]) -> tuple[TierOutlook, ...]:
    """Every place before and after all that goes, and what is above its limit even then.

    Quotas of policies on a tier of nodes' disks are told of the tier as a whole (node None).
    """
    told = [_outlook(fill, tally) for fill in fills]
    for quota in _quotas(tally):
        at = next(
            (i for i, one in enumerate(told) if (one.tier, one.node) == (quota.tier, None)), None
        )
        if at is None:
            told.append(quota)
            continue
        told[at] = replace(
            told[at],
            over_bytes=max(told[at].over_bytes, quota.over_bytes),
            over_files=max(told[at].over_files, quota.over_files),
        )
    return tuple(sorted(told, key=lambda one: (one.tier, one.node or "")))


def _outlook(fill: Fill, tally: Tally) -> TierOutlook:
    """A place is above its limit where it stays above the lowest high mark, or short of room."""
    rules = [
        policy.capacity[fill.tier]
        for policy in tally.policies.values()
        if fill.tier in policy.capacity
    ]
    marks = [one.high_percent for one in rules if one.high_percent is not None]
    used_bytes, used_files = used_after(fill, tally)
    limit_bytes, limit_files = (
        whole if whole is None or not marks else whole * min(marks) // 100
        for whole in (fill.size_bytes, fill.size_files)
    )
    over_bytes = used_bytes - limit_bytes if limit_bytes is not None and marks else 0
    over_files = used_files - limit_files if limit_files is not None and marks else 0
    if any(one.reserve_saves for one in rules):
        over_bytes = max(over_bytes, short_of_room(fill, tally))
    freed_bytes, freed_files = tally.freed.of(fill.tier, fill.place)
    return TierOutlook(
        tier=fill.tier,
        node=fill.node,
        used_bytes=fill.used_bytes,
        limit_bytes=limit_bytes,
        freed_bytes=freed_bytes,
        freed_files=freed_files,
        over_bytes=max(0, over_bytes),
        over_files=max(0, over_files),
    )


def _quotas(tally: Tally) -> Iterator[TierOutlook]:
    """Each policy's quota on each tier as an outlook of its own."""
    for name in sorted(tally.policies):
        for tier, rule in sorted(tally.policies[name].capacity.items()):
            if not _has_quota(rule):
                continue
            held, gone = tally.held.of(name, tier), tally.gone.of(name, tier)
            after_bytes, after_files = tally.held_after(name, tier)
            yield TierOutlook(
                tier=tier,
                node=None,
                used_bytes=held[0],
                limit_bytes=rule.quota_bytes,
                freed_bytes=gone[0],
                freed_files=gone[1],
                over_bytes=_above(after_bytes, rule.quota_bytes),
                over_files=_above(after_files, rule.quota_files),
            )


def _above(amount: int, limit: int | None) -> int:
    return 0 if limit is None else max(0, amount - limit)
