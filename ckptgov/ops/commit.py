"""Commit: seal one checkpoint that its writer declares complete."""

from __future__ import annotations

from msgspec.structs import replace

from ckptgov.errors import UsageError
from ckptgov.model.answers import SealedCheckpoint
from ckptgov.ops.context import Context
from ckptgov.ops.record import record_look, record_run
from ckptgov.ops.scan import open_run
from ckptgov.work.commit import declared_sighting
from ckptgov.work.runstore import writable_store
from ckptgov.work.scan import seal


def commit(
    context: Context,
    path: str,
    *,
    run: str | None,
    step: int | None,
    node: str | None,
    metrics: tuple[tuple[str, str], ...] = (),
    dry_run: bool = False,
) -> SealedCheckpoint:
    """Seal the checkpoint at ``path``; its run root is registered if it is not yet.

    Raises:
        UsageError: the path is no checkpoint below a run root.
        VerificationFailed: a shard is missing, short or corrupt.
    """
    opened = open_run(context, path, run=run, node=node, dry_run=dry_run)
    look = opened.look
    sighting = declared_sighting(look, opened.name, step=step)
    if sighting.step is None:
        raise UsageError(
            f"{path}: nothing tells its step", hint="say it: 'ckptgov commit DIR --step N'"
        )
    if not dry_run:
        look.store, standing = writable_store(look.store, opened.identity)
        look.identity = replace(standing, name=opened.identity.name)
        at_ns = context.author.clock.now_ns()
        record_run(context.catalog, look, look.identity, at_ns)
        manifest = seal(
            look,
            sighting,
            identity=look.identity,
            author=context.author,
            settings=context.seal_settings_at(look.place),
            metrics=metrics,
        )
        look.refresh()
        record_look(context.catalog, look, look.identity.run_id, at_ns=at_ns, sightings=None)
        return SealedCheckpoint(
            name=manifest.name,
            step=manifest.step,
            step_kind=manifest.step_kind,
            content_id=manifest.content_id,
            bytes=manifest.bytes,
            shards=len(manifest.shards),
            is_new=True,
        )
    return SealedCheckpoint(
        name=sighting.name,
        step=sighting.step,
        step_kind=sighting.step_kind,
        content_id="",
        bytes=sighting.bytes,
        shards=len(sighting.shards),
        is_new=True,
    )
