"""An unsealed checkpoint as the catalog last sighted it: it gives reasons, never an answer."""

from __future__ import annotations

from ckptgov.catalog.facts import PlaceFacts, SightingFacts
from ckptgov.layouts.base import resume_args
from ckptgov.model.checkpoint import Evidence, Purpose
from ckptgov.model.facts import CheckpointFacts, CopyFacts, Finding, Found, Reason


def facts_of_sighting(
    one: SightingFacts,
    place: PlaceFacts,
    *,
    root: str,
    name: str = "",
    line: int = 1,
    is_reachable: bool = True,
) -> CheckpointFacts:
    """The facts; ``root`` and ``name`` are where its copy is said to lie."""
    findings = one.findings or (
        Finding(Reason.UNVERIFIED, one.name, "not sealed yet: the next scan will"),
    )
    found = Found(
        name=one.name,
        layout=one.layout,
        step=one.step,
        step_kind=one.step_kind,
        variant=one.variant,
    )
    copy = CopyFacts(
        place=one.place,
        tier=place.tier,
        node=place.node,
        root=root,
        name=name,
        shards=(),
        evidence=Evidence.NONE,
        is_reachable=is_reachable,
    )
    return CheckpointFacts(
        name=one.name,
        layout=one.layout,
        step=one.step,
        step_kind=one.step_kind,
        content_id=None,
        purposes=tuple(Purpose),
        world_size=None,
        reshardable=None,
        bytes=one.bytes,
        line=line,
        evidence=Evidence.NONE,
        findings=findings,
        notes=one.notes,
        copies=(copy,),
        resume=resume_args(found, step=one.step, tag=one.name.rpartition("/")[2]),
        newest_mtime_ns=one.newest_mtime_ns,
        variant=one.variant,
    )
