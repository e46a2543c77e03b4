"""A tier under reconciliation: its runs as they lie there, and what could not be looked at."""

from __future__ import annotations

from msgspec import Struct

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.errors import CkptgovError
from ckptgov.layouts.tree import join
from ckptgov.model.settings import Scope, TierSettings
from ckptgov.ops.context import Context
from ckptgov.work.look import RunLook
from ckptgov.work.runroots import run_roots_below
from ckptgov.work.tier import Place, read_identity


class Here(Struct, kw_only=True):
    """One run root at one tier, as it was found. ``manifests``: content ids' first digits."""

    root: RunRootFacts
    look: RunLook | None = None
    manifests: frozenset[str] = frozenset()
    unknown: str = ""

    @property
    def is_gone(self) -> bool:
        """A registered one whose directory is not there any more."""
        return self.look is None and not self.unknown


class AtTier(Struct, kw_only=True):
    """One tier under reconciliation."""

    settings: TierSettings
    place: Place | None = None
    here: list[Here] = []
    roots: tuple[str, ...] = ()  # of every run, of anybody's catalog
    unknown: str = ""
    failures: list[tuple[str, CkptgovError]] = []
    error: CkptgovError | None = None


def meet(context: Context, settings: TierSettings) -> AtTier:
    """Look at a tier and at every run root there; what fails is told in the answer."""
    met = AtTier(settings=settings, here=[], failures=[])
    try:
        met.place = context.place(settings)
        identity = read_identity(met.place.storage)
        found = run_roots_below(met.place.storage, "")
    except CkptgovError as error:
        met.error = error
        return met
    if identity is not None and identity.catalog != context.catalog.identity().uuid:
        met.unknown = f"catalog {identity.catalog} governs this tier"
    registered = _roots_at(context, met.place)
    met.roots = tuple(sorted({*found, *registered}))
    for path in met.roots:
        root = registered.get(path)
        here = _look(context, met, path, root)
        if here is not None:
            met.here.append(here)
    return met


def _roots_at(context: Context, place: Place) -> dict[str, RunRootFacts]:
    return {
        root.path: root
        for run in context.catalog.runs()
        for root in context.catalog.roots_of(run.identity.run_id)
        if root.place == place.uuid
    }


def _look(context: Context, met: AtTier, path: str, registered: RunRootFacts | None) -> Here | None:
    """One run root; None for a directory that is no run of anybody's catalog."""
    assert met.place is not None
    is_partial = met.settings.scope is Scope.NODE
    try:
        look = context.look(met.place, path, partial=is_partial, run=None)
        for stored in look.stored:  # whatever has to be read, before a transaction begins
            look.sealed(stored)
    except CkptgovError as error:
        met.failures.append((path or ".", error))
        where = registered or _root_facts(met.place, path, run_id="", sidecar=None)
        return Here(root=where, unknown=f"could not look at its run: {error.message}")
    manifests = frozenset(one.content_prefix for one in look.stored)
    if look.identity is None:
        if registered is None:
            return None
        return Here(root=registered, manifests=manifests, unknown=_why_none(met.place, path))
    run_id = look.identity.run_id
    if registered is not None and registered.run_id != run_id:
        return Here(root=registered, unknown=f"{path or '.'}: is another run's now")
    root = registered or _root_facts(met.place, path, run_id=run_id, sidecar=look.store.sidecar)
    if context.catalog.run_by_id(run_id) is None:
        return Here(root=root, unknown=f"run {look.identity.name!r} is not in the catalog")
    return Here(root=root, look=look, manifests=manifests)


def _why_none(place: Place, path: str) -> str:
    """A run root that is away was removed; one that stands without its identity may be a mount
    point with nothing mounted on it."""
    try:
        place.storage.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return f"{path or '.'}: no run.json in it any more; is something not mounted there?"


def _root_facts(place: Place, path: str, *, run_id: str, sidecar: str | None) -> RunRootFacts:
    assert place.uuid is not None
    beside = join(path, ".ckptgov") if sidecar is None else sidecar
    return RunRootFacts(run_id=run_id, place=place.uuid, path=path, sidecar=beside)
