"""Slow work: it ends in 504 as a whole or not at all, and what needs none of it is answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ckptgov.errors import TimedOut
from ckptgov.service.app import Limits
from ckptgov.service.pools import Pool
from ckptgov.testing.served import Asked, Served


class Gate:
    """Stands in for something that hangs, until it is opened."""

    def __init__(self, serving_call: Callable[..., object]) -> None:
        self._call = serving_call
        self.free = threading.Event()
        self.entered = 0

    def __call__(self, *given: object, **more: object) -> object:
        self.entered += 1
        self.free.wait(30)
        return self._call(*given, **more)


@contextmanager
def hanging(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> Iterator[Gate]:
    gate = Gate(getattr(owner, name))
    monkeypatch.setattr(owner, name, gate)
    try:
        yield gate
    finally:
        gate.free.set()


def test_what_takes_too_long_is_504_and_is_done_as_a_whole(
    opened: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = opened(limits=Limits(request_s=0.3))
    with hanging(monkeypatch, served.serving.catalog.nodes, "beat") as gate:
        told = served.post("/v1/nodes/n1/beat", {"boot": "b", "version": "1"})
        assert (told.status, told.kind) == (504, "timed-out")
        assert served.get("/v1/nodes").document["nodes"] == []
        gate.free.set()
    served.wait_until(lambda: len(served.get("/v1/nodes").document["nodes"]) == 1)


def test_what_was_not_begun_in_time_is_never_begun() -> None:
    free, begun = threading.Event(), []

    async def ask(pool: Pool) -> None:
        first = asyncio.ensure_future(pool.run(lambda: free.wait(30), limit_s=30))
        await asyncio.sleep(0)
        with pytest.raises(TimedOut):
            await pool.run(lambda: begun.append("late"), limit_s=0.05)
        free.set()
        assert await first
        await pool.run(lambda: begun.append("next"), limit_s=30)

    with Pool("one", threads=1, waiting=5) as pool:
        asyncio.run(ask(pool))
    assert begun == ["next"]


def test_more_than_is_taken_on_is_503_and_may_come_again(
    opened: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = opened(limits=Limits(catalog_threads=1, waiting=1))
    heard: list[Asked] = []
    with hanging(monkeypatch, served.serving.catalog, "runs") as gate:
        asking = [
            threading.Thread(target=lambda: heard.append(served.get("/v1/runs"))) for _ in range(6)
        ]
        for one in asking:
            one.start()
        served.wait_until(lambda: len(heard) == 4)
        gate.free.set()
        for one in asking:
            one.join(20)
    assert sorted(one.status for one in heard) == [200, 200, 503, 503, 503, 503]
    busy = next(one for one in heard if one.status == 503)
    assert (busy.kind, busy.headers["retry-after"]) == ("busy", "1")


def test_storage_that_hangs_does_not_hang_the_catalog(
    opened: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptgov.service import routes_cluster

    served = opened(limits=Limits(storage_s=0.2, storage_threads=1, catalog_threads=1))
    with hanging(monkeypatch, routes_cluster, "measure"):
        assert [served.get("/v1/du").status for _ in range(3)] == [504, 504, 504]
        assert served.get("/v1/runs").status == 200
        assert served.get("/readyz").status == 200


def test_the_same_change_asked_for_again_while_it_is_made_is_one_change(
    opened: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptgov.service import routes_history
    from ckptgov.testing.served import scanned

    served = opened(limits=Limits(storage_s=0.2))
    scanned(served.serving, "red/llm")
    said = {"tier": "lustre", "path": "red/llm/step_20"}
    with hanging(monkeypatch, routes_history, "seal_one") as gate:
        assert served.post("/v1/runs/red/llm/commit", said).status == 504
        assert served.post("/v1/runs/red/llm/commit", said).status == 504
        assert gate.entered == 1


def test_a_catalog_that_does_not_answer_is_not_ready_and_still_alive(
    opened: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = opened()
    assert served.get("/readyz", token="").status == 200
    with hanging(monkeypatch, served.serving.catalog, "identity"):
        assert served.get("/readyz", token="").status == 504
        assert served.get("/healthz", token="").document == {"status": "alive"}


def test_a_catalog_that_says_no_is_503(
    opened: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptgov.errors import TransientStorageError

    def broken() -> None:
        raise TransientStorageError("the catalog does not answer")

    served = opened()
    monkeypatch.setattr(served.serving.catalog, "identity", broken)
    told = served.get("/readyz", token="")
    assert (told.status, told.document["error"]["message"]) == (503, "the catalog does not answer")


def test_the_process_lives_while_every_thread_waits_for_the_catalog(
    opened: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = opened(limits=Limits(catalog_threads=1))
    with hanging(monkeypatch, served.serving.catalog, "runs") as gate:
        asking = threading.Thread(target=lambda: served.get("/v1/runs"))
        asking.start()
        served.wait_until(lambda: gate.entered == 1)
        assert served.get("/healthz", token="").document == {"status": "alive"}
        gate.free.set()
        asking.join(20)


def test_a_journal_that_hangs_does_not_hang_other_runs_answers(
    opened: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptgov.ops import restart_journal
    from ckptgov.testing.served import scanned

    served = opened(limits=Limits(answer_threads=1))
    scanned(served.serving, "red/llm", "blue/llm")
    with hanging(monkeypatch, restart_journal, "home_store") as gate:
        asking = threading.Thread(
            target=lambda: served.post("/v1/runs/red/llm/restarts", {"restart_id": "r"})
        )
        asking.start()
        served.wait_until(lambda: gate.entered == 1)
        assert served.get("/v1/runs/blue/llm/latest").document["step"] == 20
        gate.free.set()
        asking.join(20)


def test_a_look_that_hangs_is_not_begun_again_beside_itself() -> None:
    from ckptgov.service import watch as module

    free, begun = threading.Event(), []

    def look() -> object:
        begun.append(1)
        free.wait(30)
        return len(begun)

    async def wait(pool: Pool) -> None:
        watch = module.Watch(every_s=0.001)
        for _ in range(3):  # each time somebody else comes and goes
            await watch.changed("k", pool, look, seen=1, limit_s=0.05)
        free.set()

    with pytest.MonkeyPatch.context() as patch, Pool("one", threads=4, waiting=5) as pool:
        patch.setattr(module, "_LOOK_LIMIT_S", 0.005)
        asyncio.run(wait(pool))
    assert len(begun) == 1


@pytest.mark.parametrize("token", ["", "ckptgov_0123456789abcdef_" + "a" * 43])
@pytest.mark.parametrize("path", ["/readyz", "/v1/runs"])
def test_what_the_catalog_says_of_its_server_is_told_to_no_stranger(
    opened: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, path: str, token: str
) -> None:
    from ckptgov.errors import StorageError

    def broken(*_: object) -> None:
        raise StorageError("postgresql://someone@db7/ckptgov: no")

    served = opened()
    monkeypatch.setattr(served.serving.catalog, "identity", broken)
    monkeypatch.setattr(served.serving.catalog.tokens, "by_secret", broken)
    told = served.get(path, token=token)
    assert told.status in (401, 503)
    assert b"db7" not in told.body
