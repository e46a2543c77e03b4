"""Between column values and frozen values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ckptgov.catalog.facts import REBUILD_HINT, PlaceFacts, RunFacts, RunRootFacts, SightingFacts
from ckptgov.errors import StorageError
from ckptgov.model.checkpoint import Expect, RunIdentity, StepKind
from ckptgov.model.facts import Finding, Note, Reason

T = TypeVar("T")


def decoded(convert: Callable[[Any], T], rows: Iterable[Any]) -> tuple[T, ...]:
    """Every row as a frozen value.

    Raises:
        StorageError: a row holds what no ckptgov of this version wrote.
    """
    try:
        return tuple(convert(row) for row in rows)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        message = f"the catalog holds a row that cannot be read: {error}"
        raise StorageError(message, hint=REBUILD_HINT) from error


def findings_text(findings: Iterable[Finding]) -> str:
    return _packed([[each.reason.value, each.path, each.evidence] for each in findings])


def findings_of(text: str) -> tuple[Finding, ...]:
    return tuple(
        Finding(Reason(reason), path, evidence) for reason, path, evidence in json.loads(text)
    )


def notes_text(notes: Iterable[Note]) -> str:
    return _packed([[each.kind, each.path, each.text] for each in notes])


def notes_of(text: str) -> tuple[Note, ...]:
    return tuple(Note(kind, path, words) for kind, path, words in json.loads(text))


def expect_text(expect: Expect | None) -> str | None:
    if expect is None:
        return None
    return _packed([expect.glob, expect.count, expect.marker, expect.step])


def expect_of(text: str | None) -> Expect | None:
    if text is None:
        return None
    glob, count, marker, step = json.loads(text)
    return Expect(glob=glob, count=count, marker=marker, step=step)


def detail_text(detail: Iterable[tuple[str, str]]) -> str:
    return _packed(dict(detail))


def detail_of(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in json.loads(text).items())


def _packed(value: object) -> str:
    # ASCII only: surrogate escapes of raw path bytes survive as \udcXX.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def place_of(row: Any) -> PlaceFacts:
    """A row of ``places``."""
    return PlaceFacts(
        place=row.place,
        tier=row.tier,
        node=row.node,
        root=row.root,
        fs_type=row.fs_type,
        source=row.source,
        first_seen_at_ns=row.first_seen_at_ns,
        is_current=bool(row.is_current),
    )


def run_of(row: Any) -> RunFacts:
    """A row of ``runs``."""
    identity = RunIdentity(
        run_id=row.run_id,
        name=row.name,
        selector=row.selector,
        expect=expect_of(row.expect),
    )
    return RunFacts(identity=identity, created_at_ns=row.created_at_ns)


def root_of(row: Any) -> RunRootFacts:
    """A row of ``run_roots``."""
    return RunRootFacts(run_id=row.run_id, place=row.place, path=row.path, sidecar=row.sidecar)


def sighting_of(row: Any) -> SightingFacts:
    """A row of ``sightings``; its step may be decimal text."""
    return SightingFacts(
        run_id=row.run_id,
        place=row.place,
        name=row.name,
        variant=row.variant,
        step=None if row.step is None else int(row.step),
        step_kind=StepKind(row.step_kind),
        layout=row.layout,
        bytes=row.size_bytes,
        findings=findings_of(row.findings),
        notes=notes_of(row.notes),
        first_seen_at_ns=row.first_seen_at_ns,
        last_seen_at_ns=row.last_seen_at_ns,
        newest_mtime_ns=row.newest_mtime_ns,
    )
