"""The parts of saves that a node holds and that are no checkpoint yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from msgspec import Struct

from ckptgov.errors import CkptgovError, CouldNotLook, Interrupted
from ckptgov.ops.context import Context
from ckptgov.ops.own_disks import OwnDisk
from ckptgov.ops.own_parts import Signature, digest_found, found_halves
from ckptgov.service.agent_cluster import Cluster
from ckptgov.wire.parts import PartState, ToldPart, decode_part_answer, encode_part


class PendingPart(Struct, frozen=True, kw_only=True):
    """One of them, digested. ``signature`` is that of its files then."""

    run: str
    signature: Signature
    told: ToldPart


class PendingParts:
    """Kept while the process lives; another one digests them anew. Threads may share it."""

    def __init__(self) -> None:
        self._by_save: dict[tuple[str, str, str], PendingPart] = {}
        self._lock = threading.Lock()

    def all(self) -> list[PendingPart]:
        """Every one."""
        with self._lock:
            return list(self._by_save.values())

    def forget(self) -> None:
        """Digest all of them anew the next time."""
        with self._lock:
            self._by_save.clear()

    def digest(
        self, context: Context, disks: Sequence[OwnDisk], problems: list[CkptgovError]
    ) -> int:
        """Digest the halves whose files changed since; forget those that are no halves any more."""
        digested = 0
        standing = set()
        for found in found_halves(context, disks):
            key = (found.look.place.uuid or "", found.look.run_root, found.name)
            standing.add(key)
            known = self._by_save.get(key)
            if known is not None and known.signature == found.signature:
                continue
            try:
                told = digest_found(context, found)
            except Interrupted:
                raise
            except CkptgovError as error:
                problems.append(error)
                continue
            pending = PendingPart(run=found.run, signature=found.signature, told=told)
            with self._lock:
                self._by_save[key] = pending
            digested += 1
        with self._lock:
            for key in self._by_save.keys() - standing:
                del self._by_save[key]
        return digested

    def deliver(self, cluster: Cluster, node: str, talk: Callable[[str], None]) -> int:
        """Bring every part to the service; how many it took.

        Raises:
            CouldNotLook: the service does not answer.
        """
        delivered = 0
        for one in self.all():
            name = one.told.part.name
            try:
                raw = cluster.put_part(node, one.run, encode_part(one.told))
            except CkptgovError as error:
                is_away = isinstance(error, CouldNotLook) and error.kind not in _REFUSED
                if is_away:
                    raise
                talk(f"{name}: {error.message}")
                continue
            delivered += 1
            answer = decode_part_answer(raw)
            if answer.state is PartState.UNPROVEN:
                talk(f"{name}: {answer.findings[0].evidence}")
        return delivered


_REFUSED = frozenset({"unknown-run", "malformed"})
"""Kinds of "could not look" that say nothing of the service's being there."""
