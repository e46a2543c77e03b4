"""Whose is what lies at a place: paths below a run's root to the checkpoints that name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.layouts.tree import join, split
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.manifest.names import without_attempt
from ckptgov.model.checkpoint import Evidence, Manifest
from ckptgov.ops.context import Context
from ckptgov.storage.contract import TEMP_PREFIX
from ckptgov.work.look import RunLook, SealedCopy


class RunHere(Struct, frozen=True, kw_only=True):
    """A run at this place. ``root`` and ``sidecar`` are below the tier root.

    ``whole`` are the content ids that lie here whole and verified. ``names`` are those each
    content id has anywhere, first the one it was sealed under. ``owners`` tells for a path below
    the run root the content ids whose manifests name it. ``unknown`` says in words why nothing of
    the run may be judged, where that is so.
    """

    run: str
    root: str
    sidecar: str
    whole: frozenset[str] = frozenset()
    names: Mapping[str, tuple[str, ...]] = {}
    owners: Callable[[str], Sequence[str]] = lambda _path: ()
    unknown: str = ""

    def has(self, path: str) -> bool:
        """Whether a path below the tier root lies in the run's root or its sidecar."""
        return any(top == "" or path.startswith(f"{top}/") for top in (self.root, self.sidecar))


def run_here(
    context: Context, run: str, root: RunRootFacts, look: RunLook | None, *, unknown: str
) -> RunHere:
    """A run as a look at this place found it; without a look, as the catalog knows it."""
    copies = [] if look is None else _copies(look)
    names = _names(context, root, copies)
    here = {copy.manifest.content_id: copy.manifest.name for copy in copies}

    def owners(path: str) -> Sequence[str]:
        if split(path)[1].startswith(TEMP_PREFIX):  # went along when what was staged was renamed
            return [one for one, name in here.items() if path.startswith(f"{name}/")]
        found = []
        for content_id, those in names.items():
            # A copy that lies here has one name; one on its way may be given an attempt's.
            fixed = here.get(content_id)
            plain = path if fixed is not None else without_attempt(path)
            wanted = [fixed] if fixed is not None else [without_attempt(name) for name in those]
            if any(plain.startswith(name) for name in wanted) and any(
                plain in _paths(_manifest(context, root.run_id, content_id), name)
                for name in wanted
            ):
                found.append(content_id)
        return found

    return RunHere(
        run=run,
        root=root.path,
        sidecar=root.sidecar,
        whole=frozenset(copy.manifest.content_id for copy in copies if _is_whole(copy)),
        names=names,
        owners=owners,
        unknown=unknown,
    )


def _copies(look: RunLook) -> list[SealedCopy]:
    found = [copy for stored in look.stored if (copy := look.sealed(stored)) is not None]
    return [copy for copy in found if not look.is_gone(copy)]


def _is_whole(copy: SealedCopy) -> bool:
    is_here = len(copy.proof.held) == len(copy.manifest.shards)
    return copy.proof.evidence is Evidence.DIGEST and is_here


def _names(
    context: Context, root: RunRootFacts, copies: Sequence[SealedCopy]
) -> dict[str, tuple[str, ...]]:
    names: dict[str, list[str]] = {}
    for sealed in context.catalog.checkpoints(root.run_id):
        names[sealed.content_id] = [sealed.name]
    for placed in context.catalog.copies(root.run_id):
        names.setdefault(placed.content_id, []).append(placed.name)
    for copy in copies:
        names.setdefault(copy.manifest.content_id, []).append(copy.manifest.name)
    return {content_id: tuple(dict.fromkeys(those)) for content_id, those in names.items()}


def _manifest(context: Context, run_id: str, content_id: str) -> Manifest | None:
    """From the catalog; None for one that a dry run did not record."""
    try:
        raw = context.catalog.manifest_bytes(run_id, content_id)
    except FileNotFoundError:
        return None
    return decode_manifest(raw, where=f"the catalog's manifest of {content_id}")


def _paths(manifest: Manifest | None, name: str) -> Iterator[str]:
    """Where shards may lie for a checkpoint called ``name``: beneath it, or beside it."""
    if manifest is None:
        return
    for shard in manifest.shards:
        if shard.path == "":
            yield name
            continue
        yield join(name, shard.path)
        yield join(split(name)[0], shard.path)
