"""Structured logs: one JSON object a line, with the run, step, tier, node and task it is about.

Few lines, numbers in fields; what is counted goes to metrics. Whatever looks like a secret is
blacked out on its way out, whoever logged it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from ckptgov.errors import CkptgovError

LOGGER = logging.getLogger("ckptgov.service")
FIELDS = ("run", "step", "tier", "node", "task", "activity", "error", "seconds")
"""What a line may be about, beside its time, level, event and text."""

_SECRETS = (
    (re.compile(r"(://)[^/\s@]+@"), r"\1***@"),
    (re.compile(r"\b(bearer|basic)\s+[^\s\"',;]+", re.IGNORECASE), r"\1 ***"),
    (re.compile(r"\bckptgov_[A-Za-z0-9_\-.~]{8,}"), "ckptgov_***"),
    (
        re.compile(
            r"\b(token|password|passwd|secret|secret_key|access_key|api_key|sig|signature"
            r"|x-amz-[a-z0-9-]+)([\"']?\s*[=:]\s*[\"']?)[^\s&\"',;]+",
            re.IGNORECASE,
        ),
        r"\1\2***",
    ),
)


def set_up(*, stream: TextIO | None = None, level: int = logging.INFO) -> logging.Handler:
    """Send this process's logs, the server's and the scheduler's as well, to ``stream``.

    The default is stderr. Returns the handler, so that whoever added it can take it away.
    """
    sink = logging.StreamHandler(stream or sys.stderr)
    sink.setFormatter(JsonLines())
    root = logging.getLogger()
    root.addHandler(sink)
    LOGGER.setLevel(level)
    for name, least in (("uvicorn", logging.INFO), ("apscheduler", logging.ERROR)):
        logging.getLogger(name).setLevel(max(level, least))
    return sink


def tell(
    event: str,
    text: str = "",
    *,
    level: int = logging.INFO,
    error: BaseException | None = None,
    **about: object,
) -> None:
    """Log one event. ``about`` are FIELDS; an error is told by its kind and its message."""
    fields = {name: value for name, value in about.items() if value is not None}
    if error is not None:
        fields["error"] = error.kind if isinstance(error, CkptgovError) else type(error).__name__
        told = error.message if isinstance(error, CkptgovError) else str(error)
        text = f"{text}: {told}" if text else told
    # Escaped here: what else listens to the log may take text that is no Unicode for an error.
    LOGGER.log(level, "%s", _escaped(text), extra={"event": event, "about": fields})


def talk(
    *, task: str | None = None, run: str | None = None, node: str | None = None
) -> Callable[[str], None]:
    """What operations tell people, as log lines about a task, run or node."""
    return lambda text: tell("talk", text, task=task, run=run, node=node)


class JsonLines(logging.Formatter):
    """One record, one line: JSON without line breaks, secrets blacked out."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
        }
        about = getattr(record, "about", {})
        for name in FIELDS:
            if name in about:
                value = about[name]
                line[name] = value if isinstance(value, int | float) else _clean(str(value))
        text = record.getMessage()
        if text:
            line["text"] = _clean(text)
        if record.exc_info:
            line["trace"] = _clean(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=True, separators=(",", ":"))


def _clean(text: str) -> str:
    """Without secrets; bytes that are not UTF-8 come out escaped."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return _escaped(text)


def _escaped(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
