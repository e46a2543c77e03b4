"""Doctor: is everything here as ckptgov needs it? A tier that was never checked is checked."""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.errors import CkptgovError
from ckptgov.model.answers import Check
from ckptgov.model.policy import Policy
from ckptgov.ops.context import Context
from ckptgov.ops.doctor_policies import policies_of, retention_checks
from ckptgov.ops.doctor_room import room_checks
from ckptgov.ops.rebuild import check
from ckptgov.ops.tiers import recorded_checks
from ckptgov.storage.mounts import filesystem_of


def doctor(context: Context) -> tuple[Check, ...]:
    """Every check with severity and fix, the failures last to be read first."""
    found: list[Check] = [_home(context)]
    try:
        identity = context.catalog.identity()
        found.append(
            Check(
                name="catalog",
                severity="ok",
                text=f"catalog {identity.uuid}, epoch {identity.epoch}",
            )
        )
        found += check(context, context.catalog)
    except CkptgovError as error:
        found.append(
            Check(name="catalog", severity="failure", text=error.message, fix=error.hint or "")
        )
        return _ordered(found)
    for tier in context.settings.tiers:
        name = f"tier {tier.name}" + (f"@{tier.node}" if tier.node else "")
        found += [
            Check(name=f"{name} {one.name}", severity=one.severity, text=one.text, fix=one.fix)
            for one in recorded_checks(context, tier)
        ]
    policies, wrong = policies_of(context)
    found += [*wrong, *_looked_up(context, policies)]
    if not context.settings.tiers:
        found.append(
            Check(
                name="tiers",
                severity="warning",
                text="no tier is configured",
                fix="'ckptgov tier add NAME DIR --ingest' or 'ckptgov scan DIR'",
            )
        )
    return _ordered(found)


def _looked_up(context: Context, policies: Sequence[Policy]) -> list[Check]:
    """What catalog and tiers tell of room and retention; a look that fails is told as such."""
    found: list[Check] = []
    for name, checks in (("room", room_checks), ("retention", retention_checks)):
        try:
            found += checks(context, policies)
        except CkptgovError as error:
            found.append(
                Check(name=name, severity="failure", text=error.message, fix=error.hint or "")
            )
    return found


def _home(context: Context) -> Check:
    filesystem = filesystem_of(context.settings.home)
    where = f"{context.settings.home} ({filesystem.type})"
    if filesystem.is_network:
        return Check(
            name="home",
            severity="failure",
            text=f"{where} is a network file system",
            fix="set CKPTGOV_HOME to a local disk",
        )
    return Check(name="home", severity="ok", text=where)


def _ordered(checks: Sequence[Check]) -> tuple[Check, ...]:
    rank = {"ok": 0, "warning": 1, "failure": 2}
    return tuple(sorted(checks, key=lambda one: rank[one.severity]))
