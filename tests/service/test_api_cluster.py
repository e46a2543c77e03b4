"""Nodes, alerts, tiers, budgets, flows and usage over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.model.access import Right
from ckptgov.testing.served import Served

BEAT = {"boot": "b1", "version": "0.1.0", "peer_url": "http://10.0.0.7:8271"}


def state_of(served: Served, node: str) -> str:
    found = {one["node"]: one["state"] for one in served.get("/v1/nodes").document["nodes"]}
    return found[node]


@pytest.fixture
def cluster(opened: Callable[..., Served]) -> Served:
    """A service that reaches no node's disk, and heard of nodes n1 and n2."""
    served = opened(here=frozenset())
    for node in ("n1", "n2"):
        assert served.post(f"/v1/nodes/{node}/beat", BEAT).status == 200
    return served


def test_a_node_that_beats_is_known_and_reachable(cluster: Served) -> None:
    (one, _) = cluster.get("/v1/nodes").document["nodes"]
    assert (one["node"], one["state"], one["is_reachable"]) == ("n1", "active", True)
    assert one["peer_url"] == "http://10.0.0.7:8271"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:password@host",
        "http://host/path",
        "http://host?x",
        "file:///etc",
        "ftp://host",
        "http://",
        "http://host\n",
    ],
)
def test_a_peers_address_is_a_host_and_nothing_else(cluster: Served, url: str) -> None:
    assert cluster.post("/v1/nodes/n1/beat", {**BEAT, "peer_url": url}).status == 400


def test_a_node_is_drained_and_its_reason_told(cluster: Served) -> None:
    told = cluster.ask("PUT", "/v1/nodes/n1/state", {"state": "drained", "reason": "new disk"})
    assert told.document["node"]["state"] == "drained"
    assert told.document["node"]["reason"] == "new disk"
    assert state_of(cluster, "n2") == "active"


def test_a_node_nobody_heard_of_has_no_state(cluster: Served) -> None:
    assert cluster.ask("PUT", "/v1/nodes/n9/state", {"state": "dead"}).status == 400


def test_a_dead_node_that_beats_is_active(cluster: Served) -> None:
    cluster.ask("PUT", "/v1/nodes/n1/state", {"state": "dead"})
    assert state_of(cluster, "n1") == "dead"
    cluster.post("/v1/nodes/n1/beat", BEAT)
    assert state_of(cluster, "n1") == "active"


def alert(status: str = "firing", annotations: object = None, **labels: str) -> dict:
    return {
        "version": "4",
        "groupKey": "{}",
        "receiver": "ckptgov",
        "status": status,
        "truncatedAlerts": 0,
        "alerts": [
            {
                "status": status,
                "labels": {"alertname": "NodeDying", **labels},
                "annotations": annotations or {},
                "startsAt": "2026-01-01T00:00:00Z",
                "fingerprint": "f",
            }
        ],
    }


@pytest.mark.parametrize(
    ("action", "state"), [("dead", "dead"), ("drain", "drained"), ("cordon", "cordoned")]
)
def test_an_alert_sets_the_state_of_its_node_until_it_is_over(
    cluster: Served, action: str, state: str
) -> None:
    told = cluster.post("/v1/alerts", alert(node="n1", ckptgov_action=action))
    assert [one["node"] for one in told.document["nodes"]] == ["n1"]
    assert state_of(cluster, "n1") == state
    again = cluster.post("/v1/alerts", alert(node="n1", ckptgov_action=action))
    assert again.document["nodes"] == []
    cluster.post("/v1/alerts", alert("resolved", node="n1", ckptgov_action=action))
    assert state_of(cluster, "n1") == "active"


def test_an_alert_may_name_what_was_scraped_and_say_it_in_an_annotation(cluster: Served) -> None:
    said = alert(instance="n1:9100", annotations={"ckptgov_action": "dead", "summary": "burning"})
    (one,) = cluster.post("/v1/alerts", said).document["nodes"]
    assert (one["node"], one["reason"]) == ("n1", "NodeDying: burning")


