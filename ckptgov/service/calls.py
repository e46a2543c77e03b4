"""One request as an endpoint sees it, the endpoint itself, and what it gives back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from ckptgov.catalog.facts import RunFacts
from ckptgov.errors import UnknownRun, UsageError
from ckptgov.manifest.forms.records import encode_record
from ckptgov.model.access import Caller, Right
from ckptgov.model.cluster import TaskFacts
from ckptgov.model.journal import Record
from ckptgov.ops.context import Context
from ckptgov.ops.restarts import Restarts
from ckptgov.service.serving import Serving
from ckptgov.wire import cluster, requests
from ckptgov.wire.documents import Document

if TYPE_CHECKING:
    from ckptgov.service.answers import Answers
    from ckptgov.service.metrics import Metrics

Q = TypeVar("Q", bound=Struct)
B = TypeVar("B", bound=Struct)
Schema = Mapping[str, Any]

ANYTHING: Schema = MappingProxyType({"type": "object"})
JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"


class NoSuch(UsageError):
    """What was named in the path is not there. Never says anything about checkpoints."""

    kind = "no-such-thing"


class NoSuchEndpoint(NoSuch):
    """Nothing of the API is at this path."""

    kind = "no-such-endpoint"


class Cost(StrEnum):
    """What an endpoint waits for: a storage that hangs must not hang what needs none."""

    NOTHING = "nothing"  # answered on the event loop: also while everything else hangs
    CATALOG = "catalog"
    ANSWER = "answer"  # the catalog, and storage where only a complete look tells
    DECISION = "decision"  # the catalog, and the journal of one run on storage
    STORAGE = "storage"


class Reply(Struct, frozen=True, kw_only=True):
    """What goes out. ``is_pending``: asked again later, it may say more."""

    status: int
    body: bytes
    media: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    is_pending: bool = False


class Call(Struct, Generic[Q, B], frozen=True, kw_only=True):
    """A request that was judged: who asks, and what, in our own terms."""

    serving: Serving
    answers: Answers
    restarts: Restarts
    metrics: Metrics
    caller: Caller
    path: Mapping[str, str]
    query: Q
    body: B
    raw: bytes = b""
    accept: str = ""

    def context(self) -> AbstractContextManager[Context]:
        """What an operation works with, in the caller's name."""
        return self.serving.context(self.caller.name)

    def run(self) -> RunFacts:
        """The run named in the path, or as good as unknown.

        Raises:
            UnknownRun: no such run, or another team's: one and the same.
        """
        return self.known(self.path["run"])

    def known(self, name: str) -> RunFacts:
        """A run of this name that exists for the caller; raises as ``run``."""
        found = self.serving.catalog.run_by_name(name) if self.caller.sees(name) else None
        if found is None:
            raise unknown(name)
        return found

    def names(self) -> dict[str, str]:
        """The names of the runs that exist for the caller, by id."""
        found = {one.identity.run_id: one.identity.name for one in self.serving.catalog.runs()}
        return {run_id: name for run_id, name in found.items() if self.caller.sees(name)}


class Endpoint(Struct, Generic[Q, B], frozen=True, kw_only=True):
    """One method at one path.

    ``rights``: any one of them opens it; none: open to all, without a token. ``answers``: the
    schema of each status that is no error. ``wait``: for how long it may be asked again while
    its reply is pending, and ``watched`` what changes when a pending reply may have changed.
    ``cost_of``: what one request waits for, where that depends on what it says.
    """

    method: str
    path: str
    does: str
    run: Callable[[Call[Q, B]], Reply]
    rights: tuple[Right, ...]
    query: type[Q]
    body: type[B]
    answers: Mapping[int, Schema]
    errors: tuple[int, ...] = ()
    cost: Cost = Cost.CATALOG
    cost_of: Callable[[B], Cost] | None = None
    for_every_team: bool = False
    has_body: bool = False
    is_raw: bool = False
    is_plain_too: bool = False
    raw_schema: Schema = ANYTHING
    media: str = JSON
    limit_s: float | None = None
    most_body_bytes: int = 2**20
    wait_s: Callable[[Q, B], float] | None = None
    watched: Callable[[Call[Q, B]], object] | None = None


