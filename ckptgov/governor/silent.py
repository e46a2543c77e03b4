"""What this host can answer by itself when the service does not: looks at the tiers it has.

Design, "Restart decisions": with the service down a decision is made the same way, from the
journal on a shared tier; with neither nothing is known, and nothing is ever begun anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckptgov.errors import CkptgovError, CouldNotLook, NeverAny
from ckptgov.model.answers import LatestAnswer
from ckptgov.model.facts import Note
from ckptgov.model.settings import Scope, Settings, TierSettings
from ckptgov.work import ask
from ckptgov.work.locate import open_place
from ckptgov.work.look import RunLook
from ckptgov.work.runroots import is_known_run, run_roots_below
from ckptgov.work.tier import Place, check_identity

if TYPE_CHECKING:
    from ckptgov.client.transport import Silent

Look = Callable[[Place, str, bool], RunLook]


def asked_of_tiers(
    run: str,
    settings: Settings,
    *,
    look: Look,
    stack: ExitStack,
    node: str | None,
    silent: Silent,
) -> ask.Asked:
    """A run as the configured tiers of this host show it, shared ones first.

    Raises:
        CouldNotLook: no shared tier of this host answers and holds the run.
    """
    looks: list[RunLook] = []
    troubles: list[Note] = []
    own = [one for one in settings.tiers if one.scope is Scope.SHARED or one.node == node]
    for tier in sorted(own, key=lambda one: one.scope is not Scope.SHARED):
        try:
            place = _opened(tier, settings, stack)
            root = _run_root(place, run, look)
        except CouldNotLook as error:
            if error.kind == "malformed":
                raise
            troubles.append(Note("unreachable", tier.root, error.message))
            continue
        if root is not None:
            _require_home(looks, troubles, tier)
            looks.append(look(place, root, tier.scope is Scope.NODE))
    if not any(not one.partial for one in looks):
        raise CouldNotLook(
            f"{silent.message}; and no shared tier of this host shows run {run}"
            + "".join(f"; {one.text}" for one in troubles),
            hint=silent.hint,
        )
    return ask.Asked(
        run=run,
        looks=tuple(looks),
        unreachable=tuple(troubles),
        node=node,
        sealed_only=True,
        step_over_limit=settings.step_over_limit,
    )


def _require_home(looks: Sequence[RunLook], troubles: Sequence[Note], tier: TierSettings) -> None:
    """Without the journal's home nobody can tell what must not be offered, or was decided."""
    if not looks and troubles and tier.scope is Scope.SHARED:
        raise CouldNotLook(f"where the run's journal may lie: {troubles[0].text}")


def _opened(tier: TierSettings, settings: Settings, stack: ExitStack) -> Place:
    place = open_place(
        tier.root,
        tier=tier.name,
        node=tier.node,
        endpoint=tier.endpoint,
        stall_s=settings.stall_s,
    )
    stack.callback(place.storage.close)
    check_identity(place.storage, tier, known_place=None)
    return place


def _run_root(place: Place, run: str, look: Look) -> str | None:
    """Where the run lies at a place: where new ones are made, else wherever its name stands."""
    if is_known_run(place.storage, run) and _is(place, run, run, look):
        return run
    return next(
        (root for root in run_roots_below(place.storage, "") if _is(place, root, run, look)), None
    )


def _is(place: Place, root: str, run: str, look: Look) -> bool:
    found = look(place, root, place.node is not None).identity
    return found is not None and found.name == run


def unknown_to_us(told: LatestAnswer, silent: Silent) -> LatestAnswer:
    """The same answer; where it says "never any", that nobody could look: the service may know."""
    if not isinstance(told.error, NeverAny):
        return told
    return replace(told, error=_beside(told.error, silent))


def _beside(error: CkptgovError, silent: Silent) -> CouldNotLook:
    return CouldNotLook(
        f"{silent.message}; on the tiers of this host: {error.message}", hint=silent.hint
    )
