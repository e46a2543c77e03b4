"""What the API is asked: bodies and queries as frozen values, decoded strictly.

An unknown member, a value of the wrong type or out of range, a NUL anywhere and JSON that is no
JSON are UsageError; nothing of a request reaches an operation before it was judged as a whole.
``schemas`` gives the same forms as JSON Schema, for the API's description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from ckptgov.errors import UsageError
from ckptgov.model.access import Right
from ckptgov.model.checkpoint import Purpose, VerifyLevel
from ckptgov.model.cluster import NodeState, TaskKind, TaskState
from ckptgov.model.journal import RestoreOutcome
from ckptgov.wire.usage_sums import By

T = TypeVar("T", bound=Struct)

MAX_WAIT_S = 60.0
MAX_QUERY_MEMBERS = 40
_LONGEST_S = 3660 * 86400.0
# "(?!\n)$" because Python's "$" also stands before a last newline.
_PLAIN = r"^[^\x00-\x1f\x7f]+(?!\n)$"

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=_PLAIN)]
Words = Annotated[str, Meta(max_length=4000)]
Path = Annotated[str, Meta(min_length=1, max_length=4096, pattern=_PLAIN)]
Step = Annotated[int, Meta(ge=0, le=2**63 - 2)]
WorldSize = Annotated[int, Meta(ge=1, le=10**9)]
Sequence_ = Annotated[int, Meta(ge=0, le=2**63 - 2)]
Rate = Annotated[int, Meta(ge=1, le=2**62)]
Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT_S)]
ContentId = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}(?!\n)$")]


class Query(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands behind the ``?``; nothing, unless said otherwise."""


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request carries; an empty object, unless said otherwise."""


class LatestQuery(Query, frozen=True, kw_only=True):
    """``wait``: for up to so many seconds while nothing may be handed out yet."""

    purpose: Purpose = Purpose.RESUME
    world_size: WorldSize | None = None
    evidence: Literal["structure", "digest"] = "digest"
    step: Step | None = None
    node: Name | None = None
    place: Name | None = None
    explain: bool = False
    wait: Wait = 0.0


class ListQuery(Query, frozen=True, kw_only=True):
    """Of which purpose, for how many ranks, asked from where."""

    purpose: Purpose = Purpose.RESUME
    world_size: WorldSize | None = None
    node: Name | None = None


class StepQuery(Query, frozen=True, kw_only=True):
    """``step``: this one; the newest where it is left out."""

    step: Step | None = None


class EventsQuery(Query, frozen=True, kw_only=True):
    """Events behind ``after``, oldest first."""

    after: Sequence_ = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class TaskQuery(Query, frozen=True, kw_only=True):
    """``wait``: for up to so many seconds until the task has ended."""

    wait: Wait = 0.0


class TasksQuery(Query, frozen=True, kw_only=True):
    """Tasks of one run, node or state only."""

    run: Name | None = None
    node: Name | None = None
    state: TaskState | None = None


class UsageQuery(Query, frozen=True, kw_only=True):
    """Usage of one run, or at one tier, only; ``by``: sums beside it, largest first."""

    run: Name | None = None
    tier: Name | None = None
    by: By | None = None


class Declared(Body, frozen=True, kw_only=True):
    """A rule for checkpoints that no layout can prove; see ``model.Expect``."""

    glob: Path
    count: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    marker: Path | None = None
    step: Annotated[str, Meta(min_length=1, max_length=1000, pattern=_PLAIN)] | None = None


class NewRun(Body, frozen=True, kw_only=True):
    """A run before its first checkpoint. ``path`` lies below the root of ``tier``."""

    name: Name
    tier: Name | None = None
    path: Path | None = None
    expect: Declared | None = None
    dry_run: bool = False


class AskRestart(Body, frozen=True, kw_only=True):
    """One restart: whoever sends the same id gets the same answer."""

    restart_id: Annotated[str, Meta(min_length=1, max_length=1024, pattern=_PLAIN)]
    purpose: Purpose = Purpose.RESUME
    world_size: WorldSize | None = None
    node: Name | None = None
    place: Name | None = None
    allow_fresh: bool = False


class TellOutcome(Body, frozen=True, kw_only=True):
    """What became of a start."""

    restart_id: Annotated[str, Meta(min_length=1, max_length=1024, pattern=_PLAIN)]
    outcome: RestoreOutcome
    epoch: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    reason: Words | None = None
    dry_run: bool = False


class MarkBad(Body, frozen=True, kw_only=True):
    """One checkpoint (``step``), or a range of steps, that must not be offered."""

    step: Step | None = None
    from_step: Step | None = None
    until_step: Step | None = None
    reason: Words = ""
    undo: bool = False
    dry_run: bool = False


class RollBack(Body, frozen=True, kw_only=True):
    """The newest step that stays on offer."""

    to_step: Step
    reason: Words | None = None
    dry_run: bool = False


class Hold(Body, frozen=True, kw_only=True):
    """A named claim on one checkpoint for ``ttl_s`` seconds; ``release`` ends it."""

    name: Name
    step: Step | None = None
    content_id: ContentId | None = None
    ttl_s: Annotated[float, Meta(gt=0, le=_LONGEST_S)] | None = None
    release: bool = False
    reason: Words | None = None
    dry_run: bool = False


class Commit(Body, frozen=True, kw_only=True):
    """A checkpoint that its writer knows to be complete: ``path`` below the root of ``tier``."""

    tier: Name
    path: Path
    step: Step | None = None
    metrics: Annotated[dict[Name, Annotated[str, Meta(max_length=64)]], Meta(max_length=100)] = {}
    dry_run: bool = False


class AskFlush(Body, frozen=True, kw_only=True):
    """Every checkpoint along the links, or one step, or to one tier."""

    step: Step | None = None
    to: Name | None = None
    dry_run: bool = False


class AskVerify(Body, frozen=True, kw_only=True):
    """How deep to compare."""

    level: VerifyLevel = VerifyLevel.DIGEST
    dry_run: bool = False


class AskScan(Body, frozen=True, kw_only=True):
    """Runs or tiers to look at; both left out: every tier that is scanned."""

    runs: Annotated[tuple[Name, ...], Meta(max_length=1000)] | None = None
    tiers: Annotated[tuple[Name, ...], Meta(max_length=1000)] | None = None
    dry_run: bool = False


class AskReconcile(Body, frozen=True, kw_only=True):
    """Tiers to bring together with the catalog; none named: all.

    ``staging``: what trainers left under temporary names goes, too, once nothing in it changed for
    ``staging_older_than_s``.
    """

    tiers: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    older_than_s: Annotated[float, Meta(ge=0, le=_LONGEST_S)] = 7 * 86400.0
    staging: bool = False
    staging_older_than_s: Annotated[float, Meta(ge=0, le=_LONGEST_S)] = 86400.0
    dry_run: bool = False


class ChangeBudget(Body, frozen=True, kw_only=True):
    """Limits to set, or (null) to lift; what is left out stays, save with ``clear``."""

    node: Name | None = None
    read_bytes_per_s: Rate | UnsetType | None = UNSET
    write_bytes_per_s: Rate | UnsetType | None = UNSET
    requests_per_s: Rate | UnsetType | None = UNSET
    flows: Annotated[int, Meta(ge=1, le=100000)] | UnsetType | None = UNSET
    clear: bool = False
    dry_run: bool = False


class Beat(Body, frozen=True, kw_only=True):
    """What an agent says of itself; see ``model.NodeBeat``."""

    boot: Name
    version: Name
    peer_url: (
        Annotated[
            str,
            Meta(
                max_length=300,
                pattern=r"^https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?!\n)$",
            ),
        ]
        | None
    ) = None


class ChangeNode(Body, frozen=True, kw_only=True):
    """What a person says of a node, and why."""

    state: NodeState
    reason: Words = ""


class Claim(Body, frozen=True, kw_only=True):
    """Tasks to take, for ``ttl_s`` seconds unless renewed; no kinds named: of any."""

    holder: Name
    kinds: Annotated[tuple[TaskKind, ...], Meta(max_length=20)] | None = None
    ttl_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    limit: Annotated[int, Meta(ge=1, le=100)] = 1
    wait: Wait = 0.0


class RenewTask(Body, frozen=True, kw_only=True):
    """Go on with a claimed task; ``ttl_s`` 0 gives it back."""

    lease: Sequence_
    ttl_s: Annotated[float, Meta(ge=0, le=3600)] = 60.0


class EndTask(Body, frozen=True, kw_only=True):
    """How a claimed task ended; ``outcome`` is the document of its answer or error."""

    lease: Sequence_
    state: Literal["done", "failed"]
    outcome: Raw = field(default_factory=lambda: Raw(b"{}"))


class NewToken(Body, frozen=True, kw_only=True):
    """A token to make. ``teams`` empty: of every team; ``ttl_s`` left out: until revoked."""

    label: Name
    rights: Annotated[frozenset[Right], Meta(min_length=1)]
    teams: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()
    node: Name | None = None
    ttl_s: Annotated[float, Meta(gt=0, le=_LONGEST_S)] | None = None


class Alert(Struct, frozen=True, kw_only=True):
    """One alert of a webhook; members not named here do not matter."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Alerts(Struct, frozen=True, kw_only=True):
    """What Alertmanager sends to a webhook (its configuration manual, "webhook_config").

    Members not named here do not matter: the sender adds some with every release.
    """

    version: Literal["4"]
    alerts: Annotated[tuple[Alert, ...], Meta(max_length=10_000)]


