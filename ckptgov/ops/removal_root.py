"""Which of a run's roots at a place a removal is about."""

from __future__ import annotations

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.errors import CouldNotLook
from ckptgov.model.retention import Removal
from ckptgov.ops.removing import Removing
from ckptgov.work.runstore import store_at
from ckptgov.work.tier import Place


def root_of(removing: Removing, removal: Removal, place: Place) -> RunRootFacts:
    """The run root at a place that holds a copy, or its trash.

    Raises:
        CouldNotLook: the run is not known to lie there.
    """
    roots = removing.roots(removal.run_id, removal.place)
    if not roots:
        raise CouldNotLook(f"{place.root}: where run {removal.run_id} lies there is not known")
    if len(roots) == 1:
        return roots[0]
    for root in roots:
        if removal.trash and removal.trash.startswith(f"{root.sidecar}/"):
            return root
        if store_at(place.storage, root.path).manifests_of(removal.content_id):
            return root
    return roots[0]
