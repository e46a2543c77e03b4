"""P2 and what protects, told from outside: of a case (plain dicts) and of what goes of it.

What goes is a dict: checkpoint to places it goes from, each with how.
"""

from __future__ import annotations

import copy

SECOND = 10**9


def could_go(case: dict, one: dict) -> bool:
    """Whether a copy is one that may be removed at all."""
    is_seen = one["reach"] and one["tier"] not in case["run"]["unseen"]
    return one["state"] == "verified" and one["ours"] and is_seen


def check_promises(case: dict, gone: dict[str, dict[str, str]], *, may_be_emptied: bool) -> None:
    """P2 and what protects, looked at from outside."""
    after = without(case, gone)
    said = case["policy"] or {}
    for purpose in ("resume", "weights"):
        for everywhere in (True, False):
            for shared in (True, False):
                newest = newest_of(case, purpose, everywhere, shared)
                if newest is not None and not may_be_emptied:
                    assert newest == newest_of(after, purpose, everywhere, shared)
    for key, places in gone.items():
        point = case["checkpoints"][key]
        assert not point["leases"]
        assert point["step"] is not None
        left = [one for one in after["checkpoints"][key]["copies"].values() if could_go(case, one)]
        if set(places.values()) == {"evict"}:
            shared = [one for one in left if one["node"] is None and one["whole"]]
            assert shared, "the last durable copy of a kept checkpoint went"
            fresh = said.get("verify_max_age") or case["verify_max_age"]
            assert any((one["at"] or 0) >= case["now"] - fresh * SECOND for one in shared)
        else:
            assert set(places.values()) == {"prune"}
            assert not left, "a pruned checkpoint goes from everywhere"
            assert not point["pins"]
            assert not point["start"]
            assert not point["awaited"]
            assert may_be_emptied or is_newest_compared(case, after)
    before, remain = restorable_steps(case), restorable_steps(after)
    if not may_be_emptied:
        assert len(remain) >= min(said.get("min_restorable", 2), len(before))


def is_newest_compared(case: dict, after: dict) -> bool:
    """Whether what a launcher within reach is given next was compared lately, if there is any."""
    said = (case["policy"] or {}).get("verify_max_age")
    since = case["now"] - (case["verify_max_age"] if said is None else said) * SECOND
    newest = newest_of(after, "resume", everywhere=False, shared=False)
    if newest is None:
        return True
    point = copy.deepcopy(after["checkpoints"][newest])
    point["copies"] = {
        place: one for place, one in point["copies"].items() if (one["at"] or 0) >= since
    }
    return is_held(after, point, everywhere=False, shared=False)


def without(case: dict, gone: dict[str, dict[str, str]]) -> dict:
    """The case once those copies are gone."""
    after = copy.deepcopy(case)
    for key, places in gone.items():
        for place in places:
            del after["checkpoints"][key]["copies"][place]
    return after


def is_held(case: dict, point: dict, everywhere: bool, shared: bool) -> bool:
    """Whether verified copies hold every shard."""
    held: set[int] = set()
    for one in point["copies"].values():
        near = one["reach"] and one["tier"] not in case["run"]["unseen"]
        if one["state"] == "verified" and (near or everywhere):
            held |= one["shards"] if one["node"] is None or not shared else set()
    return len(held) == point["shards"]


def offered(case: dict) -> list[tuple[tuple, str, dict]]:
    """What could be handed out, newest first."""
    path = case["run"]["path"]
    return sorted(
        (
            ((point["step"], point["line"], point["attempt"], key), key, point)
            for key, point in case["checkpoints"].items()
            if point["step"] is not None and point["kind"] != "none" and not point["mark"]
            if point["line"] in path
            if path[point["line"]] is None or point["step"] <= path[point["line"]]
        ),
        reverse=True,
    )


def newest_of(case: dict, purpose: str, everywhere: bool, shared: bool) -> str | None:
    for _, key, point in offered(case):
        if purpose in point["purposes"] and is_held(case, point, everywhere, shared):
            return key
    return None


def restorable_steps(case: dict) -> set[int]:
    return {
        point["step"]
        for _, _, point in offered(case)
        if "resume" in point["purposes"] and is_held(case, point, False, False)
    }
