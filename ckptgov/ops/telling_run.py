"""One run at one place, as posts tell it: copies, what is sealed, sightings, the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from ckptgov.catalog.facts import PlacedCopy, PlaceFacts, RecordFacts, RunRootFacts, SealedFacts
from ckptgov.errors import CkptgovError, CouldNotLook
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.journal import KIND_OF, NumberedRecord, Record
from ckptgov.model.retention import Removal
from ckptgov.ops.context import Context
from ckptgov.ops.posting import decoded_record, posted_record
from ckptgov.wire.facts import (
    Post,
    PostAnswer,
    PostedCopy,
    PostedGoing,
    PostedPlace,
    PostedRecord,
    PostedRoot,
    PostedSealed,
    PostedSighting,
    journal_digest,
    packed,
)
from ckptgov.work.flush import copy_journal
from ckptgov.work.runstore import RunStore

_PIECE_BYTES = 4 * 2**20
_COPY_BYTES = 500  # about what one takes in a message, without its findings
_T = TypeVar("_T")


class Teller(Protocol):
    """One turn of telling."""

    @property
    def context(self) -> Context:
        """The agent's."""
        ...

    @property
    def node(self) -> str:
        """Whose posts these are."""
        ...

    def send(self, post: Post) -> PostAnswer:
        """Bring a post to the service. Raises CkptgovError."""
        ...

    def number(self, run_id: str, place: str) -> int:
        """Of the last post of a run and place that was acknowledged."""
        ...

    def acknowledge(self, run_id: str, place: str, number: int) -> None:
        """The service stands at this number."""
        ...


class Touched(Struct, frozen=True):
    """Copies (run, content id, place) and sealed checkpoints (run, content id) since an event."""

    copies: frozenset[tuple[str | None, str | None, str | None]]
    sealed: frozenset[tuple[str | None, str | None]]


