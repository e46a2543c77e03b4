"""What ``exec`` needs beyond the launcher's verbs, of a service and of local state alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptgov.client.address import is_run_name
from ckptgov.errors import CouldNotLook, NeverAny, NoneRestorable, RefusedBySafety, StaleState
from ckptgov.governor import Governor
from ckptgov.integrations.launching import Start, Wanted
from ckptgov.model.journal import NumberedRecord, Outcome, RestoreOutcome

if TYPE_CHECKING:
    from ckptgov.client.verbs import Client
    from ckptgov.model.verbs import Launcher


def fresh_epoch(verbs: Launcher, wanted: Wanted, *, allow_fresh: bool) -> int | None:
    """Record that a restart begins from nothing; its epoch, or None where nothing is decided.

    Raises:
        CkptgovError: it may not; see ``fresh.decide_fresh``.
    """
    governor = _asked(verbs, wanted.run)
    if not isinstance(governor, Governor):
        return _served_epoch(governor, wanted)
    from ckptgov.integrations.fresh import decide_fresh

    asked = governor.asked(wanted.run, node=wanted.node, sealed_only=True)
    restart = decide_fresh(asked, governor.author, wanted.restart_id, allow_fresh=allow_fresh)
    return None if restart is None else restart.epoch


def _asked(verbs: Launcher, run: str) -> Governor | Client:
    """Who answers for this run: what lies at a path is answered here, whoever was opened."""
    if isinstance(verbs, Governor):
        return verbs
    from ckptgov.governor.served import ServedGovernor

    if not isinstance(verbs, ServedGovernor):
        raise TypeError(f"{type(verbs).__name__} decides no restarts")
    return verbs.client if is_run_name(run) else verbs.local


def _served_epoch(client: Client, wanted: Wanted) -> int | None:
    """A run that a service knows by name was made there; it looks at every place of it first."""
    if wanted.restart_id is None:
        return None
    told = client.restart(
        wanted.run, wanted.query, wanted.restart_id, node=wanted.node, allow_fresh=True
    )
    if told.error is None:
        raise StaleState(f"restart {wanted.restart_id} was decided for a checkpoint meanwhile")
    if not isinstance(told.error, NeverAny):
        raise told.error
    if told.restart is None:
        raise CouldNotLook(f"{wanted.run}: the service did not say that it decided a fresh start")
    if not told.restart.decided_here:
        _require_nothing_since(client, wanted)
    return told.restart.epoch


def _require_nothing_since(client: Client, wanted: Wanted) -> None:
    """Nobody who belongs to this restart is late once something was saved by all of its ranks."""
    now = client.latest(wanted.run, wanted.query, node=wanted.node)
    if now.error is not None and not isinstance(now.error, NeverAny | NoneRestorable):
        raise now.error
    if now.chosen is not None or now.choice.verdicts:
        raise RefusedBySafety(
            f"restart {wanted.restart_id} was decided as a fresh start, and something was saved "
            "since",
            hint="this id names more than one restart: give each its own --restart-id",
        )


def report_once(
    verbs: Launcher, run: str, start: Start, outcome: RestoreOutcome, reason: str | None
) -> None:
    """Tell an outcome that no other rank of this restart told: thousands may end at once.

    A service sees to that itself.

    Raises:
        CkptgovError: it cannot be told.
    """
    assert start.restart_id is not None
    governor = _asked(verbs, run)
    if isinstance(governor, Governor):
        from ckptgov.work.answer import share_journal

        if any(_tells(one, start, outcome) for one in share_journal(governor.asked(run).looks)):
            return
    governor.report(
        run, restart_id=start.restart_id, outcome=outcome, epoch=start.epoch, reason=reason
    )


def _tells(item: NumberedRecord, start: Start, outcome: RestoreOutcome) -> bool:
    one = item.record
    return (
        isinstance(one, Outcome)
        and (one.restart_id, one.epoch) == (start.restart_id, start.epoch)
        and one.outcome is outcome
    )
