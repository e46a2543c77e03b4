"""What a policy lets go of a run, told once more: the meaning in ``policies/README.md`` as loops.

Nothing of ``ckptgov.planning`` is used here. A case is plain dicts (``retention_cases.py``); the
answer is, for every (checkpoint, tier) with a copy that could go, what becomes of it
(``evict``, ``prune`` or None) and the set of its reasons.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

SECOND = 10**9
PRESENT = {"verified", "re-opened", "corrupt", "unreadable", "partial"}
BUCKETS = ("hourly", "daily", "weekly", "monthly", "yearly")


def oracle(case: dict) -> dict[tuple[str, str], tuple[str | None, frozenset[str]]]:
    """What becomes of every checkpoint at every tier."""
    return Oracle(case).answer()


class Oracle:
    def __init__(self, case: dict) -> None:
        self.run, self.now = case["run"], case["now"]
        self.policy = case["policy"] or {}
        self.points = case["checkpoints"]
        age = self.policy.get("verify_max_age")
        self.fresh = self.now - ns(case["verify_max_age"] if age is None else age)
        self.usable: dict[tuple[str, str], dict] = {}
        self.stuck: set[tuple[str, str]] = set()  # verified, and cannot go or be relied on
        self.doubtful: set[tuple[str, str]] = set()  # there in another state
        for key, point in self.points.items():
            for place, copy in point["copies"].items():
                at = (key, copy["tier"])
                if copy["state"] not in PRESENT:
                    continue
                if copy["state"] != "verified":
                    self.doubtful.add(at)
                elif not copy["ours"] or not copy["reach"] or copy["tier"] in self.run["unseen"]:
                    self.stuck.add(at)
                else:
                    self.usable.setdefault(at, {})[place] = copy
        self.retired = self.is_retired()

    # -- the run ---------------------------------------------------------------------------------

    def is_retired(self) -> bool:
        since = self.run["retired"]
        if since is None and self.run["finished"] is None:
            quiet, dead = self.now - self.run["alive"], self.policy.get("retire_dead_after")
            if dead is not None:
                after = max(ns(dead), ns(self.policy["dead_after"]))
                since = self.run["alive"] + after if quiet >= after else None
        return since is not None and self.now >= since + ns(self.policy.get("retired_after", 0))

    def rules(self, key: str, tier: str) -> dict:
        if "resume" not in self.points[key]["purposes"]:
            return self.policy.get("weights", {}).get(tier, {})
        if self.retired and self.policy.get("retired_keep") is not None:
            return self.policy["retired_keep"]
        return self.policy.get("keep", {}).get(tier, {})

    def on_path(self, key: str) -> bool:
        point = self.points[key]
        if point["step"] is None or point["line"] not in self.run["path"]:
            return False
        top = self.run["path"][point["line"]]
        return top is None or point["step"] <= top

    def stepped(self, key: str) -> bool:
        return self.points[key]["step"] is not None and self.points[key]["kind"] != "none"

    def order(self, key: str) -> tuple:
        point = self.points[key]
        return (point["step"], point["line"], point["attempt"], key)

    # -- what lies where -------------------------------------------------------------------------

    def is_whole(self, key: str, copies: list[dict]) -> bool:
        held = set()
        for copy in copies:
            held |= copy["shards"]
        return held >= set(range(self.points[key]["shards"]))

    def whole_at(self, key: str, tier: str) -> bool:
        return self.is_whole(key, list(self.usable.get((key, tier), {}).values()))

    def restorable(self, key: str, *, everywhere: bool, shared: bool) -> bool:
        copies = []
        for copy in self.points[key]["copies"].values():
            far = not copy["reach"] or copy["tier"] in self.run["unseen"]
            near = everywhere or not far
            if copy["state"] == "verified" and near and (copy["node"] is None or not shared):
                copies.append(copy)
        return self.is_whole(key, copies)

    # -- rules -----------------------------------------------------------------------------------

    def candidates(self, tier: str, resume: bool) -> list[str]:
        """Oldest first."""
        best: dict[int, str] = {}
        for key, point in self.points.items():
            if not self.stepped(key) or not self.on_path(key) or point["mark"]:
                continue
            if ("resume" in point["purposes"]) != resume or not point["purposes"]:
                continue
            if self.whole_at(key, tier):
                rival = best.get(point["step"])
                if rival is None or self.order(key) > self.order(rival):
                    best[point["step"]] = key
        return sorted(best.values(), key=self.order)

    def kept(self, rules: dict, line: list[str]) -> dict[str, set[str]]:
        """Reasons by checkpoint; ``line`` are the candidates, oldest first."""
        found: dict[str, set[str]] = {key: set() for key in line}
        if not line:
            return found
        time = {key: self.points[key]["saved"] for key in line}
        newest = time[line[-1]]
        for place, key in enumerate(line):
            point = self.points[key]
            if len(line) - place <= rules.get("last", 0):
                found[key].add("last")
            if place < rules.get("first", 0):
                found[key].add("first")
            if "within" in rules and time[key] >= newest - ns(rules["within"]):
                found[key].add("within")
            if point["step"] in rules.get("steps", ()):
                found[key].add("steps")
            if point["tags"] & set(rules.get("tags", ())):
                found[key].add("tags")
            if "every_steps" in rules:
                size = rules["every_steps"]
                multiple = point["step"] - point["step"] % size
                if not any(multiple <= self.points[one]["step"] for one in line[:place]):
                    found[key].add("every_steps")
        for name in BUCKETS:
            if name in rules:
                by_bucket: dict[tuple, str] = {}
                for key in line:
                    by_bucket[self.bucket(name, time[key])] = key
                latest = sorted(by_bucket.values(), key=lambda key: -time[key])
                for key in latest[: as_count(rules[name])]:
                    found[key].add(name)
        if "every" in rules:
            last = None
            for key in sorted(line, key=lambda key: (time[key], self.order(key))):
                if last is None or time[key] >= last + ns(rules["every"]):
                    found[key].add("every")
                    last = time[key]
        for best in rules.get("best", ()):
            ranked, odd = [], []
            for key in line:
                value = self.points[key]["metrics"].get(best["metric"])
                if value is None:
                    if self.now < time[key] + ns(best["missing_for"]):
                        found[key].add("metric-awaited")
                elif number(value) is not None:
                    ranked.append(key)
                else:
                    odd.append(key)
            sign = -1 if best["mode"] == "max" else 1
            if best["ties"] == "newest":  # a stable sort leaves the first of equals in front
                ranked.reverse()
                odd.reverse()
            ranked.sort(
                key=lambda key, sign=sign, best=best: (
                    sign * number(self.points[key]["metrics"][best["metric"]])
                )
            )
            if best["nan"] == "worst":
                ranked += odd
            for key in ranked[: as_count(best["count"])]:
                found[key].add("best")
        if rules.get("recorded_best") and self.run["best"] is not None:
            name = self.run["best"].rstrip("/").split("/")[-1]
            named = [key for key in line if self.points[key]["name"].split("/")[-1] == name]
            if named:
                found[named[-1]].add("recorded_best")
        if "older_than_detection" in rules:
            bound = newest - ns(rules["older_than_detection"])
            old = [key for key in line if time[key] <= bound]
            young = [key for key in line if time[key] > bound]
            if old:
                found[old[-1]].add("older_than_detection")
            if young:
                heir = min(young, key=lambda key: (time[key], self.order(key)))
                found[heir].add("older_than_detection")
        return found

    def bucket(self, name: str, at: int) -> tuple:
        zone = ZoneInfo(self.policy["timezone"])
        local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at // SECOND)).astimezone(
            zone
        )
        if name == "hourly":
            return (local.date(), local.hour, local.utcoffset())
        if name == "weekly":
            return (local.date() - timedelta(days=local.weekday()),)
        return (local.year, local.month, local.day)[: {"daily": 3, "monthly": 2, "yearly": 1}[name]]

    # -- protection ------------------------------------------------------------------------------

    def shields(self) -> dict[str, set[str]]:
        """Why a checkpoint stays whatever the rules say."""
        found: dict[str, set[str]] = {key: set() for key in self.points}
        emptied = self.retired and self.policy.get("may_be_emptied", False)
        offered = [
            key
            for key in self.points
            if self.stepped(key) and self.on_path(key) and not self.points[key]["mark"]
        ]
        for purpose in ("resume", "weights"):
            for shared, reason in ((False, "newest-restorable"), (True, "newest-durable")):
                for everywhere in (True, False):
                    some = [
                        key
                        for key in offered
                        if purpose in self.points[key]["purposes"]
                        and self.restorable(key, everywhere=everywhere, shared=shared)
                    ]
                    if some and not emptied:
                        found[max(some, key=self.order)].add(reason)
        newest: dict[int, str] = {}
        for key in sorted(offered, key=self.order):
            tiers = {copy["tier"] for copy in self.points[key]["copies"].values()}
            resumes = "resume" in self.points[key]["purposes"]
            if resumes and any(self.whole_at(key, tier) for tier in tiers):
                newest[self.points[key]["step"]] = key
        least = self.policy.get("min_restorable", 2)
        for step in sorted(newest, reverse=True)[:least]:
            if not emptied:
                found[newest[step]].add("floor-restorable")
        for key, point in self.points.items():
            found[key] |= {"start-point"} if point["start"] else set()
            found[key] |= {"pinned"} if point["pins"] else set()
            found[key] |= {"leased"} if point["leases"] else set()
            found[key] |= {"undrained"} if point["awaited"] else set()
            if self.now - point["saved"] < ns(self.policy.get("min_age", 21600)) and not emptied:
                found[key].add("floor-age")
        return found

    # -- what goes -------------------------------------------------------------------------------

    def set_apart(self, key: str, tier: str, candidates: list[str]) -> tuple[set[str], str | None]:
        """(reasons to stay, why it goes) of one that the rules do not look at."""
        point = self.points[key]
        if not self.stepped(key):
            return {"stepless"}, None
        if (key, tier) not in self.usable:
            return {"not-verified"} if (key, tier) not in self.stuck else set(), None
        if point["mark"]:
            return set(), "marked-bad"
        if not self.on_path(key):
            spent, since = self.policy.get("old_lines"), self.run["replaced"].get(point["line"])
            if spent is None or since is None or self.now < since + ns(spent["after"]):
                return {"old-line"}, None
            if not spent["newest_too"] and key in self.newest_of_line(point["line"]):
                return {"old-line"}, None
            return set(), "old-line"
        if not self.whole_at(key, tier):
            there = [one for one in point["copies"].values() if one["tier"] == tier]
            there = [one for one in there if one["state"] in PRESENT]
            if self.is_whole(key, there):
                return {"not-verified"}, None
            return set(), "parts"
        assert key not in candidates
        return set(), "saved-again"

    def newest_of_line(self, line: int) -> set[str]:
        some = [
            key
            for key, point in self.points.items()
            if point["line"] == line and self.stepped(key) and not self.on_path(key)
            if not point["mark"] and point["purposes"]
            if self.restorable(key, everywhere=False, shared=False)
        ]
        return {max(some, key=self.order)} if some else set()

    def answer(self) -> dict[tuple[str, str], tuple[str | None, frozenset[str]]]:
        shields = self.shields()
        lines: dict[tuple[str, bool], list[str]] = {}
        answer = {}
        for key, point in self.points.items():
            stays: dict[str, set[str]] = {}
            goes: dict[str, str] = {}
            for tier in {copy["tier"] for copy in point["copies"].values()}:
                at = (key, tier)
                if at not in self.usable and at not in self.stuck and at not in self.doubtful:
                    continue
                rules, resume = self.rules(key, tier), "resume" in point["purposes"]
                stays[tier] = set()
                if not rules or not point["purposes"]:
                    stays[tier] = {"no-rules"}
                    continue
                if (tier, resume) not in lines:
                    lines[tier, resume] = self.candidates(tier, resume)
                if key in lines[tier, resume]:
                    stays[tier] = self.kept(rules, lines[tier, resume])[key]
                    if not stays[tier]:
                        goes[tier] = self.unkept(resume)
                else:
                    stays[tier], why = self.set_apart(key, tier, lines[tier, resume])
                    if why is not None:
                        goes[tier] = why
            gone, holds, action = self.decided(key, stays, goes, shields[key])
            for tier in stays:
                if (key, tier) not in self.usable:
                    continue
                if tier in gone:
                    why = goes[tier].replace("parts", "no-rule-keeps")
                    answer[key, tier] = (action, frozenset({why}))
                else:
                    reasons = stays[tier] | shields[key] | holds.get(tier, set())
                    answer[key, tier] = (None, frozenset(reasons))
        return answer

    def unkept(self, resume: bool) -> str:
        ended = self.retired and self.policy.get("retired_keep") is not None
        return "retired" if ended and resume else "no-rule-keeps"

    def decided(
        self, key: str, stays: dict[str, set[str]], goes: dict[str, str], shields: set[str]
    ) -> tuple[set[str], dict[str, set[str]], str | None]:
        """(tiers it goes from, what holds it back elsewhere, how)."""
        if "leased" in shields:
            return set(), {}, None
        if self.now < self.run["met"] + ns(self.policy.get("adoption_grace", 7 * 86400)):
            return set(), {tier: {"adoption"} for tier in goes}, None
        stuck = any((key, tier) in self.stuck for tier in stays)
        if not shields and not stuck and not any(stays.values()):
            if set(goes.values()) == {"parts"}:
                return set(), {tier: {"not-verified"} for tier in goes}, None
            if not self.rests_on_old_proof():
                return set(goes), {}, "prune"
            gone, holds = self.evicted(key, stays, goes)
            return gone, {one: {"stale-proof"} | holds.get(one, set()) for one in goes}, "evict"
        return *self.evicted(key, stays, goes), "evict"

    def evicted(
        self, key: str, stays: dict[str, set[str]], goes: dict[str, str]
    ) -> tuple[set[str], dict[str, set[str]]]:
        """(tiers it goes from though it stays, what holds it back elsewhere)."""
        point = self.points[key]
        gone: set[str] = set()
        holds: dict[str, set[str]] = {}
        nodes_first = sorted(goes, key=lambda tier: (self.shared_at(key, tier), tier))
        for tier in nodes_first:
            if point["awaited"] and self.awaited_from(point["awaited"], tier):
                continue
            left = [one for one in stays if one != tier and one not in gone]
            durable = sum(self.durable_at(key, one, since=None) for one in left)
            least = self.policy.get("min_durable_copies", 1) if self.shared_at(key, tier) else 1
            if durable < least:
                holds[tier] = {"floor-copies"}
            elif not any(self.durable_at(key, one, since=self.fresh) for one in left):
                holds[tier] = {"stale-proof"}
            else:
                gone.add(tier)
        return gone, holds

    def rests_on_old_proof(self) -> bool:
        """Whether what the run is left with at least was not compared lately."""
        if self.retired and self.policy.get("may_be_emptied", False):
            return False
        floors = {key for key, whys in self.shields().items() if "floor-restorable" in whys}
        for purpose in ("resume", "weights"):
            some = [
                key
                for key, point in self.points.items()
                if self.stepped(key) and self.on_path(key) and not point["mark"]
                if purpose in point["purposes"]
                if self.restorable(key, everywhere=False, shared=False)
            ]
            floors |= {max(some, key=self.order)} if some else set()
        return not all(self.compared_lately(key) for key in floors)

    def compared_lately(self, key: str) -> bool:
        return self.is_whole(
            key,
            [
                copy
                for copy in self.points[key]["copies"].values()
                if copy["state"] == "verified" and (copy["at"] or 0) >= self.fresh
                if copy["reach"] and copy["tier"] not in self.run["unseen"]
            ],
        )

    def awaited_from(self, awaited: set[str], tier: str) -> bool:
        links = self.policy.get("links")
        for target in awaited:
            sources = {source for source, end in links or () if end == target}
            if tier in sources or (not sources and tier not in awaited):
                return True
        return False

    def shared_at(self, key: str, tier: str) -> bool:
        return any(copy["node"] is None for copy in self.usable[key, tier].values())

    def durable_at(self, key: str, tier: str, *, since: int | None) -> bool:
        copies = [one for one in self.usable.get((key, tier), {}).values() if one["node"] is None]
        if since is not None:
            copies = [one for one in copies if (one["at"] or 0) >= since]
        return self.is_whole(key, copies)


def ns(seconds: float) -> int:
    return round(seconds) * SECOND


def as_count(number_: float) -> int | None:
    return None if number_ == math.inf else int(number_)


def number(text: str) -> float | None:
    if not set(text) <= set("0123456789+-.eE"):
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
