"""Logs are one JSON object a line, about named things, and never hold a secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from ckptgov.errors import SlowDown
from ckptgov.service import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    text = io.StringIO()
    handler = logs.set_up(stream=text)
    yield text
    logging.getLogger().removeHandler(handler)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_with_what_it_is_about(stream: io.StringIO) -> None:
    logs.tell("task-ended", "flushed", run="llama", step=400, tier="s3", node="n1", task="t1")
    [line] = lines(stream)
    assert line.pop("time")
    assert line == {
        "level": "info",
        "event": "task-ended",
        "run": "llama",
        "step": 400,
        "tier": "s3",
        "node": "n1",
        "task": "t1",
        "text": "flushed",
    }


def test_an_error_is_told_by_its_kind(stream: io.StringIO) -> None:
    logs.tell("task-ended", "flush", level=logging.WARNING, error=SlowDown("ask for less"))
    [line] = lines(stream)
    assert (line["level"], line["error"], line["text"]) == (
        "warning",
        "slow-down",
        "flush: ask for less",
    )


def test_a_text_of_several_lines_stays_one_line(stream: io.StringIO) -> None:
    logs.tell("talk", "one\ntwo \x1b[31m \udcff")
    assert len(stream.getvalue().splitlines()) == 1
    assert lines(stream)[0]["text"] == "one\ntwo \x1b[31m \\xff"


def test_a_crash_is_logged_with_its_trace(stream: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("no")
    except ZeroDivisionError:
        logs.LOGGER.exception("broke", extra={"event": "task-broke"})
    assert "ZeroDivisionError: no" in str(lines(stream)[0]["trace"])


def test_what_the_server_logs_looks_the_same(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    [line] = lines(stream)
    assert (line["event"], line["text"]) == ("uvicorn.error", "Started server process [7]")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ckptgov:hunter2@db/catalog does not answer",
        "Authorization: Bearer hunter2",
        "Authorization: Basic hunter2",
        "got {'token': 'hunter2'} password=hunter2 token=hunter2&x=1 secret: hunter2",
        "https://s3/bucket?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2",
        "token ckptgov_0011223344556677_hunter2hunter2hunter2hunter2hunter2hunter2hunte",
    ],
)
def test_secrets_are_blacked_out(stream: io.StringIO, text: str) -> None:
    logs.tell("talk", text)
    try:
        raise ValueError(text)
    except ValueError:
        logs.LOGGER.exception("%s", text)
    assert "hunter2" not in stream.getvalue()
    assert "***" in stream.getvalue()


def test_operations_talk_about_their_task(stream: io.StringIO) -> None:
    logs.talk(task="t1", run="llama")("registered a tier")
    [line] = lines(stream)
    assert (line["task"], line["run"], line["text"]) == ("t1", "llama", "registered a tier")
