"""Parts of one save, and what becomes of them: messages between agents and the service."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from ckptgov.model.checkpoint import Part, RunIdentity, Shard
from ckptgov.model.facts import Finding
from ckptgov.model.files import Token
from ckptgov.wire.facts import PostedRecord
from ckptgov.wire.strict import Strict, decode, encode

MAX_PAYLOAD_BYTES = 64 * 2**20
"""What a task may carry: a merged manifest of every node's shards among it."""


class ToldPart(Strict, frozen=True, kw_only=True):
    """One node's part of a save, digested, with what proves that parts are one save.

    ``expected``: every path the loader's index demands, as far as this node's index tells.
    ``common_digest``: of the file that every part of one save holds alike, where the layout has
    one. ``members``: how many of the parts that its writer counts this one stands for. ``tokens``:
    of the node's shards while they were digested, until ``digested_at_ns``; they
    come back with the merged manifest.
    """

    version: Literal[1] = 1
    place: str
    run_root: str
    part: Part
    members: int = 1
    expected: tuple[str, ...]
    common_digest: str | None
    oldest_mtime_ns: int
    newest_mtime_ns: int
    is_carried: bool
    metrics: tuple[tuple[str, str], ...] = ()
    tokens: tuple[tuple[str, Token], ...]
    digested_at_ns: int


class PartState(StrEnum):
    """How the save stands after a part came."""

    WAITING = "waiting"  # shards that the index demands came from no node yet
    SEALED = "sealed"
    UNPROVEN = "unproven"  # all shards are there, and nothing proves that they are one save


class PartAnswer(Strict, frozen=True, kw_only=True):
    """What came of a part."""

    version: Literal[1] = 1
    state: PartState
    content_id: str | None = None
    findings: tuple[Finding, ...] = ()


class PublishPayload(Strict, frozen=True, kw_only=True):
    """Of a PUBLISH task: the merged manifest, for the place that one part came from.

    ``manifest`` is packed. ``tokens`` and ``digested_at_ns`` are the part's own.
    """

    version: Literal[1] = 1
    run: RunIdentity
    place: str
    run_root: str
    name: str
    manifest: bytes
    tokens: tuple[tuple[str, Token], ...]
    digested_at_ns: int
    records: tuple[PostedRecord, ...]


class DigestPayload(Strict, frozen=True, kw_only=True):
    """Of a DIGEST task: some shards (path, bytes as proven) of one candidate on a shared tier.

    ``base``: what their paths hang from, below the tier's root.
    """

    version: Literal[1] = 1
    tier: str
    place: str
    run_root: str
    base: str
    name: str
    members: tuple[tuple[str, int], ...]


class DigestOutcome(Strict, frozen=True, kw_only=True):
    """The shards digested and made durable, and the tokens they had meanwhile."""

    version: Literal[1] = 1
    shards: tuple[Shard, ...]
    tokens: tuple[tuple[str, Token], ...]


def encode_part(told: ToldPart) -> bytes:
    """A part as the request's body, and as the catalog keeps it."""
    return encode(told)


def decode_part(raw: bytes) -> ToldPart:
    """Raises Malformed."""
    return decode(raw, ToldPart, what="part of a save")


def encode_part_answer(answer: PartAnswer) -> bytes:
    """The answer's body."""
    return encode(answer)


def decode_part_answer(raw: bytes) -> PartAnswer:
    """Raises Malformed."""
    return decode(raw, PartAnswer, what="answer to a part")


def encode_payload(payload: PublishPayload | DigestPayload | DigestOutcome) -> bytes:
    """A task's payload or outcome."""
    return encode(payload)


def decode_publish(raw: bytes) -> PublishPayload:
    """Raises Malformed."""
    return decode(raw, PublishPayload, what="publish task", cap_bytes=MAX_PAYLOAD_BYTES)


def decode_digest(raw: bytes) -> DigestPayload:
    """Raises Malformed."""
    return decode(raw, DigestPayload, what="digest task", cap_bytes=MAX_PAYLOAD_BYTES)


def decode_digests(raw: bytes) -> DigestOutcome:
    """Raises Malformed."""
    return decode(raw, DigestOutcome, what="outcome of a digest task")
