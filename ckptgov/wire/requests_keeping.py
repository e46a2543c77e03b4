"""What the API is asked about what stays and what goes: plans, policies, pins, claims, ends.

As ``requests``: decoded strictly, and judged as a whole before anything is done.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ckptgov.model.retention import PlanState
from ckptgov.wire.requests import Body, ContentId, Name, Query, Step, Words

_LONGEST_READ_S = 86400.0

PolicyText = Annotated[str, Meta(min_length=1, max_length=2**20)]
Seconds = Annotated[float, Meta(gt=0, le=100 * 365 * 86400.0)]


class PlansQuery(Query, frozen=True, kw_only=True):
    """The newest plans, in one state only."""

    state: PlanState | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


class MakePlan(Body, frozen=True, kw_only=True):
    """A plan of one run, or of all. With ``policy``, the text of a policy file that is not in
    force, or ``dry_run`` it is only told, and not stored."""

    run: Name | None = None
    policy: PolicyText | None = None
    dry_run: bool = False


class ApprovePlan(Body, frozen=True, kw_only=True):
    """Why a plan that goes beyond a cap may be applied."""

    reason: Words
    dry_run: bool = False


class ApplyPlan(Body, frozen=True, kw_only=True):
    """``strict``: nothing at all where one entry has changed."""

    strict: bool = False
    dry_run: bool = False


class GoOn(Body, frozen=True, kw_only=True):
    """Go on with whatever earlier plans condemned."""

    dry_run: bool = False


class BringBack(Body, frozen=True, kw_only=True):
    """What is condemned or in the trash, of a run or of one step of it."""

    step: Step | None = None
    dry_run: bool = False


class JudgeBy(Body, frozen=True, kw_only=True):
    """The text of a policy file to judge by; left out: by the policy in force."""

    policy: PolicyText | None = None


class CheckPolicy(Body, frozen=True, kw_only=True):
    """The text of a policy file; left out: those in force, and what they say of every run."""

    text: PolicyText | None = None
    file: Name = "text"


class PinCheckpoint(Body, frozen=True, kw_only=True):
    """Keep a checkpoint under a name: for good, for ``ttl_s`` seconds, or (``undo``) no longer."""

    step: Step
    name: Name
    reason: Words | None = None
    ttl_s: Seconds | None = None
    undo: bool = False
    dry_run: bool = False


class EndRun(Body, frozen=True, kw_only=True):
    """Why the run is over."""

    reason: Words | None = None
    dry_run: bool = False


class DeleteRun(Body, frozen=True, kw_only=True):
    """``confirm``: the run's name once more."""

    confirm: Name
    dry_run: bool = False


class TellMetric(Body, frozen=True, kw_only=True):
    """A metric of a checkpoint; ``value`` is a decimal number as it was measured, nan or inf."""

    step: Step
    name: Name
    value: Annotated[str, Meta(min_length=1, max_length=64)]
    dry_run: bool = False


class ClaimToRead(Body, frozen=True, kw_only=True):
    """A checkpoint that somebody reads for up to ``ttl_s`` seconds, unless renewed."""

    content_id: ContentId
    ttl_s: Annotated[float, Meta(gt=0, le=_LONGEST_READ_S)]
    reason: Words = ""


class RenewClaim(Body, frozen=True, kw_only=True):
    """Read on for so long, counted from now."""

    ttl_s: Annotated[float, Meta(gt=0, le=_LONGEST_READ_S)]
