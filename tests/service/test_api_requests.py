"""What a request may not be: refused with a document that says why, and never a server error."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable

import pytest

from ckptgov.service.app import create_app
from ckptgov.testing.served import Served

LATEST = "/v1/runs/red/llm/latest"


def raw(served: Served, text: bytes) -> tuple[int, dict]:
    """Send bytes as they are; the status and document that come back."""
    with socket.create_connection((served.host, served.port), timeout=20) as connection:
        connection.sendall(text)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    try:
        document = json.loads(body)
    except ValueError:
        document = {}
    return int(head.split()[1]), document


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runs/red%00/latest",
        "/v1/runs/red%0a/latest",
        "/v1/runs/red%1Fllm/latest",
        "/v1/runs/%ff/latest",
        "/v1/runs/" + "a" * 5000,
        LATEST + "?" + "node=x&" * 2000,
        LATEST + "?step=1&step=2",
        LATEST + "?step=-1",
        LATEST + "?step=9223372036854775807",
        LATEST + "?step=ten",
        LATEST + "?stepp=1",
        LATEST + "?purpose=fun",
        LATEST + "?world_size=0",
        LATEST + "?wait=nan",
        LATEST + "?node=%00",
        LATEST + "?node=%ff",
        LATEST + "?node=",
        "/v1/events?limit=1001",
        "/v1/tasks?state=gone",
    ],
)
def test_a_question_that_is_none_is_400(quiet: Served, path: str) -> None:
    told = quiet.get(path)
    assert (told.status, told.kind) == (400, "usage")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"to_step":"10"}',
        b'{"to_step":10.5}',
        b'{"to_step":-1}',
        b'{"to_step":99999999999999999999999}',
        b'{"to_step":10,"unknown":1}',
        b'{"to_step":10,"reason":"\\u0000"}',
        b'{"to_step":10,"reason":"\\ud800"}',
        b'{"to_step":10,"reason":"\xff"}',
        b"\x00\x00",
        b'{"to_step":' + b"[" * 100_000,
        b'{"to_step":10,"reason":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_a_body_that_is_not_of_its_form_is_400(quiet: Served, body: bytes) -> None:
    told = quiet.ask("POST", "/v1/runs/red/llm/rollback", raw=body)
    assert (told.status, told.kind) == (400, "usage")
    assert quiet.get(LATEST).document["step"] == 20


def test_an_escaped_backslash_before_u0000_is_no_nul(quiet: Served) -> None:
    body = b'{"to_step":10,"reason":"C:\\\\u0000","dry_run":true}'
    told = quiet.ask("POST", "/v1/runs/red/llm/rollback", raw=body)
    assert told.document["record"]["reason"] == "C:\\u0000"


def test_a_body_that_does_not_say_it_is_json_is_415(quiet: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=x"):
        told = quiet.ask(
            "POST",
            "/v1/runs/red/llm/rollback",
            raw=b'{"to_step":10}',
            headers={"Content-Type": kind},
        )
        assert (told.status, told.kind) == (415, "not-json")
    assert quiet.get(LATEST).document["step"] == 20


def test_a_body_that_is_too_large_is_413_before_it_is_sent(quiet: Served) -> None:
    head = (
        b"POST /v1/scan HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %s\r\nConnection: close\r\nContent-Length: 1048577\r\n\r\n"
    ) % quiet.admin.encode()
    status, document = raw(quiet, head)
    assert (status, document["error"]["kind"]) == (413, "too-large")


def test_a_body_that_grows_too_large_on_its_way_is_413(quiet: Served) -> None:
    head = (
        b"POST /v1/scan HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %s\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    ) % quiet.admin.encode()
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    status, document = raw(quiet, head + piece * 17 + b"0\r\n\r\n")
    assert (status, document["error"]["kind"]) == (413, "too-large")


def test_a_large_body_is_not_read_of_who_may_not_send_it(quiet: Served) -> None:
    head = (
        b"POST /v1/nodes/n1/facts HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: 8000000\r\n\r\n"
    )
    status, document = raw(quiet, head)
    assert (status, document["error"]["kind"]) == (401, "unauthorized")


@pytest.mark.parametrize("query", [b"x=\xff", "x=\u2603".encode()])
def test_bytes_that_a_server_let_through_unescaped_are_400(quiet: Served, query: bytes) -> None:
    path = LATEST.encode()
    scope = {
        "type": "http",
        "method": "GET",
        "path": LATEST,
        "raw_path": path,
        "query_string": query,
        "headers": [(b"host", b"["), (b"authorization", f"Bearer {quiet.admin}".encode())],
    }
    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    async def receive() -> dict:
        return {"type": "http.request", "body": b""}

    asyncio.run(create_app(quiet.serving)(scope, receive, send))
    assert sent[0]["status"] == 400
    assert json.loads(sent[1]["body"])["error"]["kind"] == "usage"


def test_headers_without_end_are_refused(quiet: Served) -> None:
    told = quiet.get("/healthz", headers={f"X-{number}": "a" * 1000 for number in range(40)})
    assert told.status == 400


@pytest.mark.parametrize("line", [b"GET /v1/runs/\xff\xfe HTTP/1.1", b"GET \x00 HTTP/1.1", b"x"])
def test_bytes_that_are_no_request_are_refused(quiet: Served, line: bytes) -> None:
    status, _ = raw(quiet, line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert status == 400
    assert quiet.get("/healthz").status == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/nothing", "/v1/runs/", "/docs", "/x"])
def test_a_path_that_is_none_is_404_and_never_reads_as_never_any(quiet: Served, path: str) -> None:
    told = quiet.get(path)
    assert (told.status, told.kind) == (404, "no-such-endpoint")
    assert told.document["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/runs", "GET, POST"),
        ("DELETE", "/v1/tokens", "GET, POST"),
        ("GET", "/v1/tokens/x", "DELETE"),
        ("GET", "/v1/runs/red/llm/rollback", "POST"),
        ("GET", "/v1/runs/red/rollback", "POST"),
        ("POST", LATEST, "GET"),
        ("HEAD", "/healthz", "GET"),
        ("OPTIONS", "/v1/runs", "GET, POST"),
    ],
)
def test_another_method_is_405_and_says_which(
    quiet: Served, method: str, path: str, allowed: str
) -> None:
    told = quiet.ask(method, path)
    assert told.status == 405
    assert told.headers["allow"] == allowed


def test_what_nobody_foresaw_tells_nothing(
    quiet: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("password=hunter2 at /secret/place")

    monkeypatch.setattr(quiet.serving.catalog, "runs", broken)
    told = quiet.get("/v1/runs")
    assert told.status == 500
    assert told.document["error"]["exit_code"] == 1
    assert b"secret" not in told.body
    assert b"hunter2" not in told.body
    assert "request failed" in caplog.text


def test_the_description_tells_every_endpoint_and_status(quiet: Served) -> None:
    described = quiet.get("/v1/openapi.json", token="").document
    assert described["openapi"].startswith("3.1")
    one = described["paths"]["/v1/runs/{run}/latest"]["get"]
    assert {"200", "400", "401", "403", "404", "409", "503", "504"} <= set(one["responses"])
    assert {each["name"] for each in one["parameters"]} >= {"run", "step", "wait", "explain"}
    body = described["paths"]["/v1/runs/{run}/rollback"]["post"]["requestBody"]
    assert body["required"] is True
    schema = described["components"]["schemas"]["RollBack"]
    assert schema["required"] == ["to_step"]
    assert schema["additionalProperties"] is False


def test_started_without_tokens_pages_of_other_sites_are_refused(
    opened: Callable[..., Served],
) -> None:
    served = opened(is_open=True)
    assert served.get("/v1/runs").status == 200
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "evil.example:80", "Origin": "http://localhost"},
    ):
        assert served.get("/v1/runs", headers=headers).status == 403
    assert served.get("/v1/runs", headers={"Origin": "http://localhost:3000"}).status == 200