AnyEndpoint = Endpoint[Any, Any]


def ask(
    path: str,
    does: str,
    run: Callable[[Call[Q, requests.Body]], Reply],
    *,
    query: type[Q],
    answers: Mapping[int, Schema],
    rights: tuple[Right, ...] = (Right.READ,),
    errors: tuple[int, ...] = (),
    cost: Cost = Cost.CATALOG,
    for_every_team: bool = False,
    is_plain_too: bool = False,
    media: str = JSON,
    limit_s: float | None = None,
    wait_s: Callable[[Q, requests.Body], float] | None = None,
    watched: Callable[[Call[Q, requests.Body]], object] | None = None,
) -> Endpoint[Q, requests.Body]:
    """A GET."""
    return Endpoint(
        method="GET",
        path=path,
        does=does,
        run=run,
        rights=rights,
        query=query,
        body=requests.Body,
        answers=answers,
        errors=errors,
        cost=cost,
        for_every_team=for_every_team,
        is_plain_too=is_plain_too,
        media=media,
        limit_s=limit_s,
        wait_s=wait_s,
        watched=watched,
    )


def tell(
    path: str,
    does: str,
    run: Callable[[Call[requests.Query, B]], Reply],
    *,
    body: type[B],
    rights: tuple[Right, ...],
    answers: Mapping[int, Schema],
    method: str = "POST",
    errors: tuple[int, ...] = (),
    cost: Cost = Cost.CATALOG,
    cost_of: Callable[[B], Cost] | None = None,
    for_every_team: bool = False,
    has_body: bool = True,
    is_raw: bool = False,
    raw_schema: Schema = ANYTHING,
    most_body_bytes: int = 2**20,
    wait_s: Callable[[requests.Query, B], float] | None = None,
    watched: Callable[[Call[requests.Query, B]], object] | None = None,
) -> Endpoint[requests.Query, B]:
    """What changes something. ``is_raw``: the body is decoded by the endpoint itself."""
    return Endpoint(
        method=method,
        path=path,
        does=does,
        run=run,
        rights=rights,
        query=requests.Query,
        body=body,
        answers=answers,
        errors=errors,
        cost=cost,
        cost_of=cost_of,
        for_every_team=for_every_team,
        has_body=has_body,
        is_raw=is_raw,
        raw_schema=raw_schema,
        most_body_bytes=most_body_bytes,
        wait_s=wait_s,
        watched=watched,
    )


def unknown(name: str) -> UnknownRun:
    """What is said of a run that does not exist, or not for the caller: always the same."""
    return UnknownRun(
        f"no run {name!r} is registered",
        hint="'ckptgov run list' shows the runs; 'ckptgov scan DIR' registers one",
    )


def document(told: Document, status: int = 200, *, is_pending: bool = False) -> Reply:
    """A document as a reply."""
    return Reply(status=status, body=msgspec.json.encode(told), is_pending=is_pending)


def recorded(record: Record, *, dry_run: bool) -> Reply:
    """A record that was written, or that would be."""
    return document({"dry_run": dry_run, "record": json.loads(encode_record(record))})


def accepted(tasks: Sequence[TaskFacts]) -> Reply:
    """What is done later: its tasks, the service's own or the first node's before the others."""
    told = [cluster.task(one) for one in tasks]
    return document({"task": told[0], "tasks": told}, 202)


def wants_path(accept: str) -> bool:
    """Whether plain text is asked for by name: ``*/*``, which curl sends, means the document."""
    kinds = [one.partition(";")[0].strip().lower() for one in accept.split(",")]
    return "text/plain" in kinds and "application/json" not in kinds
