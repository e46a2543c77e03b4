"""A source that gave wrong bytes: read again, and never offered before it was verified.

Bytes that differ while their token holds are corrupt, and the place's newest receipt then says
so, because tokens alone would go on vouching for them. A token that changed speaks for itself,
and a shard that could not be read keeps its last verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ckptgov.errors import StorageError
from ckptgov.layouts.tree import join
from ckptgov.manifest.compare import ShardReport, ShardState, compare
from ckptgov.model.checkpoint import Evidence, Receipt, VerifyLevel
from ckptgov.model.clock import Clock
from ckptgov.model.facts import Reason
from ckptgov.model.files import Token
from ckptgov.storage.contract import Storage
from ckptgov.work.copy import SourceFault
from ckptgov.work.seal import publish_receipt
from ckptgov.work.sources import CopyAt


class Confirmed(Struct, frozen=True, kw_only=True):
    """What reading a bad source again found: shards whose bytes are wrong under a token that held.

    ``note`` says why it could not be written down where the next look finds it, "" if it was.
    """

    corrupt: frozenset[str]
    note: str = ""


def quarantine(
    at: CopyAt, faults: Sequence[SourceFault], storage: Storage, clock: Clock
) -> Confirmed:
    """Read what gave wrong bytes again, past the page cache, and demote the copy if it is wrong."""
    base, sound = at.base, frozenset(at.copy.proof.sound)
    suspect = {
        one.shard
        for one in faults
        if one.finding.reason in (Reason.CORRUPT, Reason.TORN)
        and one.shard in sound
        and one.finding.path == join(base, one.shard)
    }
    receipt = _receipt_of(at)
    if not suspect or receipt is None:
        return Confirmed(corrupt=frozenset())
    tokens = dict(receipt.tokens)
    reports = compare(
        at.manifest, storage, base, level=VerifyLevel.DIGEST, paths=suspect, threads=1
    )
    corrupt = frozenset(one.path for one in reports if _is_corrupt(one, tokens))
    if not corrupt:
        return Confirmed(corrupt=corrupt)
    try:
        _demote(at, receipt, corrupt, clock)
    except StorageError as error:
        return Confirmed(corrupt=corrupt, note=error.message)
    return Confirmed(corrupt=corrupt)


def _receipt_of(at: CopyAt) -> Receipt | None:
    if at.place.uuid is None:
        return None
    stored, store = at.copy.stored, at.look.store
    numbered = store.receipts().get((stored.encoded_name, stored.content_prefix), [])
    return store.newest_receipt(numbered, at.place.uuid, notes=[])


def _is_corrupt(report: ShardReport, tokens: Mapping[str, Token]) -> bool:
    token = tokens.get(report.path)
    return (
        report.state is ShardState.DIFFERS
        and report.token is not None
        and token is not None
        and report.token.same_content(token)
    )


def _demote(at: CopyAt, receipt: Receipt, corrupt: frozenset[str], clock: Clock) -> None:
    """The copy is corrupt from now on; of one that had gaps already, the other shards still count.

    The latter is offered by itself neither before nor after, and its receipt keeps the date of the
    last verification: the others were not compared now. A node's part is taken as whole by its
    receipt, so that a shard must not be left out there.
    """
    others = [(path, token) for path, token in receipt.tokens if path not in corrupt]
    if at.copy.proof.findings and not at.look.partial and others:
        tokens, evidence, at_ns = others, receipt.evidence, receipt.verified_at_ns
    else:
        tokens, evidence, at_ns = list(receipt.tokens), Evidence.STRUCTURE, clock.now_ns()
    publish_receipt(
        at.look.store,
        at.manifest,
        place=receipt.place,
        tokens=tokens,
        evidence=evidence,
        at_ns=at_ns,
    )
