"""Work that is asked for over HTTP: tasks, who takes them, how they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ckptgov.service.app import Limits
from ckptgov.testing.served import Asked, Served, scanned


def the_task(told: Asked) -> dict:
    assert told.status == 202, told.body
    return told.document["task"]


@pytest.mark.parametrize(
    ("path", "said", "kind"),
    [
        ("/v1/runs/red/llm/flush", {"step": 10, "to": "s3"}, "flush"),
        ("/v1/runs/red/llm/verify", {"level": "size"}, "verify"),
        ("/v1/scan", {"runs": ["red/llm"]}, "scan"),
        ("/v1/scan", {"tiers": ["lustre"]}, "scan"),
        ("/v1/scan", {}, "scan"),
        ("/v1/reconcile", {"tiers": ["s3"], "older_than_s": 60}, "reconcile"),
    ],
)
def test_what_is_asked_for_is_a_task_until_it_is_done(
    served: Served, path: str, said: object, kind: str
) -> None:
    task = the_task(served.post(path, said))
    assert (task["kind"], task["state"]) == (kind, "queued")
    found = served.get(f"/v1/tasks/{task['task_id']}").document["task"]
    assert found["task_id"] == task["task_id"]
    assert [one["kind"] for one in served.get("/v1/tasks").document["tasks"]] == [kind]


def test_the_same_asked_for_twice_is_one_task(served: Served) -> None:
    one = the_task(served.post("/v1/runs/red/llm/flush", {}))
    two = the_task(served.post("/v1/runs/red/llm/flush", {}))
    assert one["task_id"] == two["task_id"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/runs/red/llm/flush", {"to": "tape"}),
        ("/v1/scan", {"tiers": ["tape"]}),
        ("/v1/scan", {"tiers": ["lustre"], "runs": ["red/llm"]}),
        ("/v1/reconcile", {"tiers": ["tape"]}),
    ],
)
def test_work_that_cannot_be_is_refused_at_once(quiet: Served, path: str, said: object) -> None:
    assert quiet.post(path, said).status == 400


def test_a_scan_of_an_unknown_run_is_503(quiet: Served) -> None:
    assert quiet.post("/v1/scan", {"runs": ["no/such"]}).kind == "unknown-run"


def test_an_unknown_task_is_404_and_says_nothing_of_checkpoints(quiet: Served) -> None:
    told = quiet.get("/v1/tasks/nothing")
    assert (told.status, told.kind) == (404, "no-such-task")
    assert told.document["error"]["exit_code"] != 4


def test_tasks_are_listed_by_run_node_and_state(served: Served) -> None:
    the_task(served.post("/v1/runs/red/llm/flush", {}))
    the_task(served.post("/v1/runs/blue/llm/flush", {}))
    assert len(served.get("/v1/tasks?run=red/llm").document["tasks"]) == 1
    assert len(served.get("/v1/tasks?state=queued").document["tasks"]) == 2
    assert served.get("/v1/tasks?state=done").document["tasks"] == []
    assert served.get("/v1/tasks?node=n1").document["tasks"] == []


@pytest.fixture
def agent(opened: Callable[..., Served]) -> Served:
    """A service that reaches no node's disk; node n1 has a task to verify red/llm."""
    return node_with_task(opened(here=frozenset()))


def node_with_task(served: Served) -> Served:
    served.post("/v1/nodes/n1/beat", {"boot": "b1", "version": "1"})
    from ckptgov.model.cluster import NewTask, TaskKind

    served.serving.catalog.tasks.add(
        NewTask(kind=TaskKind.VERIFY, key="k", payload=b'{"run":"red/llm"}', node="n1")
    )
    return served


def claim(served: Served, **more: object) -> list[dict]:
    told = served.post("/v1/nodes/n1/claim", {"holder": "a1", **more})
    assert told.status == 200, told.body
    return told.document["tasks"]


def test_an_agent_takes_a_task_goes_on_with_it_and_ends_it(agent: Served) -> None:
    (task,) = claim(agent)
    assert (task["state"], task["payload"]) == ("claimed", {"run": "red/llm"})
    assert claim(agent) == []
    path, lease = f"/v1/tasks/{task['task_id']}", task["lease"]
    assert agent.post(f"{path}/renew", {"lease": lease}).status == 200
    ended = agent.post(
        f"{path}/end", {"lease": lease, "state": "done", "outcome": {"checkpoints": []}}
    )
    assert ended.document["task"]["state"] == "done"
    found = agent.get(path).document["task"]
    assert (found["state"], found["outcome"]) == ("done", {"checkpoints": []})


def test_an_outcome_under_an_older_lease_is_409(agent: Served) -> None:
    (task,) = claim(agent)
    told = agent.post(
        f"/v1/tasks/{task['task_id']}/end", {"lease": task["lease"] + 1, "state": "done"}
    )
    assert (told.status, told.kind) == (409, "lease-lost")
    told = agent.post(f"/v1/tasks/{task['task_id']}/renew", {"lease": task["lease"] + 1})
    assert told.status == 409


