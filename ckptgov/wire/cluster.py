"""Nodes, tasks and tokens as JSON documents, for the API and the commands that ask it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ckptgov.model.access import TokenFacts
from ckptgov.model.cluster import NodeFacts, TaskFacts
from ckptgov.wire.documents import Document, text


def node(one: NodeFacts, *, is_reachable: bool) -> Document:
    """One node, and whether its copies can be counted on now."""
    return {
        "node": one.node,
        "state": one.state.value,
        "is_reachable": is_reachable,
        "reason": one.reason,
        "boot": one.boot,
        "version": one.version,
        "peer_url": one.peer_url,
        "first_seen_at_ns": one.first_seen_at_ns,
        "beat_at_ns": one.beat_at_ns,
    }


def task(one: TaskFacts) -> Document:
    """One task. ``outcome`` is the document its command would have printed; null while open."""
    return {
        "task_id": one.task_id,
        "kind": one.task.kind.value,
        "key": one.task.key,
        "run": one.task.for_run,
        "node": one.task.node,
        "state": one.state.value,
        "holder": one.holder,
        "lease": one.lease,
        "attempts": one.attempts,
        "created_at_ns": one.created_at_ns,
        "ended_at_ns": one.ended_at_ns,
        "outcome": json.loads(one.outcome) if one.outcome else None,
    }


def tasks(found: Iterable[TaskFacts]) -> Document:
    """The document of ``task list``."""
    return {"tasks": [task(one) for one in found]}


def token(one: TokenFacts) -> Document:
    """One token without its secret, which nobody knows any more."""
    return {
        "token_id": one.token_id,
        "label": text(one.label),
        "rights": sorted(right.value for right in one.rights),
        "teams": list(one.teams),
        "node": one.node,
        "created_at_ns": one.created_at_ns,
        "expires_at_ns": one.expires_at_ns,
        "revoked_at_ns": one.revoked_at_ns,
    }


def tokens(found: Iterable[TokenFacts]) -> Document:
    """The document of ``token list``."""
    return {"tokens": [token(one) for one in found]}
