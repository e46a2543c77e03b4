"""What a restart decision needs of a directory: a run identity to write under, bytes to name."""

from __future__ import annotations

from ckptgov.errors import CouldNotLook, StorageError
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.facts import CheckpointFacts, Depth
from ckptgov.work.ask import Asked, RestartRequest
from ckptgov.work.author import Author
from ckptgov.work.look import RunLook
from ckptgov.work.runstore import writable_store
from ckptgov.work.scan import record_standing, seal
from ckptgov.work.seal import SealSettings


def request(
    asked: Asked, restart_id: str, *, author: Author, settings: SealSettings
) -> RestartRequest:
    """The request for one restart id of a run that can be looked at from here.

    Raises:
        CouldNotLook: the run's journal lies on a node's own disk, where other ranks cannot see
            what was decided.
    """
    home = asked.looks[0]
    if home.partial:
        raise CouldNotLook(
            f"{home.place.root}: a restart cannot be decided on a node's own disk",
            hint="ranks on other nodes could not see the decision: register a shared tier for "
            "the run, or run the service",
        )
    return RestartRequest(
        restart_id=restart_id,
        author=author,
        run_id=lambda: identity_of(home, author).run_id,
        seal=lambda facts: _seal_chosen(asked, facts, author, settings),
    )


def identity_of(look: RunLook, author: Author) -> RunIdentity:
    """The run's identity, written now if nothing was ever written to the run root.

    Raises:
        CouldNotLook: the run root cannot be written.
    """
    if look.identity is None:
        wanted = RunIdentity(run_id=author.new_id(), name=default_name(look))
        try:
            look.store, look.identity = writable_store(look.store, wanted)
        except StorageError as error:
            raise CouldNotLook(
                f"the run's journal cannot be written: {error.message}", hint=error.hint
            ) from error
    return look.identity


def default_name(look: RunLook) -> str:
    """The run root's base name."""
    path = look.run_root or look.place.root.rstrip("/")
    return path.rpartition("/")[2] or "run"


def _complete(asked: Asked, content_id: str, author: Author, settings: SealSettings) -> None:
    """A manifest whose sealer was killed before its record gets the record now."""
    if any(content_id in look.sealed_records for look in asked.looks):
        return
    look = asked.looks[0]
    for stored in look.stored:
        copy = look.sealed(stored)
        if copy is not None and copy.manifest.content_id == content_id:
            identity = identity_of(look, author)
            record_standing(look, identity, copy, author=author, settings=settings)
            return


def _seal_chosen(
    asked: Asked, facts: CheckpointFacts, author: Author, settings: SealSettings
) -> str:
    """The content id of the chosen one; sealed, or its seal completed, where it must be."""
    if facts.content_id is not None:
        _complete(asked, facts.content_id, author, settings)
        return facts.content_id
    for look in asked.looks:
        found = next(
            (
                one
                for one in look.survey.found
                if (one.name, one.variant) == (facts.name, facts.variant)
            ),
            None,
        )
        if found is None:
            continue
        identity = identity_of(look, author)
        sighting = look.sighting(found, Depth.DEEP)
        if sighting.findings:
            first = sighting.findings[0]
            raise CouldNotLook(f"{first.path}: {first.evidence} ({first.reason.value})")
        manifest = seal(look, sighting, identity=identity, author=author, settings=settings)
        look.refresh()
        return manifest.content_id
    raise CouldNotLook(f"{facts.name}: went away while it was decided")
