"""A place where most of what is to go resists is left alone for a time, and others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptgov.errors import StorageError
from ckptgov.ops import apply, prune
from ckptgov.ops.resisting import LEAST
from ckptgov.testing.builders import write_hf_trainer

POLICY = """\
policy: tight
runs: ["*"]
keep: {lustre: {last: 1}, nfs: {last: 1}}
floors: {min_restorable: 1, min_age: 0s}
safety: {max_fraction: 99%, grace: 0s, trash: 7d, adoption_grace: 0s}
"""
GOING = LEAST + 4


@pytest.fixture
def plan(cli, home: Path, tier: Path, tmp_path: Path) -> str:
    """One by which so many go of a run on each of two tiers."""
    (home / "policies").mkdir()
    (home / "policies/tight.yaml").write_text(POLICY)
    for name, root in (("lustre", tier), ("nfs", tmp_path / "nfs")):
        for step in range(GOING + 1):
            write_hf_trainer(root / f"{name}/checkpoint-{step}", step, state={"at": name})
        cli.done("tier", "add", name, root, "--ingest")
    cli.done("scan")
    return str(cli.json("plan").json["plan_id"])


@pytest.fixture
def resist(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Lets what ``does`` say so resist on one tier; gives what was tried there, in order."""
    move_aside = prune.move_aside

    def make(does: Callable[[str], bool]) -> list[str]:
        tried: list[str] = []

        def moved(place: Any, look: Any, content_id: str, **rest: Any) -> Any:
            if place.tier != "lustre":
                return move_aside(place, look, content_id, **rest)
            (stored,) = look.store.manifests_of(content_id)
            name = look.store.manifest(stored).name
            tried.append(name)
            if does(name):
                raise StorageError(f"{name}: read-only file system")
            return move_aside(place, look, content_id, **rest)

        monkeypatch.setattr(prune, "move_aside", moved)
        return tried

    return make


def told(answer: Any, tier: str) -> dict[str, list[str]]:
    """What became of a tier's checkpoints, by how it went."""
    found: dict[str, list[str]] = {}
    for one in answer.json["steps"]:
        if one["tier"] == tier:
            found.setdefault(one["went"], []).append(one["checkpoint"])
    return found


def test_where_everything_resists_few_are_tried_and_the_other_tier_is_cleared(
    cli, plan: str, resist: Callable[..., list[str]]
) -> None:
    tried = resist(lambda name: True)
    answer = cli.json("apply", plan)
    assert answer.code == 3
    assert len(tried) == LEAST
    assert [len(names) for names in told(answer, "lustre").values()] == [GOING]
    assert {*told(answer, "lustre")} == {"resisted"}
    assert {*told(answer, "nfs")} == {"trashed"}
    texts = [one["text"] for one in answer.json["steps"] if one["checkpoint"] not in tried]
    assert sum("not tried this time" in text for text in texts) == GOING - LEAST


def test_what_was_not_tried_has_its_turn_before_what_resisted(
    cli, plan: str, resist: Callable[..., list[str]]
) -> None:
    first = resist(lambda name: True)
    cli("apply", plan)
    second = resist(lambda name: name in first)
    answer = cli.json("apply")
    assert answer.code == 3
    assert not {*second[: GOING - LEAST]} & {*first}
    assert {*told(answer, "lustre")["trashed"]} == {*second[: GOING - LEAST]}
    third = resist(lambda name: False)
    assert cli.json("apply").code == 0
    assert {*third} == {*first}


def test_what_resists_for_good_never_keeps_the_others_from_their_turn(
    cli, plan: str, resist: Callable[..., list[str]]
) -> None:
    """Once all of them have resisted, in a spell that is over, nothing tells which still will."""
    resist(lambda name: True)
    cli("apply", plan)
    cli("apply")
    stuck = {f"checkpoint-{step}" for step in range(GOING - LEAST, GOING)}
    resist(lambda name: name in stuck)
    gone: set[str] = set()
    for _ in range(30):
        gone |= {*told(cli.json("apply"), "lustre").get("trashed", [])}
        if len(gone) == GOING - LEAST:
            break
    assert gone == {f"checkpoint-{step}" for step in range(GOING)} - stuck


@pytest.fixture
def trashed(cli, plan: str, time_is_over: Callable[[], None]) -> None:
    """All of it, and by now it is due."""
    cli.done("apply", plan)
    time_is_over()


def test_under_pressure_a_place_that_resists_is_left_alone_too(
    cli, trashed: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def refused(place: Any, store: Any, content_id: str, *rest: Any, **named: Any) -> Any:
        tried.append(content_id)
        raise StorageError(f"{content_id}: read-only file system")

    config = (home / "ckptgov.yaml").read_text()
    (home / "ckptgov.yaml").write_text(config.replace("name: lustre", "name: lustre, quota: 10kB"))
    with (home / "policies/tight.yaml").open("a") as policy:
        policy.write("capacity: {lustre: {high: 2%, low: 1%}}\n")
    monkeypatch.setattr(prune, "purge", refused)
    monkeypatch.setattr(apply, "go_on", lambda *given, **named: iter(()))
    answer = cli.json("apply")
    assert {*told(answer, "lustre")} == {"resisted"}
    assert len(tried) == LEAST


def test_where_no_more_than_half_resists_all_are_tried(
    cli, plan: str, resist: Callable[..., list[str]]
) -> None:
    seen: list[str] = []

    def every_other(name: str) -> bool:
        seen.append(name)
        return len(seen) % 2 == 0

    tried = resist(every_other)
    answer = cli.json("apply", plan)
    assert answer.code == 3
    assert len(tried) == GOING
    assert len(told(answer, "lustre")["trashed"]) == GOING / 2
