"""What a service tells about itself, as text or JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ckptgov.wire.documents import Document
from ckptgov.wire.members import Members
from ckptgov_cli import output

_TOKENS = ("ID", "LABEL", "RIGHTS", "TEAMS", "NODE", "EXPIRES", "REVOKED")
_NODES = ("NODE", "STATE", "REACHABLE", "LAST HEARD", "VERSION", "PEER", "REASON")
_TASKS = ("ID", "KIND", "RUN", "NODE", "STATE", "HOLDER", "TRIES", "CREATED", "ENDED")
_EVENT = ("NUMBER", "AT", "KIND", "RUN", "WHAT")


def _at(ns: int | None) -> str:
    if not ns:
        return "-"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ns / 1e9))


def made_token(document: Document, *, as_json: bool, dry_run: bool) -> int:
    """The token's text alone is the result."""
    if as_json:
        output.emit({"dry_run": dry_run, **document})
        return 0
    told = Members(document).member("token")
    what = f"{told.text('label')}: {', '.join(told.texts('rights'))}"
    if dry_run:
        output.talk(f"would make a token for {what}")
        return 0
    output.talk(f"token {told.text('token_id')} for {what}; its text is shown this once:")
    output.line(Members(document).text("secret"))
    return 0


def tokens(document: Document, *, as_json: bool) -> int:
    """One token a line."""
    if as_json:
        output.emit(document)
        return 0
    output.table(_TOKENS, [_token_row(one) for one in Members(document).objects("tokens")])
    return 0


def _token_row(one: Members) -> list[str]:
    return [
        one.text("token_id"),
        one.text("label"),
        ",".join(one.texts("rights")),
        ",".join(one.texts("teams")) or "-",
        one.maybe(one.text, "node") or "-",
        _at(one.maybe(one.whole, "expires_at_ns")),
        _at(one.maybe(one.whole, "revoked_at_ns")),
    ]


def revoked(document: Document, *, as_json: bool, dry_run: bool) -> int:
    """The token that opens nothing any more."""
    if as_json:
        output.emit({"dry_run": dry_run, **document})
        return 0
    told = Members(document).member("token")
    word = "would revoke" if dry_run else "revoked"
    output.line(f"{word} {told.text('token_id')} ({told.text('label')})")
    return 0


def nodes(document: Document, *, as_json: bool) -> int:
    """One node a line."""
    if as_json:
        output.emit(document)
        return 0
    output.table(_NODES, [_node_row(one) for one in Members(document).objects("nodes")])
    return 0


def _node_row(one: Members) -> list[str]:
    return [
        one.text("node"),
        one.text("state"),
        "yes" if one.flag("is_reachable") else "no",
        _at(one.whole("beat_at_ns")),
        one.text("version") or "-",
        one.maybe(one.text, "peer_url") or "-",
        one.text("reason") or "-",
    ]


def node_changed(document: Document, *, as_json: bool, dry_run: bool) -> int:
    """What a node is now."""
    if as_json:
        output.emit({"dry_run": dry_run, **document})
        return 0
    told = Members(document).member("node")
    word = "would be" if dry_run else "is"
    output.line(f"{told.text('node')} {word} {told.text('state')}")
    return 0


def tasks(document: Document, *, as_json: bool) -> int:
    """One task a line."""
    if as_json:
        output.emit(document)
        return 0
    output.table(_TASKS, [_task_row(one) for one in Members(document).objects("tasks")])
    return 0


def _task_row(one: Members) -> list[str]:
    return [
        one.text("task_id"),
        one.text("kind"),
        one.maybe(one.text, "run") or "-",
        one.maybe(one.text, "node") or "-",
        one.text("state"),
        one.text("holder") or "-",
        str(one.whole("attempts")),
        _at(one.whole("created_at_ns")),
        _at(one.maybe(one.whole, "ended_at_ns")),
    ]


def task(document: Document, *, as_json: bool) -> int:
    """One task; its outcome is the document that its command would have printed."""
    if as_json:
        output.emit(document)
        return 0
    one = Members(document).member("task")
    for label, value in zip(_TASKS, _task_row(one), strict=True):
        output.line(f"{label.lower():<9} {value}")
    if one.has("outcome"):
        import json

        output.line(json.dumps(one.document("outcome"), indent=2))
    return 0


def begun(documents: Sequence[Document], *, as_json: bool) -> int:
    """The tasks that were made; their ids are the result."""
    tasks = [each.whole_document() for one in documents for each in Members(one).objects("tasks")]
    if as_json:
        output.emit({"tasks": tasks})
        return 0
    for one in tasks:
        output.line(Members(one).text("task_id"))
    return 0


def events(document: Document) -> int:
    """All of them as one document."""
    output.emit(document)
    return 0


def event_lines(page: Document) -> None:
    """One event a line."""
    rows = [_event_row(one) for one in Members(page).objects("events")]
    if rows:
        output.table(_EVENT, rows)


def next_of(page: Document) -> int:
    """The number behind which the next page begins."""
    return Members(page).whole("next")


def _event_row(one: Members) -> list[str]:
    return [
        str(one.whole("seq")),
        _at(one.whole("at_ns")),
        one.text("kind"),
        one.maybe(one.text, "run") or "-",
        _detail(one.whole_document()),
    ]


def _detail(event: dict[str, Any]) -> str:
    """Whatever else is told, in one cell."""
    detail = event.get("detail")
    told = {"content_id": event.get("content_id"), "place": event.get("place")}
    told |= detail if isinstance(detail, dict) else {}
    return " ".join(f"{name}={value}" for name, value in told.items() if value is not None) or "-"