class RunAtPlace:
    """One run at one place: whatever is posted of it."""

    def __init__(
        self, teller: Teller, run: RunIdentity, root: RunRootFacts, place: PlaceFacts
    ) -> None:
        self._teller = teller
        self._catalog = teller.context.catalog
        self._run = run
        self._root = root
        self._place = place
        self._copies = {
            one.content_id: one
            for one in self._catalog.copies(run.run_id)
            if one.place == place.place
        }
        self._going = {
            one.content_id: one
            for one in self._catalog.removals.removals(run_id=run.run_id, place=place.place)
        }
        self._sealed = {one.content_id: one for one in self._catalog.checkpoints(run.run_id)}
        self._records = self._catalog.records(run.run_id)

    def tell(self, touched: Touched) -> PostAnswer:
        run_id, place = self._run.run_id, self._place.place
        ids = [one for one in self._copies if (run_id, one, place) in touched.copies]
        new = {one for one in ids if (run_id, one) in touched.sealed}
        answer: PostAnswer | None = None
        wanted: list[str] = []
        for sealed, copies in self._pieces(ids, with_manifest=new):
            answer = self._post(sealed=sealed, copies=copies)
            if not answer.is_applied:
                break
            wanted += answer.wanted
        if answer is None:
            answer = self._post()
        if not answer.is_applied and not answer.refusals:
            answer, wanted = self._tell_all()
        if not answer.is_applied:
            return answer
        for sealed, copies in self._pieces(wanted, with_manifest=set(wanted)):
            answer = self._post(sealed=sealed, copies=copies)
        return answer

    def _tell_all(self) -> tuple[PostAnswer, list[str]]:
        """Everything that is known of the run here, so that the service forgets the rest."""
        wanted: list[str] = []
        above = ""
        pieces = list(self._pieces(sorted(self._copies), with_manifest=set())) or [([], [])]
        for number, (_sealed, copies) in enumerate(pieces, start=1):
            until = copies[-1].content_id if number < len(pieces) else None
            answer = self._post(copies=copies, covers=(above, until))
            if answer.refusals and not answer.is_applied:
                break
            if not answer.is_applied:
                raise CouldNotLook(
                    f"run {self._run.name}: the service does not take over what it asked for"
                )
            wanted += answer.wanted
            above = until or above
        return answer, wanted

    def exchange_journal(self) -> None:
        """Records that one side has and the other lacks."""
        while True:
            answer = self._post(known=tuple(one.record_id for one in self._records))
            if not answer.is_applied:
                return  # told anew at the next turn
            if answer.records:
                self._adopt(answer.records)
            wanted = set(answer.wanted_records)
            lacking = [posted_record(one) for one in self._records if one.record_id in wanted]
            for piece in _by_size(lacking, lambda one: len(one.raw) * 4 // 3 + 200):
                self._post(records=tuple(piece))
            if not answer.records:
                return

    def _adopt(self, records: Sequence[PostedRecord]) -> None:
        """What others said of the run is kept in its journal here, then in the catalog."""
        found = [(one.number, decoded_record(one, self._run.run_id), one.raw) for one in records]
        numbered = [NumberedRecord(number, record) for number, record, _raw in found]
        for store in stores_of(self._teller.context, self._run.run_id, self._teller.node):
            copy_journal(store, numbered)
        self._catalog.put_records(
            [self._record_facts(number, record, raw) for number, record, raw in found]
        )
        self._records = self._catalog.records(self._run.run_id)

    def _record_facts(self, number: int, record: Record, raw: bytes) -> RecordFacts:
        return RecordFacts(
            run_id=self._run.run_id,
            record_id=record.stamp.id,
            number=number,
            kind=KIND_OF[type(record)],
            at_ns=record.stamp.at_ns,
            raw=raw,
        )

    def _pieces(
        self, ids: Iterable[str], *, with_manifest: set[str]
    ) -> Iterator[tuple[list[PostedSealed], list[PostedCopy]]]:
        def told(content_id: str) -> tuple[PostedSealed | None, PostedCopy]:
            copy = posted_copy(self._copies[content_id], self._going.get(content_id))
            if content_id not in with_manifest:
                return None, copy
            return self._posted_sealed(self._sealed[content_id]), copy

        known = (told(one) for one in ids if one in self._copies and one in self._sealed)
        for piece in _by_size(known, _weight):
            yield [one for one, _ in piece if one is not None], [copy for _, copy in piece]

    def _posted_sealed(self, one: SealedFacts) -> PostedSealed:
        return PostedSealed(
            content_id=one.content_id,
            manifest=packed(self._catalog.manifest_bytes(one.run_id, one.content_id)),
            line=one.line,
            attempt=one.attempt,
            sealed_at_ns=one.sealed_at_ns,
        )

    def _post(
        self,
        *,
        sealed: Sequence[PostedSealed] = (),
        copies: Sequence[PostedCopy] = (),
        covers: tuple[str, str | None] | None = None,
        records: tuple[PostedRecord, ...] = (),
        known: tuple[str, ...] | None = None,
    ) -> PostAnswer:
        run_id, place = self._run.run_id, self._place.place
        after = self._teller.number(run_id, place)
        answer = self._teller.send(
            Post(
                node=self._teller.node,
                place=posted_place(self._place),
                number=after + 1,
                after=after,
                run=self._run,
                root=PostedRoot(path=self._root.path, sidecar=self._root.sidecar),
                covers=covers,
                sealed=tuple(sealed),
                copies=tuple(copies),
                sightings=self._sightings(),
                records=records,
                journal=journal_digest(one.record_id for one in self._records),
                known_records=known,
            )
        )
        self._teller.acknowledge(run_id, place, answer.standing)
        return answer

    def _sightings(self) -> tuple[PostedSighting, ...] | None:
        if self._place.node is None:
            return None  # whoever scans a shared tier says what is sighted there
        return tuple(
            PostedSighting(
                name=one.name,
                variant=one.variant,
                step=one.step,
                step_kind=one.step_kind,
                layout=one.layout,
                bytes=one.bytes,
                findings=one.findings,
                notes=one.notes,
                newest_mtime_ns=one.newest_mtime_ns,
            )
            for one in self._catalog.sightings(self._run.run_id)
            if one.place == self._place.place
        )


def stores_of(context: Context, run_id: str, node: str) -> Iterator[RunStore]:
    """The run's stores on the node's own disks, as far as they can be reached."""
    places = {one.place: one for one in context.catalog.places()}
    for root in context.catalog.roots_of(run_id):
        place = places[root.place]
        tier = context.tier_of(place.root, place.node)
        if place.node != node or tier is None:
            continue
        try:
            storage = context.place(tier).storage
        except CkptgovError:
            continue  # not mounted: it is told again when its journal is found to differ
        yield RunStore(storage, root.path, sidecar=root.sidecar)


def _by_size(items: Iterable[_T], weight: Callable[[_T], int]) -> Iterator[list[_T]]:
    piece: list[_T] = []
    held = 0
    for one in items:
        heavy = weight(one)
        if piece and held + heavy > _PIECE_BYTES:
            yield piece
            piece, held = [], 0
        piece.append(one)
        held += heavy
    if piece:
        yield piece


def _weight(pair: tuple[PostedSealed | None, PostedCopy]) -> int:
    sealed, copy = pair
    words = sum(len(one.path) + len(one.evidence) for one in copy.findings)
    manifest = len(sealed.manifest) * 4 // 3 if sealed is not None else 0
    return _COPY_BYTES + 2 * words + len(copy.coverage or b"") * 2 + manifest


def posted_copy(one: PlacedCopy, removal: Removal | None) -> PostedCopy:
    """A copy, and its removal if it is on its way out, for a message."""
    return PostedCopy(
        content_id=one.content_id,
        name=one.name,
        state=one.state,
        coverage=one.coverage,
        evidence=one.evidence,
        verified_at_ns=one.verified_at_ns,
        findings=one.findings,
        going=None if removal is None else _going(removal),
    )


def _going(removal: Removal) -> PostedGoing:
    return PostedGoing(
        action=removal.action,
        plan_id=removal.plan_id,
        condemned_at_ns=removal.condemned_at_ns,
        due_at_ns=removal.due_at_ns,
        trash_s=removal.trash_s,
        bytes=removal.bytes,
        files=removal.files,
        trash=removal.trash,
    )


def posted_place(one: PlaceFacts) -> PostedPlace:
    """A place for a message."""
    return PostedPlace(
        place=one.place,
        tier=one.tier,
        node=one.node,
        root=one.root,
        fs_type=one.fs_type,
        source=one.source,
        first_seen_at_ns=one.first_seen_at_ns,
        is_current=one.is_current,
    )
