"""What an agent tells the service of its node: one run at one place a post, and the answer.

Posts of one (node, run, place) are numbered and follow one another: each says which one it comes
``after``. What does not follow changes nothing, and the answer asks for everything anew. So a post
that comes twice or late does no harm, and a service that lost its catalog is told all of it again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated, Literal

from msgspec import Meta

from ckptgov.errors import Malformed
from ckptgov.model.checkpoint import Evidence, RunIdentity, StepKind
from ckptgov.model.cluster import NodeState
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Finding, Note
from ckptgov.model.retention import Action
from ckptgov.wire.strict import MAX_MESSAGE_BYTES, Strict, decode, encode

MAX_MANIFEST_BYTES = 256 * 2**20
"""The form's own limit (forms, version 1): no more is unpacked."""

MAX_PACKED_BYTES = 5 * 2**20
"""What a packed manifest may weigh in a message, where base64 makes a third more of it."""


_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class PostedPlace(Strict, frozen=True, kw_only=True):
    """A place of the node's own, or (``node`` None) a shared one that is only referred to.

    ``is_current`` is False of a disk that another one replaced at its root.
    """

    place: str
    tier: str
    node: str | None
    root: str
    fs_type: str
    source: str
    first_seen_at_ns: int
    is_current: bool = True


class PostedRoot(Strict, frozen=True, kw_only=True):
    """Where the run lies below the place's root, and where our own files of it do."""

    path: str
    sidecar: str


class PostedSealed(Strict, frozen=True, kw_only=True):
    """A sealed checkpoint: its manifest's bytes (``packed``) and what the journal says of it."""

    content_id: str
    manifest: bytes
    line: int
    attempt: int
    sealed_at_ns: int


class PostedGoing(Strict, frozen=True, kw_only=True):
    """A removal under way there, as the node was told it by a service: one that lost its catalog
    learns of it so. Times are of the clock of that service's catalog."""

    action: Action
    plan_id: str
    condemned_at_ns: _Count
    due_at_ns: _Count
    trash_s: Annotated[float, Meta(ge=0, le=1e12)]
    bytes: _Count
    files: _Count
    trash: str


class PostedCopy(Strict, frozen=True, kw_only=True):
    """A copy of it at the place, as the catalog keeps one."""

    content_id: str
    name: str
    state: CopyState
    coverage: bytes | None = None
    evidence: Evidence = Evidence.NONE
    verified_at_ns: int | None = None
    findings: tuple[Finding, ...] = ()
    going: PostedGoing | None = None


class PostedSighting(Strict, frozen=True, kw_only=True):
    """An unsealed candidate there."""

    name: str
    variant: str
    step: int | None
    step_kind: StepKind
    layout: str
    bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    newest_mtime_ns: int


class PostedRecord(Strict, frozen=True, kw_only=True):
    """One record of the run's journal, as its file holds it."""

    record_id: str
    number: int
    kind: str
    raw: bytes


class PostedSpace(Strict, frozen=True, kw_only=True):
    """How full a place of the node's own is, just now. None: there is no such figure, or limit."""

    used_bytes: _Count
    free_bytes: _Count | None = None
    total_bytes: _Count | None = None
    files: _Count | None = None
    free_files: _Count | None = None
    quota_bytes: _Count | None = None


class Post(Strict, frozen=True, kw_only=True):
    """What a node has to tell of one run at one place; of the place alone without ``run``.

    ``number``: from 1, of this node, run and place; ``after``: the one that was acknowledged
    last. ``covers``: all that is known there of content ids above the first and up to the second
    (None: to the end) is in ``copies``, and whatever else the service knows there is lost; a post
    that covers follows on anything. ``sightings``: everything one complete look found; None: there
    was none. ``journal``: ``journal_digest`` of every record the node knows of the run; with
    ``known_records`` their ids, when the service asked. ``space``: of the place, now and then.
    """

    version: Literal[1] = 1
    node: str
    place: PostedPlace
    number: int = 0
    after: int = 0
    run: RunIdentity | None = None
    root: PostedRoot | None = None
    covers: tuple[str, str | None] | None = None
    sealed: tuple[PostedSealed, ...] = ()
    copies: tuple[PostedCopy, ...] = ()
    sightings: tuple[PostedSighting, ...] | None = None
    records: tuple[PostedRecord, ...] = ()
    journal: str = ""
    known_records: tuple[str, ...] | None = None
    space: PostedSpace | None = None


