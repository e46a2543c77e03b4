"""What a layout collects while it proves one candidate, and the sighting that comes of it.

All paths given to a ``Proof`` are below the checkpoint, as in ``SeenShard`` (``""`` for the file
of a single-file checkpoint); the findings it makes name the path below the run root.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptgov.errors import Malformed
from ckptgov.layouts.base import Tree, join, members_root, resume_args, sort_paths
from ckptgov.layouts.torch_zip import check_torch_zip, finding_of
from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.facts import (
    Depth,
    Finding,
    Found,
    Note,
    Reason,
    ResumeArgs,
    SeenShard,
    Sighting,
)
from ckptgov.model.files import EntryKind, FileStat

WRITTEN_AFTER = "written after its marker"
"""How the evidence of ``Proof.written_after`` begins."""


class Proof:
    """Collects members, findings and notes of one candidate; ``sighting`` closes it."""

    def __init__(self, tree: Tree, found: Found) -> None:
        self.tree = tree
        self.found = found
        self.root = members_root(found)
        self.findings: list[Finding] = []
        self.notes: list[Note] = []
        self._shards: dict[str, SeenShard] = {}
        self._stats: dict[str, FileStat] = {}
        self._expected: set[str] = set()
        self._refused: set[str] = set()  # paths of the first ``_told`` findings
        self._told = 0

    def at(self, path: str) -> str:
        """The path below the run root of a member."""
        return join(self.root, path)

    def refuse(self, reason: Reason, path: str, evidence: str) -> None:
        """Add a finding about ``path`` (``""``: the checkpoint itself)."""
        self.findings.append(Finding(reason, self.at(path), evidence))

    def note(self, kind: str, path: str, text: str) -> None:
        """Add a note about ``path``; it forbids nothing."""
        self.notes.append(Note(kind, self.at(path), text))

    def refuse_malformed(self, path: str, error: Malformed) -> None:
        """Add a finding about a member whose bytes do not decode."""
        self.refuse(Reason.TORN, path, error.message.removeprefix(f"{self.at(path)}: "))

    def prove_zip(self, path: str, depth: Depth) -> None:
        """Prove a member that is there as a torch.save file; an empty one was told by ``need``."""
        if not self.has(path) or self.refused(path):
            return
        with self.tree.open(self.at(path)) as file:
            report = check_torch_zip(file, depth=depth)
        finding = finding_of(report, self.at(path))
        if finding is not None:
            self.findings.append(finding)
        elif report.evidence:
            self.note("unverifiable", path, report.evidence)

    def has(self, path: str) -> bool:
        """Whether ``path`` is a regular file of the checkpoint."""
        return self.tree.is_file(self.at(path))

    def need(
        self,
        path: str,
        *,
        bytes: int | None = None,
        min_bytes: int = 1,
        because: str = "",
        is_marker: bool = False,
    ) -> FileStat | None:
        """A member the loader's index demands: it must be there, and of the size it has there.

        ``bytes`` is the exact size where the index tells one, ``min_bytes`` the least otherwise
        (an empty file is refused unless it may be 0). ``because`` says who demands it and ends
        the evidence of a missing one. A missing marker means the writer is not done. Returns the
        stat, or None when there is no such regular file.
        """
        self._expected.add(path)
        kind = self.tree.kind(self.at(path))
        if kind is None:
            self._missing(path, because, is_marker=is_marker)
            return None
        if kind is not EntryKind.FILE:
            self.refuse(Reason.UNPROVEN, path, f"is a {kind}, not a regular file: never a shard")
            return None
        stat = self.take(path, is_marker=is_marker)
        self._check_size(path, stat.bytes, bytes, min_bytes)
        return stat

    def take(self, path: str, *, is_marker: bool = False) -> FileStat:
        """A member that is there, whatever its size.

        Raises:
            FileNotFoundError, StorageError: as ``Reader.stat``.
        """
        self._expected.add(path)
        stat = self.tree.stat(self.at(path))
        self._shards[path] = SeenShard(path, stat.bytes, is_marker)
        self._stats[path] = stat
        return stat

    def is_member(self, path: str) -> bool:
        """Whether ``need`` or ``take`` was told of ``path``."""
        return path in self._expected

    def refused(self, path: str) -> bool:
        """Whether a finding already concerns this member."""
        if self._told != len(self.findings):
            self._refused.update(finding.path for finding in self.findings[self._told :])
            self._told = len(self.findings)
        return self.at(path) in self._refused

    def written_after(self, marker: str, shards: Iterable[str]) -> None:
        """Refuse members written in place after ``marker`` vouched for them.

        The rule of the design's "Overwritten in place" (DCP re-saves into the same directory:
        shards are truncated and rewritten while the old marker stays). See ``order_of``.
        """
        stamp = self._stats.get(marker)
        if stamp is None:
            return
        name = marker.rpartition("/")[2] or self.found.name.rpartition("/")[2]
        without_birth = False
        for path in shards:
            shard = self._stats.get(path)
            if shard is None:
                continue
            without_birth |= shard.btime_ns is None or stamp.btime_ns is None
            late_ns = late_by_ns(shard, stamp)
            if late_ns > self.tree.settings.marker_margin_ns:
                text = f"{WRITTEN_AFTER} {name} (by {_seconds(late_ns)} s)"
                self.refuse(Reason.TORN, path, text)
            elif late_ns > 0:
                margin = _seconds(self.tree.settings.marker_margin_ns)
                text = f"written {_seconds(late_ns)} s after its marker {name}, within {margin} s"
                self.note("marker-order", path, text)
        if without_birth:
            text = f"no birth times here: whether shards were rewritten after {name} is not known"
            self.note("no-birth-times", marker, text)

    def sighting(
        self,
        *,
        step: int | None = None,
        step_kind: StepKind | None = None,
        resume: ResumeArgs | None = None,
        tag: str | None = None,
        purposes: tuple[Purpose, ...] = (Purpose.RESUME, Purpose.WEIGHTS),
        world_size: int | None = None,
        reshardable: bool | None = None,
        common_file: str | None = None,
        metrics: tuple[tuple[str, str], ...] = (),
        expected: Sequence[str] = (),
        optional: Sequence[str] = (),
    ) -> Sighting:
        """Everything collected, as one sighting.

        Step and kind default to the candidate's own, ``tag`` to its last name component.
        ``expected`` adds paths that are demanded elsewhere (another node's ranks). ``optional``
        lists files that belong to the layout and are neither members nor worth telling as extras.
        """
        found = self.found
        if step_kind is None:
            step, step_kind = found.step, found.step_kind
        name = found.name.rpartition("/")[2]
        resume = resume or resume_args(found, step=step, tag=name if tag is None else tag)
        members = tuple(self._shards[path] for path in sort_paths(tuple(self._shards)))
        times = [stat.mtime_ns for stat in self._stats.values()]
        self._note_future(times)
        return Sighting(
            found=found,
            step=step,
            step_kind=step_kind,
            shards=members,
            expected=tuple(sort_paths(tuple(self._expected | set(expected)))),
            extras=self._extras(optional),
            findings=tuple(self.findings),
            notes=tuple(self.notes),
            purposes=purposes,
            world_size=world_size,
            reshardable=reshardable,
            resume=resume,
            newest_mtime_ns=max(times, default=0),
            oldest_mtime_ns=min(times, default=0),
            is_carried=_all_carried(self._stats.values()),
            common_file=common_file,
            metrics=metrics,
        )

    def sighting_without_files(self) -> Sighting:
        """Findings alone, for a candidate that could not be looked at to the end."""
        found = self.found
        return Sighting(
            found=found,
            step=found.step,
            step_kind=found.step_kind,
            shards=(),
            expected=(),
            findings=tuple(self.findings),
            notes=tuple(self.notes),
            resume=resume_args(found, step=found.step, tag=found.name.rpartition("/")[2]),
        )

    def _missing(self, path: str, because: str, *, is_marker: bool) -> None:
        if is_marker:
            text = because or "the marker is missing: still being written, or its writer died"
            self.refuse(Reason.BEING_WRITTEN, path, text)
        else:
            self.refuse(Reason.MISSING_SHARD, path, f"is missing{because and f': {because}'}")

    def _check_size(self, path: str, have: int, want: int | None, least: int) -> None:
        if have == 0 and (want is None or want > 0) and least > 0:
            self.refuse(Reason.TORN, path, "is empty (0 bytes)")
        elif want is not None and have < want:
            self.refuse(Reason.TORN, path, f"has {have} of {want} bytes")
        elif want is not None and have > want:
            self.refuse(Reason.TORN, path, f"has {have} bytes, more than the {want} it should")
        elif want is None and have < least:
            self.refuse(Reason.TORN, path, f"has {have} of at least {least} bytes")

    def _extras(self, optional: Sequence[str]) -> tuple[str, ...]:
        if self.found.files or self.found.is_file:
            return ()
        known = self._expected | set(optional)
        return tuple(p for p in self.tree.files_below(self.root) if p not in known)

    def _note_future(self, times: Sequence[int]) -> None:
        look = self.tree.settings
        limit = look.now_ns + look.clock_margin_ns
        ahead = [time - look.now_ns for time in times if time > limit]
        if ahead:
            files = "1 file is" if len(ahead) == 1 else f"{len(ahead)} files are"
            text = f"{files} dated up to {_seconds(max(ahead))} s in the future"
            self.note("future-time", "", text)


def late_by_ns(shard: FileStat, marker: FileStat) -> int:
    """How long after its marker a shard was rewritten in place; 0 when nothing proves that.

    On the file system that wrote them: the shard was born before the marker was written and
    modified after it, strictly (``<=`` refuses healthy plain copies). Where both have times that a
    copy carried over (modified before they were born here), the carried times order. Everything
    else proves nothing, nor does anything without birth times.
    """
    if shard.btime_ns is None or marker.btime_ns is None:
        return 0
    late_ns = shard.mtime_ns - marker.mtime_ns
    is_rewritten = shard.btime_ns < marker.mtime_ns < shard.mtime_ns
    return max(0, late_ns) if is_rewritten or (is_carried(shard) and is_carried(marker)) else 0


def is_carried(stat: FileStat) -> bool:
    """Whether a copy brought the file's times along: modified before it was born here."""
    return stat.btime_ns is not None and stat.mtime_ns < stat.btime_ns


def _all_carried(stats: Iterable[FileStat]) -> bool:
    known = [stat for stat in stats if stat.btime_ns is not None]
    return bool(known) and all(map(is_carried, known))


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.2f}" if ns >= 10**7 else f"{ns / 1e9:.9f}".rstrip("0")
