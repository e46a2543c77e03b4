"""Runs: create and list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ckptgov.catalog.facts import PlaceFacts, RunFacts, RunRootFacts
from ckptgov.errors import UsageError
from ckptgov.model.checkpoint import Expect, RunIdentity
from ckptgov.model.settings import Scope
from ckptgov.ops.context import Context, make_directory
from ckptgov.ops.record import record_run
from ckptgov.ops.tiers import tier_made_for
from ckptgov.work import addresses
from ckptgov.work.locate import normal_path
from ckptgov.work.runstore import writable_store


class ListedRun(Struct, frozen=True, kw_only=True):
    """A registered run and where it lies."""

    name: str
    run_id: str
    roots: tuple[str, ...]
    checkpoints: int
    bytes: int


def create_run(
    context: Context,
    name: str,
    *,
    root: str | None,
    expect: Expect | None,
    dry_run: bool = False,
) -> ListedRun:
    """Register a run before its first checkpoint: its run root is made if it is absent.

    ``root`` defaults to the run's name below the first shared tier.

    Raises:
        UsageError: the name is taken, or there is no place for it.
    """
    check_run_name(name)
    if context.catalog.run_by_name(name) is not None:
        raise UsageError(f"run {name!r} exists already", hint="'ckptgov run list' shows it")
    path = _root_for(context, name, root)
    identity = RunIdentity(run_id=context.author.new_id(), name=name, expect=expect)
    if dry_run:
        return ListedRun(name=name, run_id="", roots=(path,), checkpoints=0, bytes=0)
    if not addresses.is_url(path):  # a store has no empty directories
        make_directory(path)
    real = addresses.real(path)
    tier, below = tier_made_for(context, real, real, node=None)
    look = context.look(context.place(tier), below, partial=tier.scope is Scope.NODE, run=name)
    look.store, standing = writable_store(look.store, identity)
    if standing.run_id != identity.run_id:
        raise UsageError(f"{path} belongs to run {standing.name!r} already")
    record_run(context.catalog, look, standing, context.author.clock.now_ns())
    return ListedRun(name=name, run_id=standing.run_id, roots=(path,), checkpoints=0, bytes=0)


def check_run_name(name: str) -> str:
    """``name`` or ``team/name``; printable, no path tricks.

    Raises:
        UsageError: it is neither.
    """
    parts = name.split("/")
    if (
        len(parts) > 2
        or not name.isprintable()
        or any(part in ("", ".", "..") or part != part.strip() for part in parts)
        or len(name.encode()) > 200
        or name.startswith(("~", "-"))
    ):
        raise UsageError(f"run name {name!r}: write 'name' or 'team/name'")
    return name


def _root_for(context: Context, name: str, root: str | None) -> str:
    if root is not None:
        return normal_path(root)
    shared = [one for one in context.settings.tiers if one.scope is Scope.SHARED]
    if not shared:
        raise UsageError(
            "no shared tier is configured",
            hint="say where the run lies: --root DIR, or add a tier first",
        )
    return addresses.join(shared[0].root, name)


def list_runs(context: Context) -> tuple[ListedRun, ...]:
    """Every registered run, by name."""
    catalog = context.catalog
    runs, roots, totals = catalog.runs(), catalog.roots(), catalog.totals()
    places = {one.place: one for one in catalog.places()}  # last: no root's place is missing
    by_run: dict[str, list[RunRootFacts]] = {}
    for root in roots:
        by_run.setdefault(root.run_id, []).append(root)
    return tuple(_listed(run, by_run.get(run.identity.run_id, []), places, totals) for run in runs)


def listed_run(context: Context, run: RunFacts) -> ListedRun:
    """One registered run."""
    catalog, run_id = context.catalog, run.identity.run_id
    roots, totals = catalog.roots_of(run_id), catalog.totals(run_id)
    return _listed(run, roots, {one.place: one for one in catalog.places()}, totals)


def _listed(
    run: RunFacts,
    roots: Sequence[RunRootFacts],
    places: Mapping[str, PlaceFacts],
    totals: Mapping[str, tuple[int, int]],
) -> ListedRun:
    count, size = totals.get(run.identity.run_id, (0, 0))
    return ListedRun(
        name=run.identity.name,
        run_id=run.identity.run_id,
        roots=tuple(addresses.join(places[one.place].root, one.path) for one in roots),
        checkpoints=count,
        bytes=size,
    )
