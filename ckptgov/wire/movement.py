"""What moving bytes gave, as JSON documents."""

from __future__ import annotations

from ckptgov.model.movement import (
    FlushAnswer,
    FlushedCheckpoint,
    FlushSkip,
    RestoreAnswer,
    RestoreSource,
)
from ckptgov.model.pacing import FlowFacts
from ckptgov.wire.documents import Document, error_document, finding, resume, text, with_error


def restored(answer: RestoreAnswer) -> Document:
    """The document of ``restore``. ``whole`` is false where only some shards were asked for."""
    return {
        "run": answer.run,
        "name": text(answer.name),
        "step": answer.step,
        "step_kind": answer.step_kind.value,
        "content_id": answer.content_id,
        "path": text(answer.path),
        "resume_args": resume(answer.resume),
        "whole": not answer.matched,
        "bytes": answer.bytes,
        "shards": answer.shards,
        "sources": [restore_source(one) for one in answer.sources],
        "sent_bytes": answer.sent_bytes,
        "resumed_bytes": answer.resumed_bytes,
        "took_s": round(answer.took_s, 3),
        "eta_s": None if answer.eta_s is None else round(answer.eta_s, 1),
        "stood_already": answer.stood_already,
        "faults": [finding(one) for one in answer.faults],
    }


def restore_source(one: RestoreSource) -> Document:
    """A place and what it gave."""
    return {
        "place": one.place or None,
        "tier": one.tier or None,
        "root": text(one.root),
        "shards": one.shards,
        "bytes": one.bytes,
    }


def flushed(answer: FlushAnswer) -> Document:
    """The document of ``flush``."""
    document: Document = {
        "checkpoints": [flushed_checkpoint(one) for one in answer.checkpoints],
        "skipped": [flush_skip(one) for one in answer.skips],
    }
    return with_error(document, answer.error)


def flushed_checkpoint(one: FlushedCheckpoint) -> Document:
    """One checkpoint over one link."""
    document: Document = {
        "run": one.run,
        "name": text(one.name),
        "step": one.step,
        "step_kind": one.step_kind.value,
        "content_id": one.content_id,
        "source": one.source,
        "target": one.target,
        "bytes": one.bytes,
        "state": one.state.value,
        "reasons": list(one.reasons),
        "sent_bytes": one.sent_bytes,
        "resumed_bytes": one.resumed_bytes,
        "took_s": round(one.took_s, 3),
        "missing": [text(path) for path in one.missing],
        "faults": [finding(each) for each in one.faults],
    }
    if one.error is not None:
        document["error"] = error_document(one.error)["error"]
    return document


def flush_skip(one: FlushSkip) -> Document:
    """A checkpoint that does not flow, and why."""
    return {
        "run": one.run,
        "name": text(one.name),
        "step": one.step,
        "step_kind": one.step_kind.value,
        "target": one.target,
        "why_not": one.why_not,
        "text": text(one.text),
    }


def flow(one: FlowFacts) -> Document:
    """One flow: who moves what at what rate, or why it waits."""
    asked = one.request
    return {
        "flow_id": asked.flow_id,
        "what": text(asked.what),
        "class": asked.flow_class.value,
        "source": asked.source,
        "target": asked.target,
        "node": asked.node,
        "state": one.state.value,
        "bytes": asked.bytes,
        "moved_bytes": one.moved_bytes,
        "granted_bytes_per_s": one.rate_bytes_per_s,
        "measured_bytes_per_s": one.measured_bytes_per_s,
        "waits_for": one.waits_for or None,
        "eta_s": None if one.eta_s is None else round(one.eta_s, 1),
        "started_at_ns": one.started_at_ns,
    }
