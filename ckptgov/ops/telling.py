"""Tell the service what changed in a node's catalog: the agent's side of a post.

What was acknowledged is kept in the agent's home. While the service is away nothing is forgotten:
the next time everything since then is told, and what it lost is told anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct, field

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import (
    EventKind,
    PlaceFacts,
)
from ckptgov.errors import Malformed, NotAllowed, UsageError
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.cluster import NodeState
from ckptgov.ops.capacity import tier_fill
from ckptgov.ops.context import Context
from ckptgov.ops.telling_run import RunAtPlace, Touched, posted_place
from ckptgov.wire.facts import (
    Post,
    PostAnswer,
    PostedSpace,
    decode_post_answer,
    encode_told,
)

LOG_FILE = "posted.json"
_PAGE = 1000

Send = Callable[[bytes], bytes]
"""Brings a post's body to the service, and its answer back. Raises CkptgovError."""


class PostLog(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the service acknowledged: of which catalog, up to which change and event.

    ``numbers``: of the last post of each run and place.
    """

    version: int = 1
    catalog: str = ""
    changes: int = 0
    events: int = 0
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, home: str) -> PostLog:
        """As it was saved; an empty one where it is lost or damaged: then all is told anew."""
        try:
            with open(os.path.join(home, LOG_FILE), "rb") as file:
                return msgspec.json.decode(file.read(), type=cls)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return cls()

    def save(self, home: str) -> None:
        """Keep it durably, whole or not at all."""
        path = os.path.join(home, LOG_FILE)
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


class Told(Struct, frozen=True, kw_only=True):
    """What a turn of telling came to. ``refused``: what the service did not take over."""

    posts: int
    refused: tuple[str, ...] = ()
    node_state: NodeState | None = None


def tell_changes(context: Context, log: PostLog, *, node: str, send: Send) -> Told:
    """Post everything that changed since the last acknowledgement.

    Raises:
        CkptgovError: the service did not answer; what it acknowledged so far is kept.
    """
    catalog = context.catalog
    uuid = catalog.identity().uuid
    if log.catalog != uuid:  # another catalog: its own numbers mean nothing to us
        log.catalog, log.changes, log.events = uuid, 0, 0
    teller = _Teller(context, log, node, send)
    changes = catalog.changes(log.changes)  # before the rest is read
    if not changes:
        return Told(posts=0)
    changed = {one.run_id for one in changes}
    touched, events = _touched(catalog, log.events)
    places = {one.place: one for one in catalog.places() if one.node in (None, node)}
    try:
        if None in changed:
            for place in places.values():
                if place.node == node and place.is_current:
                    teller.send(Post(node=node, place=posted_place(place)))
        for run in catalog.runs():
            if run.identity.run_id in changed:
                teller.tell_run(run.identity, places, touched)
        log.changes, log.events = changes[-1].seq, events
    finally:
        log.save(context.settings.home)
    return Told(posts=teller.posts, refused=tuple(teller.refused), node_state=teller.node_state)


def tell_space(context: Context, *, node: str, send: Send) -> None:
    """Post how full the node's own disks are just now; of one that does not answer nothing.

    Raises:
        CkptgovError: the service did not answer.
    """
    places = {one.place: one for one in context.catalog.places() if one.is_current}
    for tier in context.settings.tiers:
        if tier.node != node:
            continue
        fill = tier_fill(context, tier)
        place = places.get(fill.place)
        if fill.error is not None or place is None:
            continue
        space = PostedSpace(
            used_bytes=fill.used_bytes,
            free_bytes=fill.free_bytes,
            total_bytes=fill.total_bytes,
            files=fill.files,
            free_files=fill.free_files,
            quota_bytes=fill.quota_bytes,
        )
        decode_post_answer(
            send(encode_told(Post(node=node, place=posted_place(place), space=space)))
        )


_OF_COPIES = frozenset({EventKind.COPY_ADDED, EventKind.COPY_STATE, EventKind.COPY_CONFIRMED})


def _touched(catalog: Catalog, after: int) -> tuple[Touched, int]:
    copies: set[tuple[str | None, str | None, str | None]] = set()
    sealed: set[tuple[str | None, str | None]] = set()
    while True:
        events = catalog.events(after, limit=_PAGE)
        for one in events:
            after = one.seq
            if one.kind in _OF_COPIES:
                copies.add((one.run_id, one.content_id, one.place))
            elif one.kind is EventKind.SEALED:
                sealed.add((one.run_id, one.content_id))
        if len(events) < _PAGE:
            return Touched(frozenset(copies), frozenset(sealed)), after


class _Teller:
    """One turn of telling."""

    def __init__(self, context: Context, log: PostLog, node: str, send: Send) -> None:
        self._context = context
        self._catalog = context.catalog
        self._log = log
        self._node = node
        self._send = send
        self.posts = 0
        self.refused: list[str] = []
        self.node_state: NodeState | None = None

    def send(self, post: Post) -> PostAnswer:
        answer = decode_post_answer(self._send(encode_told(post)))
        self.posts += 1
        self.node_state = answer.node_state
        for refusal in answer.refusals:
            self.refused.append(f"{post.run.name if post.run else ''}: {refusal.message}")
        return answer

    def tell_run(
        self, run: RunIdentity, places: Mapping[str, PlaceFacts], touched: Touched
    ) -> None:
        """Copies, sightings and the journal of one run, place by place."""
        for root in self._catalog.roots_of(run.run_id):
            place = places.get(root.place)
            if place is None:
                continue
            told = RunAtPlace(self, run, root, place)
            try:
                answer = told.tell(touched)
                if answer.is_applied and answer.journal_differs:
                    told.exchange_journal()
            except (NotAllowed, UsageError, Malformed) as error:
                self.refused.append(f"{run.name} at {place.root}: {error.message}")

    def number(self, run_id: str, place: str) -> int:
        return self._log.numbers.get(f"{run_id}/{place}", 0)

    def acknowledge(self, run_id: str, place: str, number: int) -> None:
        self._log.numbers[f"{run_id}/{place}"] = number

    @property
    def context(self) -> Context:
        return self._context

    @property
    def node(self) -> str:
        return self._node
