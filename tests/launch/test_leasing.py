"""A claim beside a command is renewed well before it runs out, whatever goes wrong meanwhile."""

from __future__ import annotations

import queue
import threading

from ckptgov.errors import StorageError
from ckptgov.integrations.leasing import Held


class Stage:
    """Time that passes when the test says so, and what the claim did."""

    def __init__(self) -> None:
        self.waits: queue.Queue[float] = queue.Queue()
        self.moves: queue.Queue[bool] = queue.Queue()
        self.done: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        self.fails = False

    def wait(self, ended: threading.Event, pause_s: float) -> bool:
        self.waits.put(pause_s)
        return self.moves.get(timeout=20) or ended.is_set()

    def renew(self) -> None:
        if self.fails:
            raise StorageError("the disk is away")
        self.done.put("renewed")

    def release(self) -> None:
        self.done.put("released")

    def held(self) -> Held:
        return Held(
            ttl_s=100,
            renew=self.renew,
            release=self.release,
            talk=self.said.append,
            wait=self.wait,
        )


def test_it_is_renewed_at_half_of_its_time_and_let_go_of_at_the_end() -> None:
    stage = Stage()
    held = stage.held()
    for _ in range(2):
        assert stage.waits.get(timeout=20) == 50
        stage.moves.put(False)
        assert stage.done.get(timeout=20) == "renewed"
    stage.moves.put(True)
    held.end()
    assert stage.done.get(timeout=20) == "released"
    assert stage.said == []


def test_a_renewal_that_fails_is_told_and_soon_tried_again() -> None:
    stage = Stage()
    stage.fails = True
    held = stage.held()
    assert stage.waits.get(timeout=20) == 50
    stage.moves.put(False)
    assert stage.waits.get(timeout=20) == 5
    stage.fails = False
    stage.moves.put(False)
    assert stage.done.get(timeout=20) == "renewed"
    assert stage.waits.get(timeout=20) == 50
    stage.moves.put(True)
    held.end()
    assert stage.said == ["the lease could not be renewed: the disk is away"]


def test_one_that_does_not_let_itself_be_ended_holds_nobody_up() -> None:
    stage = Stage()
    held = stage.held()
    held.end(patience_s=0)
    assert stage.said == ["the lease could not be ended within 0 s; it runs out"]
    stage.moves.put(True)
