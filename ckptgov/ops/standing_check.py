"""Whether what the catalog offers lies there: presence and sizes, at the places seen from here."""

from __future__ import annotations

from msgspec.structs import replace

from ckptgov.errors import CouldNotLook, StaleState
from ckptgov.model.checkpoint import Manifest
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import CheckpointFacts, CopyFacts, Finding, Reason
from ckptgov.ops.context import Context
from ckptgov.ops.standing_facts import counts, manifest_of
from ckptgov.ops.standing_run import Site, StandingRun, is_here
from ckptgov.work.copyproof import prove_copy


def is_there(context: Context, run: StandingRun, chosen: CheckpointFacts) -> bool:
    """Whether every shard lies there with its size; one whole copy that was seen is enough.

    A copy that lacks something is re-opened in the catalog; False: something was, choose again.
    What lies on another node is looked at through its agent; where that does not serve its disk,
    it is believed: the agent watches it.

    Raises:
        CouldNotLook: no place that has it could be looked at. An error is not "it is gone".
    """
    assert chosen.content_id is not None
    copies = [(is_here(context, one.node), one) for one in chosen.copies if counts(one)]
    copies.sort(key=lambda pair: (not pair[0], pair[1].shards is not None))
    manifest = manifest_of(context.catalog, run.run_id, chosen.content_id)
    errors: list[CouldNotLook] = []
    is_changed = is_believed = False
    for is_own, copy in copies:
        try:
            findings = _lacking(context, run.sites[copy.place], copy, manifest)
        except CouldNotLook as error:
            if is_own:
                errors.append(error)
            else:
                is_believed = is_believed or copy.shards is None
            continue
        if findings:
            _reopen(context, run, chosen.content_id, copy, findings)
            is_changed = True
        elif copy.shards is None:
            return True
    if is_changed:
        return False
    if errors and not is_believed:
        raise errors[0]
    return True


def _lacking(
    context: Context, site: Site, copy: CopyFacts, manifest: Manifest
) -> tuple[Finding, ...]:
    """What is missing or has another size.

    Raises:
        CouldNotLook: the place does not answer, or is another one.
    """
    tier = context.tier_of(site.place.root, site.place.node)
    if tier is None:
        raise CouldNotLook(f"tier {site.place.tier} at {site.place.root} is not configured")
    place = context.place(tier)
    proof = prove_copy(
        place.storage,
        site.root.path,
        replace(manifest, name=copy.name or manifest.name),
        None,
        granularity_ns=0,
        only=copy.shards,
    )
    unreadable = [one for one in proof.findings if one.reason is Reason.UNREADABLE]
    if unreadable:
        raise CouldNotLook(f"{unreadable[0].path}: {unreadable[0].evidence}")
    return proof.findings


def _reopen(
    context: Context,
    run: StandingRun,
    content_id: str,
    copy: CopyFacts,
    findings: tuple[Finding, ...],
) -> None:
    try:
        context.catalog.transition(
            run.run_id,
            content_id,
            copy.place,
            expected=CopyState.VERIFIED,
            to=CopyState.REOPENED,
            at_ns=context.author.clock.now_ns(),
            findings=findings,
        )
    except StaleState:
        return  # somebody else has just found it changed
    context.talk(
        f"{run.name}: {copy.name} at {copy.root} is re-opened: "
        f"{findings[0].path}: {findings[0].evidence}"
    )