@pytest.mark.parametrize(
    "labels",
    [
        {"node": "n9", "ckptgov_action": "dead"},
        {"node": "n1", "ckptgov_action": "explode"},
        {"node": "n1"},
        {"ckptgov_action": "dead"},
    ],
)
def test_other_alerts_change_nothing(cluster: Served, labels: dict[str, str]) -> None:
    told = cluster.post("/v1/alerts", alert(**labels))
    assert (told.status, told.document["nodes"]) == (200, [])
    assert state_of(cluster, "n1") == "active"


def test_what_a_person_said_since_is_not_undone_by_an_alert_that_ends(cluster: Served) -> None:
    cluster.post("/v1/alerts", alert(node="n1", ckptgov_action="cordon"))
    cluster.ask("PUT", "/v1/nodes/n1/state", {"state": "drained", "reason": "by hand"})
    cluster.post("/v1/alerts", alert("resolved", node="n1", ckptgov_action="cordon"))
    assert state_of(cluster, "n1") == "drained"


def test_what_a_person_said_first_is_not_undone_by_an_alert_that_ends(cluster: Served) -> None:
    cluster.ask("PUT", "/v1/nodes/n1/state", {"state": "drained", "reason": "by hand"})
    cluster.post("/v1/alerts", alert(node="n1", ckptgov_action="drain"))
    cluster.post("/v1/alerts", alert("resolved", node="n1", ckptgov_action="drain"))
    assert state_of(cluster, "n1") == "drained"