_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def body_of(raw: bytes, kind: type[T]) -> T:
    """The body of a request; an empty one is an empty object.

    Raises:
        UsageError: it is not of this form, in words that name the member.
    """
    text = check_no_nul(raw or b"{}")
    try:
        told: T = _decoder(kind).decode(text)
        return told
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"the body: {_words(error)}") from error


def check_no_nul(raw: bytes) -> bytes:
    """The JSON text itself. Raises UsageError where a text in it holds a NUL: no store keeps it."""
    if _NUL.search(raw) is not None:
        raise UsageError("the body: a NUL stands in a text")
    return raw


def query_of(raw: bytes, kind: type[T]) -> T:
    """What stands behind the ``?`` of a request.

    Raises:
        UsageError: not of this form, a member twice, or more of them than any question has.
    """
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_QUERY_MEMBERS,
        )
        members = dict(pairs)
        if len(members) != len(pairs):
            raise UsageError("the query: a member stands there twice")
        if any("\0" in text for pair in pairs for text in pair):
            raise UsageError("the query: a NUL stands in a text")
        return msgspec.convert(members, kind, strict=False)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"the query: {_words(error)}") from error


def schemas(kinds: Iterable[type[Struct]]) -> dict[str, Any]:
    """JSON Schemas by name, for the ``components`` of an OpenAPI document."""
    wanted = list(dict.fromkeys(kinds))
    _, named = msgspec.json.schema_components(wanted, ref_template="#/components/schemas/{name}")
    return named


@cache
def _decoder(kind: type[Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeError):
        return "is not UTF-8"
    return str(error)
