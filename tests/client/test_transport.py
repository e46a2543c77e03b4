"""One request: what counts as an answer, what is asked again, and what is never read as "none"."""

from __future__ import annotations

import pytest
from canned import CLOSE, HANG, refused, said

from ckptgov.client import transport as module
from ckptgov.client.address import Replica, ServiceAddress
from ckptgov.client.transport import Silent, Transport, path_of, whole
from ckptgov.errors import (
    CkptgovError,
    CouldNotLook,
    NeverAny,
    NoneRestorable,
    NotAllowed,
    StorageError,
    UnknownRun,
    UsageError,
)

DONE = said(200, {"done": True})


def asked(transport, path="/v1/runs"):
    return transport.get(path)


def test_a_document_comes_back(canned, transport) -> None:
    canned.answers = [DONE]
    assert asked(transport(canned)) == {"done": True}


def test_the_token_and_the_question_are_sent(canned, transport) -> None:
    canned.answers = [DONE]
    transport(canned, token="ckptgov_a_b").get("/v1/x", {"step": 3, "explain": True, "node": None})
    assert b"GET /v1/x?step=3&explain=true HTTP/1.1" in canned.requests[0]
    assert b"Authorization: Bearer ckptgov_a_b" in canned.requests[0]


def test_a_run_of_a_team_is_one_part_of_the_path() -> None:
    assert path_of("runs", "red/latest", "latest") == "/v1/runs/red%2Flatest/latest"


@pytest.mark.parametrize(
    ("status", "kind", "exit_code", "expected"),
    [
        (404, "never-any", 4, NeverAny),
        (409, "none-restorable", 5, NoneRestorable),
        (503, "unknown-run", 9, UnknownRun),
        (403, "not-allowed", 8, NotAllowed),
        (404, "no-such-task", 2, UsageError),
        (503, "a-kind-of-tomorrow", 9, CouldNotLook),
        (500, "error", 1, CkptgovError),
    ],
)
def test_a_refusal_is_the_error_it_was(
    canned, transport, status, kind, exit_code, expected
) -> None:
    canned.answers = [said(status, refused(kind, exit_code, "why"))]
    with pytest.raises(expected, match="why") as told:
        asked(transport(canned))
    assert type(told.value) is expected
    assert len(canned.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        said(404, b"<html>not here</html>", kind="text/html"),
        said(404, {"detail": "Not Found"}),
        said(404, refused("no-such-endpoint", 2)),
        said(200, refused("never-any", 4) | {"error": {"kind": "never-any"}}, length=9999),
        said(500, refused("never-any", 4)),
        said(200, b"<html>hello</html>", kind="text/html"),
        said(200, b"[]"),
        said(200, b"{" * 100_000),
        said(301, {"done": True}),
    ],
    ids=[
        "a page",
        "another service",
        "an older service",
        "half an answer",
        "never any with another status",
        "a greeting",
        "a list",
        "nested",
        "elsewhere",
    ],
)
def test_what_is_no_answer_of_ours_is_could_not_look(canned, transport, answer) -> None:
    canned.answers = [answer]
    with pytest.raises(Silent) as told:
        asked(transport(canned))
    assert told.value.exit_code == 9
    assert not isinstance(told.value, NeverAny)


def test_an_unknown_token_is_not_allowed(canned, transport) -> None:
    canned.answers = [said(401, refused("not-allowed", 8, "no token"))]
    with pytest.raises(NotAllowed, match="no token") as told:
        asked(transport(canned))
    assert "CKPTGOV_TOKEN" in (told.value.hint or "")


def test_a_page_with_401_is_not_allowed_either(canned, transport) -> None:
    canned.answers = [said(401, b"<html>", kind="text/html")]
    with pytest.raises(NotAllowed):
        asked(transport(canned))


@pytest.mark.parametrize(
    "trouble",
    [
        CLOSE,
        b"HTTP/1.1 200 X\r\nContent-Le",
        said(200, {"done": True}, length=500),
        b"SSH-2.0-OpenSSH_9\r\n",
        said(502, b"<html>bad gateway</html>", kind="text/html"),
        said(503, b"", kind="text/plain"),
        said(503, refused("interrupted", 143)),
        said(503, refused("busy", 9)),
        said(503, refused("storage-transient", 9)),
    ],
    ids=[
        "closed",
        "half a head",
        "half",
        "another",
        "502",
        "503",
        "goes down",
        "busy",
        "its catalog",
    ],
)
def test_what_passes_is_asked_again(canned, transport, clock, trouble) -> None:
    canned.answers = [trouble, trouble, DONE]
    assert asked(transport(canned)) == {"done": True}
    assert len(canned.requests) == 3
    assert clock.slept_s == [0.1, 0.2]


def test_patience_ends(canned, transport, clock) -> None:
    canned.answers = [CLOSE]
    with pytest.raises(Silent, match="closed"):
        asked(transport(canned, patience_s=5.0))
    assert 5.0 <= sum(clock.slept_s) < 8.0
    assert max(clock.slept_s) <= 2.0


