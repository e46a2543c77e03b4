"""Who watches the cluster: what must not be answered is noticed, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fault_watch import Watch

from ckptgov.testing._ranks import digests_of

RUN = "run"
FILES = {"a.pt": b"a", "b.pt": b"b"}


class Told:
    """A watch over two saves that lie on two nodes and a shared tier, and answers to judge."""

    def __init__(self, base: Path) -> None:
        self.base = base
        written = {}
        for step in (1, 2):
            for place in ("node0", "node1", "lustre"):
                directory = base / place / f"checkpoint-{step}"
                directory.mkdir(parents=True)
                for name, body in FILES.items():
                    (directory / name).write_bytes(body)
            written[RUN, step] = digests_of(base / "lustre" / f"checkpoint-{step}")
        store = SimpleNamespace(client=lambda: None)
        self.watch = Watch(SimpleNamespace(written=written, store=store, ports=()), RUN)  # type: ignore[arg-type]

    def copy(self, place: str, *shards: str) -> dict[str, Any]:
        node = None if place == "lustre" else place
        root = str(self.base / place)
        return {"tier": place, "node": node, "root": root, "shards": list(shards) or None}

    def answer(self, step: int, *copies: dict[str, Any], **more: Any) -> dict[str, Any]:
        name = f"checkpoint-{step}"
        path = f"{copies[0]['root']}/{name}"
        told = {"step": step, "name": name, "path": path, "copies": list(copies)}
        return {**told, "passed_over": [], "notes": [], **more}

    def judged(self, *answers: dict[str, Any]) -> list[str]:
        for one in answers:
            self.watch._judge("somebody", one, time.monotonic())
        return self.watch.wrong


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def passed_over(step: int, reason: str) -> dict[str, Any]:
    return {"passed_over": [{"step": step, "findings": [{"reason": reason}]}]}


def test_what_lies_whole_over_two_nodes_may_be_answered(told: Told) -> None:
    halves = told.copy("node0", "a.pt"), told.copy("node1", "b.pt")
    assert told.judged(told.answer(1, *halves)) == []


def test_half_a_checkpoint_is_noticed(told: Told) -> None:
    assert "b.pt" in told.judged(told.answer(1, told.copy("node0", "a.pt")))[0]


def test_the_half_of_a_node_that_is_out_of_reach_does_not_count(told: Told) -> None:
    halves = told.copy("node0", "a.pt"), told.copy("node1", "b.pt")
    notes = [{"kind": "unreachable", "path": str(told.base / "node1")}]
    assert "b.pt" in told.judged(told.answer(1, *halves, notes=notes))[0]


def test_a_byte_that_differs_is_noticed(told: Told) -> None:
    (told.base / "lustre/checkpoint-1/a.pt").write_bytes(b"x")
    assert "a.pt" in told.judged(told.answer(1, told.copy("lustre")))[0]


def test_a_shard_that_is_missing_is_noticed(told: Told) -> None:
    (told.base / "lustre/checkpoint-1/a.pt").unlink()
    assert "a.pt" in told.judged(told.answer(1, told.copy("lustre")))[0]


def test_a_path_that_is_none_of_the_copies_is_noticed(told: Told) -> None:
    answer = told.answer(1, told.copy("lustre"), path="/elsewhere/checkpoint-1")
    assert "none of its copies" in told.judged(answer)[0]


def test_a_lower_step_is_noticed(told: Told) -> None:
    higher, lower = (told.answer(step, told.copy("lustre")) for step in (2, 1))
    assert "step 1 after 2" in told.judged(higher, lower)[0]


def test_a_lower_step_is_right_while_the_higher_lies_on_lost_nodes_alone(told: Told) -> None:
    higher = told.answer(2, told.copy("node0"))
    lower = told.answer(1, told.copy("lustre"), **passed_over(2, "unreachable"))
    assert told.judged(higher, lower) == []


def test_a_lower_step_is_wrong_once_the_higher_lay_on_a_shared_tier(told: Told) -> None:
    higher = told.answer(2, told.copy("lustre"))
    lower = told.answer(1, told.copy("lustre"), **passed_over(2, "unreachable"))
    assert "step 1 after 2" in told.judged(higher, lower)[0]


@pytest.mark.parametrize("kind", ["never-any", "none-restorable", "unknown-run", "error"])
def test_an_error_that_speaks_of_the_run_is_noticed(told: Told, kind: str) -> None:
    assert kind in told.judged({"error": {"kind": kind}})[0]


def test_an_error_that_says_later_is_none(told: Told) -> None:
    assert told.judged({"error": {"kind": "storage-transient"}}) == []