def test_the_services_own_task_is_no_agents(agent: Served) -> None:
    from ckptgov.model.access import Right
    from ckptgov.model.cluster import NewTask, TaskKind

    tasks = agent.serving.catalog.tasks
    tasks.add(NewTask(kind=TaskKind.BACKUP, key="b", payload=b"{}"))
    (task,) = tasks.claim(node=None, holder="w", kinds=None, ttl_s=60)
    said = {"lease": task.lease, "state": "done"}
    any_node = agent.token(Right.AGENT)
    told = agent.post(f"/v1/tasks/{task.task_id}/end", said, token=any_node)
    assert told.status == 403
    told = agent.post(f"/v1/tasks/{task.task_id}/renew", {"lease": task.lease}, token=any_node)
    assert told.status == 403


def test_an_agent_asks_of_its_own_nodes_tasks_only(agent: Served) -> None:
    from ckptgov.model.access import Right

    (task,) = claim(agent)
    path = f"/v1/tasks/{task['task_id']}"
    assert agent.get(path, token=agent.token(Right.AGENT, node="n1")).status == 200
    assert agent.get(path, token=agent.token(Right.AGENT, node="n2")).status == 403


def test_an_outcome_nested_without_end_is_refused(agent: Served) -> None:
    (task,) = claim(agent)
    nested = b"[" * 300 + b"]" * 300
    raw = b'{"lease":%d,"state":"done","outcome":%s}' % (task["lease"], nested)
    told = agent.ask("POST", f"/v1/tasks/{task['task_id']}/end", raw=raw)
    assert told.status == 400
    assert agent.get(f"/v1/tasks/{task['task_id']}").document["task"]["state"] == "claimed"


def test_who_waits_for_a_task_hears_of_its_end(agent: Served) -> None:
    (task,) = claim(agent)
    heard: list[Asked] = []
    path = f"/v1/tasks/{task['task_id']}"
    waiting = threading.Thread(target=lambda: heard.append(agent.get(f"{path}?wait=30")))
    waiting.start()
    began = time.monotonic()
    time.sleep(0.2)
    assert not heard
    agent.post(f"{path}/end", {"lease": task["lease"], "state": "failed"})
    waiting.join(20)
    assert heard[0].document["task"]["state"] == "failed"
    assert time.monotonic() - began < 10


def test_a_wait_that_ends_without_it_tells_how_things_stand(agent: Served) -> None:
    (task,) = claim(agent)
    told = agent.get(f"/v1/tasks/{task['task_id']}?wait=0.2")
    assert (told.status, told.document["task"]["state"]) == (200, "claimed")


def test_nobody_waits_longer_than_a_minute(agent: Served) -> None:
    assert agent.get("/v1/tasks/x?wait=61").status == 400


def test_those_who_wait_hold_no_thread(opened: Callable[..., Served]) -> None:
    served = node_with_task(opened(here=frozenset(), limits=Limits(catalog_threads=2)))
    (task,) = claim(served)
    path = f"/v1/tasks/{task['task_id']}"
    heard: list[Asked] = []
    waiting = [
        threading.Thread(target=lambda: heard.append(served.get(f"{path}?wait=30")))
        for _ in range(24)
    ]
    for one in waiting:
        one.start()
    time.sleep(0.3)
    assert served.get("/v1/runs").status == 200
    assert not heard
    served.post(f"{path}/end", {"lease": task["lease"], "state": "done"})
    for one in waiting:
        one.join(20)
    assert {one.document["task"]["state"] for one in heard} == {"done"}
    assert len(heard) == 24


def test_an_agent_that_waits_is_given_a_task_as_soon_as_there_is_one(
    opened: Callable[..., Served],
) -> None:
    served = opened(here=frozenset())
    heard: list[list[dict]] = []
    waiting = threading.Thread(target=lambda: heard.append(claim(served, wait=30)))
    waiting.start()
    time.sleep(0.2)
    assert not heard
    node_with_task(served)
    waiting.join(20)
    assert len(heard[0]) == 1


def test_who_waits_for_a_checkpoint_hears_of_its_seal(opened: Callable[..., Served]) -> None:

    served = opened()
    served.post("/v1/runs", {"name": "green/llm", "tier": "lustre", "path": "red"})
    scanned(served.serving, "blue/llm")
    served.post("/v1/runs/blue/llm/mark-bad", {"from_step": 0, "reason": "x"})
    heard: list[Asked] = []
    waiting = threading.Thread(
        target=lambda: heard.append(served.get("/v1/runs/blue/llm/latest?wait=30"))
    )
    waiting.start()
    time.sleep(0.3)
    assert not heard
    served.post("/v1/runs/blue/llm/mark-bad", {"from_step": 0, "undo": True})
    waiting.join(20)
    assert (heard[0].status, heard[0].document["step"]) == (200, 20)


def test_what_a_launcher_waits_for_is_scanned_first(served: Served) -> None:
    served.post("/v1/runs/red/llm/mark-bad", {"from_step": 0, "reason": "x"})
    assert served.get("/v1/runs/red/llm/latest?wait=0.1").status == 409
    (task,) = served.serving.catalog.tasks.tasks(for_run="red/llm")
    assert task.task.kind == "scan"
    assert task.task.priority == 100