def test_a_busy_service_is_not_called_silent(canned, transport) -> None:
    canned.answers = [said(503, refused("busy", 9, "too much"))]
    with pytest.raises(CouldNotLook, match="too much") as told:
        asked(transport(canned, patience_s=0.0))
    assert not isinstance(told.value, Silent)


def test_storage_trouble_of_the_service_is_its_answer(canned, transport) -> None:
    canned.answers = [said(503, refused("storage", 9))]
    with pytest.raises(StorageError):
        asked(transport(canned))
    assert len(canned.requests) == 1


def test_a_catalog_that_stays_away_is_a_silent_service(canned, transport) -> None:
    """So that who can answers from the journal; what the service said is told."""
    canned.answers = [said(503, refused("storage-transient", 9, "the database is away"))]
    with pytest.raises(Silent, match="the database is away"):
        asked(transport(canned))


def test_what_may_have_been_done_is_not_done_twice(canned, transport) -> None:
    canned.answers = [CLOSE, DONE]
    with pytest.raises(Silent):
        transport(canned).send("POST", "/v1/runs/a/rollback", {"to_step": 1})
    assert len(canned.requests) == 1


def test_what_may_be_repeated_is(canned, transport) -> None:
    canned.answers = [CLOSE, DONE]
    transport(canned).send("POST", "/v1/runs/a/restarts", {"restart_id": "x"}, is_repeatable=True)
    assert canned.requests[0] == canned.requests[1]


def test_what_certainly_never_arrived_may_be_sent_again(canned, clock, closed_port) -> None:
    canned.answers = [DONE]
    gone = Replica(is_tls=False, host="127.0.0.1", port=closed_port)
    address = ServiceAddress(replicas=(gone, canned.replica))
    transport = Transport(address, clock=clock)
    assert transport.send("POST", "/v1/x", {}) == {"done": True}
    transport.close()
    assert clock.slept_s == []


def test_replicas_are_tried_in_turn_and_a_living_one_is_kept(canned, other, transport) -> None:
    canned.answers, other.answers = [CLOSE], [DONE]
    both = transport(canned, other)
    assert asked(both) == asked(both) == {"done": True}
    assert (len(canned.requests), len(other.requests)) == (1, 2)


def test_a_slow_answer_is_given_up(canned, transport) -> None:
    canned.answers = [HANG]
    with pytest.raises(Silent, match="too long"):
        asked(transport(canned, answer_s=0.05, patience_s=0.0))


def test_who_cannot_wait_for_a_stopped_replica_says_so(canned, other, transport) -> None:
    canned.answers, other.answers = [HANG], [DONE]
    both = transport(canned, other, answer_s=30.0)
    reply = both.ask("POST", "/v1/nodes/n1/beat", body={}, is_repeatable=True, answer_s=0.05)
    assert reply.document == {"done": True}


def test_an_answer_without_an_end_is_given_up(canned, transport, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_ANSWER_BYTES", 1000)
    canned.answers = [said(200, b"x" * 5000)]
    with pytest.raises(Silent, match="more than 1000 bytes"):
        asked(transport(canned))


def test_a_host_without_a_service_is_named(clock, closed_port) -> None:
    gone = Replica(is_tls=False, host="127.0.0.1", port=closed_port)
    told: list[str] = []
    transport = Transport(ServiceAddress(replicas=(gone,)), clock=clock, talk=told.append)
    with pytest.raises(Silent, match=f"127.0.0.1:{closed_port}: cannot be reached"):
        asked(transport)
    assert len(told) == 1, "a person who waits is told once what for"


def test_a_connection_is_kept_and_its_death_is_no_trouble(transport, canned) -> None:
    kept = DONE.replace(b"Connection: close\r\n", b"")
    canned.answers = [kept]
    one = transport(canned)
    assert asked(one) == asked(one) == {"done": True}, (
        "the server closed what it did not promise to"
    )


def test_proxies_of_the_environment_are_not_used(canned, transport, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    canned.answers = [DONE]
    assert asked(transport(canned)) == {"done": True}


def test_an_error_beside_what_was_done_leaves_the_answer_whole(canned, transport) -> None:
    canned.answers = [said(503, {**refused("could-not-look", 9), "tiers": []})]
    reply = transport(canned).ask("GET", "/v1/du")
    assert whole(reply, "tiers")["tiers"] == []
    with pytest.raises(CouldNotLook):
        whole(reply, "runs")


def test_an_answer_that_drips_is_given_up(canned, clock, transport) -> None:
    class Hasty(type(clock)):
        def monotonic(self) -> float:
            self.now_s += 11.0
            return self.now_s

    canned.answers = [said(200, b"x" * 2**20)]
    address = ServiceAddress(replicas=(canned.replica,))
    dripping = Transport(address, clock=Hasty(), patience_s=0.0)
    with pytest.raises(Silent, match="too long"):
        asked(dripping)
    dripping.close()