def test_an_alert_that_comes_again_saves_what_the_first_time_could_not(
    cluster: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptgov.errors import TransientStorageError
    from ckptgov.service import routes_cluster

    saved: list[str] = []

    def broken(_context: object, node: str) -> None:
        saved.append(node)
        if len(saved) == 1:
            raise TransientStorageError("the catalog went away")

    monkeypatch.setattr(routes_cluster, "evacuate", broken)
    firing = alert(node="n1", ckptgov_action="drain")
    assert cluster.post("/v1/alerts", firing).status == 503
    assert cluster.post("/v1/alerts", firing).status == 200
    assert saved == ["n1", "n1"]


def test_whether_a_node_is_reachable_is_told_by_the_clock_of_its_beats(
    cluster: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, catalog = cluster.serving.clock, cluster.serving.catalog
    now_ns = catalog.now_ns()
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns + 10**13)
    monkeypatch.setattr(catalog, "now_ns", lambda: now_ns)
    assert [one["is_reachable"] for one in cluster.get("/v1/nodes").document["nodes"]] == [True] * 2


def test_a_budget_is_set_lifted_and_kept(served: Served, home: Path) -> None:
    path = "/v1/tiers/s3/budget"
    told = served.ask("PUT", path, {"write_bytes_per_s": 10**6, "flows": 2}).document
    assert told["tiers"][0]["budget"]["write_bytes_per_s"] == 10**6
    assert "1MB/s" in (home / "ckptgov.yaml").read_text()
    told = served.ask("PUT", path, {"write_bytes_per_s": None}).document
    assert told["tiers"][0]["budget"] == {
        "read_bytes_per_s": None,
        "write_bytes_per_s": None,
        "requests_per_s": None,
        "flows": 2,
    }
    told = served.ask("PUT", path, {"clear": True, "dry_run": True}).document
    assert told["tiers"][0]["budget"]["flows"] is None
    budgets = served.get("/v1/tiers/budgets").document["tiers"]
    assert [one["budget"]["flows"] for one in budgets] == [None, 2]
    assert served.ask("PUT", "/v1/tiers/tape/budget", {"flows": 1}).status == 400


def test_tiers_are_listed(served: Served) -> None:
    found = served.get("/v1/tiers").document["tiers"]
    assert [one["name"] for one in found] == ["lustre", "s3"]


def test_usage_is_told_by_tier_run_and_state(served: Served) -> None:
    (lustre, _) = served.get("/v1/du").document["tiers"]
    assert [(one["run"], one["state"]) for one in lustre["states"]] == [
        ("blue/llm", "verified"),
        ("red/llm", "verified"),
    ]
    (only,) = served.get("/v1/du?run=red/llm&tier=lustre").document["tiers"]
    assert [one["run"] for one in only["states"]] == ["red/llm"]
    assert served.get("/v1/du?tier=tape").status == 400
    assert served.get("/v1/du?run=no/such").kind == "unknown-run"


OWNER = {"host": "n1", "boot": "b1", "pid": 7, "started": 1}


def flow(flow_id: str = "f1", node: str = "n1", what: str = "red/llm step_20") -> dict:
    request = {
        "flow_id": flow_id,
        "what": what,
        "flow_class": "durable",
        "source": "lustre",
        "target": "s3",
        "node": node,
        "bytes": 1000,
    }
    return {"request": request, "owner": OWNER, "lease_s": 15}


def beats(*flow_ids: str) -> dict:
    told = {"acts_on": -1, "moved_bytes": 1, "measured_bytes_per_s": 1}
    return {"owner": OWNER, "beats": [{"flow_id": one, **told} for one in flow_ids]}


def test_a_flow_of_an_agent_is_opened_heard_and_closed(cluster: Served) -> None:
    assert cluster.post("/v1/flows/open", flow()).status == 200
    another = {**flow(), "owner": {**OWNER, "pid": 8}}
    told = cluster.post("/v1/flows/open", another)
    assert (told.status, told.kind) == (409, "lease-lost")
    heard = cluster.post("/v1/flows/beat", beats("f1", "f2")).document["grants"]
    assert list(heard) == ["f1"]
    (one,) = cluster.get("/v1/flows").document["flows"]
    assert (one["flow_id"], one["class"], one["node"]) == ("f1", "durable", "n1")
    assert cluster.post("/v1/flows/close", {"flow_ids": ["f1"]}).status == 200
    assert cluster.get("/v1/flows").document["flows"] == []


def test_an_agent_speaks_for_the_flows_of_its_node_only(cluster: Served) -> None:
    token = cluster.token(Right.AGENT, node="n2")
    assert cluster.post("/v1/flows/open", flow(), token=token).status == 403
    assert cluster.post("/v1/flows/open", flow()).status == 200
    assert cluster.post("/v1/flows/beat", beats("f1"), token=token).status == 403
    assert cluster.post("/v1/flows/close", {"flow_ids": ["f1"]}, token=token).status == 403
    assert len(cluster.get("/v1/flows").document["flows"]) == 1


def test_a_team_sees_the_flows_of_its_own_runs_only(cluster: Served) -> None:
    for number, what in enumerate(("red/llm step_20", "blue/llm step_20", "seal", "redder/x y")):
        assert cluster.post("/v1/flows/open", flow(f"f{number}", what=what)).status == 200
    token = cluster.token(Right.READ, teams=("red",))
    found = cluster.get("/v1/flows", token=token).document["flows"]
    assert [one["what"] for one in found] == ["red/llm step_20"]


@pytest.mark.parametrize(
    "path", ["/v1/flows/open", "/v1/flows/beat", "/v1/flows/close", "/v1/nodes/n1/facts"]
)
@pytest.mark.parametrize("body", [b"[]", b"{", b'{"beats":[{}]}', b'{"post":1}', b"\xff"])
def test_a_message_of_an_agent_that_is_none_is_400(cluster: Served, path: str, body: bytes) -> None:
    assert cluster.ask("POST", path, raw=body).status == 400


def test_a_nodes_facts_are_taken_over(cluster: Served) -> None:
    place = {
        "place": "11111111-1111-4111-8111-111111111111",
        "tier": "nvme",
        "node": "n1",
        "root": "/nvme",
        "fs_type": "xfs",
        "source": "/dev/nvme0",
        "first_seen_at_ns": 5,
    }
    post = {"post": {"node": "n1", "place": place}}
    told = cluster.post("/v1/nodes/n1/facts", post)
    assert (told.status, told.document["standing"]) == (200, 0)
    assert [one.node for one in cluster.serving.catalog.places() if one.tier == "nvme"] == ["n1"]
    assert cluster.post("/v1/nodes/n2/facts", post).status == 403
