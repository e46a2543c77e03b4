"""What REMOVE tasks of nodes came to, taken into the catalog.

By compare-and-set, and only for the removal that was asked about: an outcome that comes late, or
twice, or of another node, changes nothing.
"""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec

from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import CkptgovError, Malformed
from ckptgov.manifest.names import check_path
from ckptgov.model.cluster import TaskFacts, TaskKind, TaskState
from ckptgov.model.copies import BEGUN, GONE, CopyState
from ckptgov.model.retention import Removal
from ckptgov.ops.context import Context
from ckptgov.ops.posting import apply_records
from ckptgov.ops.posting_copies import take_over
from ckptgov.service.node_removals import key_of, standing_of
from ckptgov.wire.node_removals import Came, NodeAnswer, decode_came, decode_orders


def end_task(
    context: Context, task: TaskFacts, lease: int, *, state: TaskState, outcome: bytes
) -> TaskFacts:
    """End a node's task, and take in what it came to: both or neither.

    Raises:
        LeaseLost: the task was taken over or has ended, or there is none; nothing changed.
    """
    with context.catalog.transaction():
        ended = context.catalog.tasks.end(task.task_id, lease, state=state, outcome=outcome)
        if task.task.kind is TaskKind.REMOVE:
            settle(context, ended, outcome)
    return ended


def settle(context: Context, task: TaskFacts, outcome: bytes) -> None:
    """Take in what a node's REMOVE task came to; what does not fit any more is passed over.

    Again does no harm. An outcome that tells nothing of single copies, an error's, is noted with
    each that was asked about.
    """
    catalog = context.catalog
    try:
        answers = decode_came(outcome).answers
    except Malformed:
        _note_failure(catalog, task, outcome)
        return
    standing = standing_of(catalog, task.task.node, answers)
    for answer in answers:
        removal = standing.get(key_of(answer))
        if removal is None or removal.condemned_at_ns != answer.condemned_at_ns:
            continue
        try:
            with catalog.transaction():
                _settle(context, removal, answer)
        except CkptgovError as error:
            context.talk(f"{removal.name}: what its node tells is not taken over: {error.message}")


def _note_failure(catalog: Catalog, task: TaskFacts, outcome: bytes) -> None:
    with suppress(Malformed):
        orders = decode_orders(task.task.payload).orders
        standing = standing_of(catalog, task.task.node, orders)
        for order in orders:
            if key_of(order) in standing:
                catalog.removals.resisted(*key_of(order), _message(outcome))


def _message(outcome: bytes) -> str:
    with suppress(msgspec.MsgspecError, ValueError, KeyError, TypeError):
        return str(json.loads(outcome)["error"]["message"])
    return "the node's agent says nothing of it"


def _settle(context: Context, removal: Removal, answer: NodeAnswer) -> None:
    """One removal. Forward always; back from wherever it got to.

    Raises:
        CkptgovError: what is told of it is no form of ours; nothing was taken over.
    """
    book, key = context.catalog.removals, key_of(removal)
    if answer.came is Came.RESISTED:
        book.resisted(*key, answer.text)
        return
    if removal.state not in BEGUN:
        return
    apply_records(context.catalog, removal.run_id, answer.records)
    is_moving = removal.state is CopyState.TRASHING
    if answer.trash:
        check_path(answer.trash, "trash")
    if is_moving and (answer.came is Came.MOVED or _stands(answer)):
        book.moved(*key, trash=answer.trash)
    if answer.came is Came.MOVED:
        return
    if _stands(answer):
        book.undo(*key)
    else:
        book.purged(*key)
    if answer.copy is not None:
        at_ns = context.author.clock.now_ns()
        take_over(context.catalog, removal.run_id, removal.place, answer.copy, at_ns)


def _stands(answer: NodeAnswer) -> bool:
    """Whether something lies in its place after it was left alone, or brought back."""
    is_left = answer.came in (Came.BACK, Came.CHANGED)
    return is_left and answer.copy is not None and answer.copy.state not in GONE