class Refusal(Strict, frozen=True, kw_only=True):
    """What of a post was not taken over, and why; the rest was."""

    kind: str
    message: str


class PostAnswer(Strict, frozen=True, kw_only=True):
    """What the service made of a post, and what the node lacks.

    ``is_applied``: this one was. ``standing``: the number of the last post that was.
    ``wants_whole``: tell everything of this run and place anew, above ``standing``. ``wanted``:
    content ids whose manifests the service lacks; their copies were left out.
    ``journal_differs``: say which records are known there. ``records``: those the node lacks (the
    first ones of many); ``wanted_records``: those the service does.
    """

    version: Literal[1] = 1
    is_applied: bool = True
    standing: int = 0
    wants_whole: bool = False
    wanted: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    journal_differs: bool = False
    records: tuple[PostedRecord, ...] = ()
    wanted_records: tuple[str, ...] = ()
    node_state: NodeState = NodeState.ACTIVE


class RunClaim(Strict, frozen=True, kw_only=True):
    """A run root that bears no identity yet: which run is it? ``name``: what it would be called."""

    version: Literal[1] = 1
    node: str
    place: PostedPlace
    path: str
    name: str


class RunClaimAnswer(Strict, frozen=True, kw_only=True):
    """The identity to write there, or why there is none."""

    version: Literal[1] = 1
    run: RunIdentity | None = None
    refusal: Refusal | None = None


class Told(Strict, frozen=True, kw_only=True):
    """What comes to ``POST /v1/nodes/{node}/facts``: one of the two."""

    post: Post | None = None
    claim: RunClaim | None = None


def encode_told(told: Post | RunClaim) -> bytes:
    """The request's body."""
    return encode(Told(post=told) if isinstance(told, Post) else Told(claim=told))


def decode_told(raw: bytes) -> Post | RunClaim:
    """The post or claim in a request's body. Raises Malformed."""
    told = decode(raw, Told, what="facts of a node")
    match told.post, told.claim:
        case Post() as post, None:
            return post
        case None, RunClaim() as claim:
            return claim
    raise Malformed("facts of a node: neither a post nor a claim, or both")


def encode_answer(answer: PostAnswer | RunClaimAnswer) -> bytes:
    """The answer's body."""
    return encode(answer)


def decode_post_answer(raw: bytes) -> PostAnswer:
    """The answer to a post. Raises Malformed."""
    return decode(raw, PostAnswer, what="answer to a post", cap_bytes=2 * MAX_MESSAGE_BYTES)


def decode_claim_answer(raw: bytes) -> RunClaimAnswer:
    """The answer to a claim. Raises Malformed."""
    return decode(raw, RunClaimAnswer, what="answer to a claim")


def packed(manifest: bytes) -> bytes:
    """A manifest's bytes for a message.

    Raises:
        Malformed: it has so many shards that no message carries it.
    """
    small = zlib.compress(manifest, 6)
    if len(small) > MAX_PACKED_BYTES:
        raise Malformed(
            f"a manifest of {len(manifest)} bytes does not fit in a message",
            hint="flush it to a shared tier: the service reads its manifest there",
        )
    return small


def unpacked(small: bytes) -> bytes:
    """A manifest's bytes out of a message. Raises Malformed."""
    reader = zlib.decompressobj()
    try:
        raw = reader.decompress(small, MAX_MANIFEST_BYTES)
    except zlib.error as error:
        raise Malformed(f"packed manifest: {error}") from error
    if not reader.eof or reader.unused_data:
        raise Malformed("packed manifest: cut short, larger than a manifest may be, or followed")
    return raw


def journal_digest(record_ids: Iterable[str]) -> str:
    """A digest of which records are known, whatever their order."""
    digest = sha256()
    for record_id in sorted(record_ids):
        digest.update(record_id.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()
