"""Look: one run root at one place -> facts, without a catalog.

A look reads the journal whole (it binds), lists manifests and receipts, surveys the layouts, and
then proves candidates newest first, only as far as the answer needs. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import Malformed, RunRootGone
from ckptgov.layouts import registry
from ckptgov.layouts.base import Tree, resume_args
from ckptgov.layouts.fit import reshardable_of
from ckptgov.layouts.survey import survey
from ckptgov.layouts.tree import LookSettings
from ckptgov.manifest.names import file_name_of, without_attempt
from ckptgov.model.checkpoint import Evidence, Manifest, Receipt, StepKind
from ckptgov.model.clock import Clock
from ckptgov.model.closing import Closing
from ckptgov.model.facts import (
    CheckpointFacts,
    CopyFacts,
    Depth,
    Finding,
    Found,
    Note,
    Reason,
    Sighting,
    Survey,
)
from ckptgov.model.journal import Lost, NumberedRecord, Sealed, Tombstone, begins_at_zero
from ckptgov.planning.lines import Lines, ordered, read_lines
from ckptgov.storage.mounts import FileSystem
from ckptgov.work import addresses
from ckptgov.work.copyproof import CopyProof, prove_copy
from ckptgov.work.runstore import RunStore, StoredManifest, store_at
from ckptgov.work.tier import Place

if TYPE_CHECKING:
    from ckptgov.work.leaving import Leaving

CLOCKS_APART_NS = 24 * 3600 * 10**9
"""How far a node's clock may lie from a file server's before a receipt is doubted for it."""


class SealedCopy(Struct, frozen=True, kw_only=True):
    """A manifest that decodes, and what its bytes at this place are worth now."""

    stored: StoredManifest
    manifest: Manifest
    proof: CopyProof


class Candidate(Struct, frozen=True, kw_only=True):
    """Something that may be the answer. ``known_step`` is None until it was proven."""

    key: str
    known_step: int | None
    prove: Callable[[], CheckpointFacts | None]


class RunLook(Closing):
    """One look at one run root. Use with ``with``: it may hold a child process.

    Raises on construction what the journal raises: a run whose binding records cannot be read has
    no answer.
    """

    def __init__(
        self,
        place: Place,
        run_root: str,
        settings: LookSettings,
        *,
        partial: bool = False,
    ) -> None:
        self.place = place
        self.run_root = run_root
        self.settings = settings
        self.partial = partial
        self.store: RunStore = store_at(place.storage, run_root)
        self.identity = self.store.identity()
        self._sealed: dict[str, SealedCopy | None] = {}
        self._removed: set[str] = set()
        self._replaced: set[str] = set()  # of those, whose names another thing has by now
        self._leaving: Leaving | None = None
        self._tombstones: frozenset[str] = frozenset()
        read = self.store.journal()
        self.use_records(read.records)
        self.known_at_start = frozenset(item.record.stamp.id for item in read.records)
        self._notes: list[Note] = list(read.notes)
        rules = settings.rules
        if not rules and self.identity is not None and self.identity.expect is not None:
            rules = (self.identity.expect,)
            settings = replace(settings, rules=rules)
        self.tree = Tree(place.storage, run_root, settings)
        self._manifests: dict[str, Manifest] = {}
        self._sightings: dict[tuple[str, str, Depth], Sighting] = {}

    def close(self) -> None:
        """End the child process the tree may hold."""
        self.tree.close()

    @cached_property
    def stored(self) -> tuple[StoredManifest, ...]:
        """Every manifest that lies here, by file name."""
        return self.store.manifests()

    @cached_property
    def survey(self) -> Survey:
        """Everything a complete walk found.

        Raises:
            RunRootGone: there is no such run root.
            CouldNotLook: the walk cannot be complete.
        """
        try:
            return survey(self.tree)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._gone() from error

    def is_away(self) -> bool:
        """Whether there is no such run root (any more)."""
        return self.tree.is_gone("")

    def require_there(self) -> None:
        """Raise RunRootGone where there is no such run root (any more)."""
        if self.is_away():
            raise self._gone()

    def _gone(self) -> RunRootGone:
        where = addresses.join(self.place.root, self.run_root)
        return RunRootGone(f"{where}: no such directory", hint="is it mounted? Was it moved?")

    @cached_property
    def _receipts(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        return self.store.receipts()

    def use_records(self, records: Sequence[NumberedRecord]) -> None:
        """Judge by these records: the run's whole journal, merged over its places."""
        self.records: tuple[NumberedRecord, ...] = tuple(ordered(records))
        self.lines: Lines = read_lines(self.records)
        self.sealed_records: dict[str, Sealed] = {
            item.record.content_id: item.record
            for item in self.records
            if isinstance(item.record, Sealed)
        }
        tombstones = frozenset(
            item.record.stamp.id for item in self.records if isinstance(item.record, Tombstone)
        )
        self._leaving = None
        if tombstones != self._tombstones:
            self._tombstones = tombstones
            self._sealed.clear()  # what was proven may be on its way out

    def refresh(self) -> None:
        """Forget what was listed of our own files; they were changed by this process."""
        for name in ("stored", "_receipts"):
            self.__dict__.pop(name, None)
        self._sealed.clear()
        self.use_records([*self.records, *self.store.journal().records])

    @cached_property
    def filesystem(self) -> FileSystem:
        """What the place lies on."""
        return self.place.storage.filesystem()

    @property
    def granularity_ns(self) -> int:
        """How coarse the place's file times are."""
        return self.filesystem.granularity_ns

    def notes(self) -> tuple[Note, ...]:
        """What this look noticed; complete once everything wanted was proven."""
        found = [*self._notes]
        if "survey" in self.__dict__:
            found += self.survey.aliases
        return tuple(dict.fromkeys(found))

    def unsealed(self) -> tuple[Found, ...]:
        """Candidates that no readable manifest of theirs names."""
        names = {one.encoded_name for one in self.stored}
        return tuple(
            one
            for one in self.survey.found
            if one.variant or file_name_of(one.name) not in names or not self._has_live(one.name)
            if not self._is_leaving(one.name)
        )

    def _is_leaving(self, name: str) -> bool:
        """Whether its files only wait to be moved to the trash: nothing to be offered or sealed."""
        leaving = self._leaving_ones()
        if leaving is None or not leaving.holds(name):
            return False
        self._notes.append(Note("being-removed", name, "is on its way to the trash"))
        return True

    def _leaving_ones(self) -> Leaving | None:
        """What is on its way out; None where the journal knows of no removal."""
        if self._leaving is None and self._tombstones:
            from ckptgov.work.leaving import Leaving  # late: costs start-up time

            self._leaving = Leaving(self.store, self.place.uuid, self.records)
        return self._leaving

    def _has_live(self, name: str) -> bool:
        """Whether some manifest of this name decodes and still stands for what lies there."""
        encoded = file_name_of(name)
        copies = [self.sealed(one) for one in self.stored if one.encoded_name == encoded]
        return any(
            copy is not None
            and copy.manifest.name == name
            and copy.stored.file not in self._replaced
            for copy in copies
        )

    def sealed(self, stored: StoredManifest) -> SealedCopy | None:
        """The copy a manifest stands for; None (with a note) when the manifest does not decode."""
        if stored.file not in self._sealed:
            self._sealed[stored.file] = self._load_sealed(stored)
        return self._sealed[stored.file]

    def _load_sealed(self, stored: StoredManifest) -> SealedCopy | None:
        try:
            manifest = self._manifests.get(stored.file) or self.store.manifest(stored)
        except (Malformed, FileNotFoundError) as error:
            text = error.message if isinstance(error, Malformed) else "went away"
            self._notes.append(Note("unreadable-manifest", stored.file, text))
            return None
        self._manifests[stored.file] = manifest  # create-once: kept when the rest is looked at anew
        receipt = None
        if self.place.uuid is not None:
            numbered = self._receipts.get((stored.encoded_name, stored.content_prefix), [])
            receipt = self.store.newest_receipt(numbered, self.place.uuid, notes=self._notes)
        if receipt is not None and not self._holds_here(receipt, manifest):
            receipt = None
        leaving = self._leaving_ones()
        if leaving is not None and leaving.is_removed(manifest, receipt):
            self._removed.add(stored.file)
            if leaving.is_replaced(manifest, receipt):
                self._replaced.add(stored.file)
            return SealedCopy(stored=stored, manifest=manifest, proof=_gone(manifest))
        self._removed.discard(stored.file)
        self._replaced.discard(stored.file)
        only = [path for path, _ in receipt.tokens] if receipt and self.partial else None
        proof = prove_copy(
            self.place.storage,
            self.run_root,
            manifest,
            receipt,
            granularity_ns=self.granularity_ns,
            only=only,
        )
        return SealedCopy(stored=stored, manifest=manifest, proof=proof)

    def _holds_here(self, receipt: Receipt, manifest: Manifest) -> bool:
        """A receipt older than ``run.json`` came here with a copy of the whole tree.

        The copy carries the identity file too, so the place's UUID alone does not tell.
        """
        if receipt.content_id != manifest.content_id:
            return False
        born_ns = self._born_ns
        margin_ns = CLOCKS_APART_NS if self.filesystem.is_network else 0
        if born_ns is None or receipt.verified_at_ns + margin_ns >= born_ns:
            return True
        self._notes.append(
            Note("copied-tree", manifest.name, "its receipt came here with a copy: not verified")
        )
        return False

    @cached_property
    def _born_ns(self) -> int | None:
        """When ``run.json`` was born here; None where the file system does not tell."""
        try:
            return self.place.storage.stat(f"{self.store.sidecar}/run.json").btime_ns
        except FileNotFoundError:
            return None

    def sighting(self, found: Found, depth: Depth) -> Sighting:
        """What the layout proves about one candidate, remembered for this look."""
        key = (found.name, found.variant, depth)
        if key not in self._sightings:
            self._sightings[key] = registry.examine(
                self.tree, found, depth, siblings=self.survey.found
            )
        return self._sightings[key]

    def found_named(self, name: str) -> Found | None:
        """The candidate of this name, if the survey saw one."""
        return next((one for one in self.survey.found if one.name == name), None)

    def candidates(self, *, unsealed: bool = True) -> list[Candidate]:
        """Everything that may be offered; proving is left to the caller."""
        found = [self._sealed_candidate(one) for one in self.stored]
        if unsealed:
            found += [self._unsealed_candidate(one) for one in self.unsealed()]
        return found

    def _sealed_candidate(self, stored: StoredManifest) -> Candidate:
        record = next(
            (
                one
                for content_id, one in self.sealed_records.items()
                if content_id.startswith(f"sha256:{stored.content_prefix}")
            ),
            None,
        )
        return Candidate(
            # A copy whose name was taken at its place lies under attempt-<n>/ there.
            key=f"{without_attempt(stored.encoded_name, slash='%2f')}.{stored.content_prefix}",
            known_step=record.step if record is not None else None,
            prove=lambda: self._facts_of_stored(stored),
        )

    def _unsealed_candidate(self, found: Found) -> Candidate:
        return Candidate(
            key=f"{file_name_of(found.name)}|{found.variant}",
            known_step=found.step,
            prove=lambda: self.facts_of_sighting(self.sighting(found, Depth.STRUCTURE)),
        )

    def _facts_of_stored(self, stored: StoredManifest) -> CheckpointFacts | None:
        copy = self.sealed(stored)
        if copy is None or self.is_gone(copy):
            return None
        return self.facts_of_sealed(copy)

    def is_gone(self, copy: SealedCopy) -> bool:
        """Removed here; or recorded as lost here, and still away: deleted, or another attempt has
        its place."""
        if self.is_removed(copy):
            return True
        if copy.proof.evidence is Evidence.DIGEST or not self.is_lost(copy.manifest.content_id):
            return False
        if len(copy.proof.missing) == len(copy.manifest.shards):
            return True
        others = (
            self.sealed(one)
            for one in self.stored
            if one.encoded_name == copy.stored.encoded_name and one.file != copy.stored.file
        )
        return any(one is not None and one.proof.evidence is Evidence.DIGEST for one in others)

    def is_removed(self, copy: SealedCopy) -> bool:
        """Whether a tombstone has taken it away here, also where its manifest still stands."""
        return copy.stored.file in self._removed

    def facts_of_sealed(self, copy: SealedCopy) -> CheckpointFacts:
        """A sealed checkpoint as this place tells it."""
        manifest, proof = copy.manifest, copy.proof
        record = self.sealed_records.get(manifest.content_id)
        line = record.line if record is not None else self._line_of(manifest, proof)
        findings = proof.findings
        if proof.evidence is Evidence.STRUCTURE:
            findings = self._structure_findings(manifest)
        evidence = Evidence.NONE if findings else proof.evidence
        if self.partial:
            findings = (*findings, *self._absent_findings(manifest, proof))
        return CheckpointFacts(
            name=manifest.name,
            layout=manifest.layout,
            step=manifest.step,
            step_kind=manifest.step_kind,
            content_id=manifest.content_id,
            purposes=manifest.purposes,
            world_size=manifest.world_size,
            reshardable=reshardable_of(manifest.layout, [shard.path for shard in manifest.shards]),
            bytes=manifest.bytes,
            line=line,
            attempt=record.attempt if record is not None else 0,
            evidence=evidence,
            findings=findings,
            notes=proof.notes,
            copies=(self._copy_facts(manifest, proof, evidence),),
            shard_count=len(manifest.shards),
            resume=resume_args(
                _as_found(manifest), step=manifest.step, tag=manifest.name.rpartition("/")[2]
            ),
            newest_mtime_ns=proof.newest_mtime_ns,
        )

    def _copy_facts(self, manifest: Manifest, proof: CopyProof, evidence: Evidence) -> CopyFacts:
        is_whole = len(proof.held) == len(manifest.shards)
        return CopyFacts(
            place=self.place.uuid or "",
            tier=self.place.tier,
            node=self.place.node,
            root=addresses.join(self.place.root, self.run_root),
            name=manifest.name,
            shards=None if is_whole else proof.held,
            sound=proof.sound,
            evidence=evidence,
            verified_at_ns=proof.verified_at_ns,
            findings=proof.findings,
        )

    def _absent_findings(self, manifest: Manifest, proof: CopyProof) -> Iterable[Finding]:
        """Shards that this place was never to hold: another place must."""
        seen = {*proof.held, *proof.missing, *proof.changed}
        for shard in manifest.shards:
            if shard.path not in seen:
                yield Finding(
                    Reason.MISSING_SHARD, f"{manifest.name}/{shard.path}", "lies on another node"
                )

    def _structure_findings(self, manifest: Manifest) -> tuple[Finding, ...]:
        """The layout's own word on a copy that no receipt of this place vouches for."""
        found = self.found_named(manifest.name)
        if found is None:
            return ()
        sighting = self.sighting(found, Depth.STRUCTURE)
        return tuple(one for one in sighting.findings if one.reason is not Reason.UNPROVEN)

    def _line_of(self, manifest: Manifest, proof: CopyProof) -> int:
        if manifest.step is None:
            return self.lines.active.number
        return self.lines.line_of_unsealed(manifest.step, proof.newest_mtime_ns)

    def facts_of_sighting(self, sighting: Sighting) -> CheckpointFacts:
        """An unsealed checkpoint: the layout's own proof, and nothing more."""
        line = self.lines.active.number
        if sighting.step is not None:
            line = self.lines.line_of_unsealed(sighting.step, sighting.newest_mtime_ns)
        evidence = Evidence.NONE if sighting.findings else Evidence.STRUCTURE
        return CheckpointFacts(
            name=sighting.name,
            layout=sighting.layout,
            step=sighting.step,
            step_kind=sighting.step_kind,
            content_id=None,
            purposes=sighting.purposes,
            world_size=sighting.world_size,
            reshardable=sighting.reshardable,
            bytes=sighting.bytes,
            line=line,
            evidence=evidence,
            findings=sighting.findings,
            notes=sighting.notes,
            copies=(
                CopyFacts(
                    place=self.place.uuid or "",
                    tier=self.place.tier,
                    node=self.place.node,
                    root=addresses.join(self.place.root, self.run_root),
                    name=sighting.name,
                    shards=None,
                    evidence=evidence,
                ),
            ),
            resume=sighting.resume,
            newest_mtime_ns=sighting.newest_mtime_ns,
            variant=sighting.found.variant,
        )

    def is_lost(self, content_id: str) -> bool:
        """Whether the journal says that this place no longer holds a checkpoint."""
        return any(
            isinstance(item.record, Lost)
            and (item.record.content_id, item.record.place) == (content_id, self.place.uuid)
            for item in self.records
        )

    def is_untouched(self) -> bool:
        """No checkpoint, no manifest, no record of one: nothing says there ever was one."""
        is_told = not all(begins_at_zero(item.record) for item in self.records)
        return not self.survey.found and not self.stored and not is_told


def look_settings(place: Place, clock: Clock, *, clock_margin_s: float) -> LookSettings:
    """How a place is judged: where several nodes write to it, their clocks may differ."""
    margin_ns = int(clock_margin_s * 1e9)
    is_network = place.storage.filesystem().is_network
    return LookSettings(
        now_ns=clock.now_ns(),
        clock_margin_ns=margin_ns,
        marker_margin_ns=margin_ns if is_network else 0,
    )


def _gone(manifest: Manifest) -> CopyProof:
    finding = Finding(
        Reason.MISSING_SHARD, manifest.name, "was removed; 'ckptgov undelete' may bring it back"
    )
    paths = tuple(shard.path for shard in manifest.shards)
    return CopyProof(evidence=Evidence.NONE, findings=(finding,), missing=paths)


def _as_found(manifest: Manifest) -> Found:
    return Found(
        name=manifest.name,
        layout=manifest.layout,
        step=manifest.step,
        step_kind=manifest.step_kind if manifest.step is not None else StepKind.NONE,
        is_file=manifest.shards[0].path == "",
    )
