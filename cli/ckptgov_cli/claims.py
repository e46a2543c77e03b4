"""What people say of checkpoints and runs: pins, leases, metrics, the end of a run."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer
from msgspec import Struct

from ckptgov.errors import CkptgovError, LeaseLost, UsageError
from ckptgov_cli import output
from ckptgov_cli.options import EXIT_CODES, DryRun, Json, Target, opened_governor, parsed

if TYPE_CHECKING:
    from ckptgov.model.journal import Record

_LEASE_EPILOG = (
    EXIT_CODES.replace("Exit codes:", "Exit codes before the command was started:")
    + "\nAfter that its own, or 128 + the signal it died of.\n"
)
_SHORTEST_LEASE_S = 10

Step = Annotated[int, typer.Argument(metavar="STEP", min=0, help="Its step.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded.")]
PinName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="The pin's name; policies may keep by it. Default: step-STEP.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module, those about a whole run below 'run'."""
    for name, command in (("pin", pin), ("unpin", unpin), ("metric", metric)):
        app.command(name, epilog=EXIT_CODES)(command)
    app.command("lease", epilog=_LEASE_EPILOG)(lease)
    (runs,) = [one.typer_instance for one in app.registered_groups if one.name == "run"]
    assert runs is not None
    for name, about_run in (("finish", finish), ("retire", retire), ("delete", delete)):
        runs.command(name, epilog=EXIT_CODES)(about_run)


def pin(
    target: Target,
    step: Step,
    name: PinName = None,
    reason: Reason = "",
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="D|TIME",
            help="How long it protects (30d), or until when (2027-01-31T12:00:00Z); default: for "
            "good. A policy that keeps by the name goes on doing so afterwards.",
        ),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Keep a checkpoint, whatever policies say, until it is unpinned or its time is over.

    Of several attempts at one step the newest that stands is meant. The pin is recorded in the
    run's journal, so that it outlives the catalog. 'ckptgov unpin' with the same name ends it.
    """
    from ckptgov_cli import render_claims

    if not reason.strip():
        raise UsageError("pin: say why with --reason TEXT")
    named = _named(name, step)
    _check_own(named)
    ttl_s = _until(until)
    with opened_governor() as governor:
        record = governor.pin(
            target, step=step, name=named, reason=reason, ttl_s=ttl_s, dry_run=dry_run
        )
    return render_claims.claim(record, step=step, as_json=json, dry_run=dry_run)


def unpin(
    target: Target,
    step: Step,
    name: PinName = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """End a pin: policies decide about the checkpoint again."""
    from ckptgov_cli import render_claims

    with opened_governor() as governor:
        record = governor.pin(
            target,
            step=step,
            name=_named(name, step),
            reason=reason or None,
            ttl_s=None,
            undo=True,
            dry_run=dry_run,
        )
    return render_claims.claim(record, step=step, as_json=json, dry_run=dry_run)


def _named(name: str | None, step: int) -> str:
    return f"step-{step}" if name is None else name


def _check_own(name: str) -> None:
    from ckptgov.ops.claims import LEASE

    if name.startswith(LEASE):
        raise UsageError(
            f"--name {name}: names that begin with {LEASE!r} belong to 'ckptgov lease'"
        )


def _until(text: str | None) -> float | None:
    """Seconds from now."""
    from ckptgov.config.units import parse_duration
    from ckptgov.model.clock import SystemClock

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return parsed("--until", text, parse_duration)
    if moment.tzinfo is None:
        raise UsageError(f"--until {text}: say in which time zone", hint=f"write {text}Z for UTC")
    left_s = moment.timestamp() - SystemClock().now_ns() / 1e9
    if left_s <= 0:
        raise UsageError(f"--until {text}: is over")
    return left_s


def lease(
    target: Target,
    step: Step,
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")],
    ttl: Annotated[
        str,
        typer.Option(
            "--ttl", metavar="D", help="How long the claim stands if this process is killed."
        ),
    ] = "4h",
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why, for whoever reads it.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Run a command while a checkpoint is kept for it: nothing removes it meanwhile.

    The claim is renewed well before its time is over and ended with the command; killed, it runs
    out. Where it cannot be taken the command is not started. Signals are passed on, and the
    command's exit code is ours.
    """
    try:
        return _lease(target, step, words, ttl=ttl, reason=reason, dry_run=dry_run, as_json=json)
    except CkptgovError as error:  # here, for the command may have a --json of its own
        return _failed(error, as_json=json)


def _lease(
    target: str,
    step: int,
    words: list[str],
    *,
    ttl: str,
    reason: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    from ckptgov.config.units import parse_duration
    from ckptgov.integrations.leasing import run_leased
    from ckptgov.model.clock import SystemClock
    from ckptgov.ops.claims import LEASE
    from ckptgov_cli import render_claims

    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run: stdout is the command's")
    ttl_s = parsed("--ttl", ttl, parse_duration)
    if ttl_s < _SHORTEST_LEASE_S:
        raise UsageError(f"--ttl {ttl}: is at least {_SHORTEST_LEASE_S}s")
    claim = _Lease(
        target=target, step=step, name=f"{LEASE}{uuid4()}", reason=reason, ttl_s=float(ttl_s)
    )
    if dry_run:
        record = claim.take(dry_run=True)
        return render_claims.claim(record, step=step, as_json=as_json, dry_run=True)
    claim.take_standing()
    return run_leased(
        words,
        os.environ,
        clock=SystemClock(),
        ttl_s=claim.ttl_s,
        renew=claim.renew,
        release=claim.release,
        talk=output.talk,
    )


class _Lease(Struct, frozen=True, kw_only=True):
    """A claim that is told through a governor of its own each time: threads share none."""

    target: str
    step: int
    name: str
    reason: str | None
    ttl_s: float

    def take(self, *, dry_run: bool = False) -> Record:
        """Claim it from now on, also where it is claimed already."""
        with opened_governor() as governor:
            return governor.pin(
                self.target,
                step=self.step,
                name=self.name,
                reason=self.reason,
                ttl_s=self.ttl_s,
                dry_run=dry_run,
            )

    def renew(self) -> None:
        """Claim it for as long again."""
        self.take()

    def release(self) -> None:
        """Claim it no longer."""
        with opened_governor() as governor:
            governor.pin(
                self.target, step=self.step, name=self.name, reason=None, ttl_s=None, undo=True
            )

    def take_standing(self) -> None:
        """Claim it, and see that no removal which began before was faster.

        What begins later sees the claim.

        Raises:
            NoneRestorable: it is gone, or going. The claim is ended.
            LeaseLost: another attempt at the step took its place. The claim is ended.
        """
        try:
            record, again = self.take(), self.take(dry_run=True)
            if _content_id(again) != _content_id(record):
                raise LeaseLost(f"step {self.step} was saved again meanwhile", hint="ask again")
        except CkptgovError:
            with suppress(CkptgovError):
                self.release()
            raise


def _content_id(record: Record) -> str | None:
    from ckptgov.model.journal import Pin

    return record.content_id if isinstance(record, Pin) else None


def _failed(error: CkptgovError, *, as_json: bool) -> int:
    if as_json:
        from ckptgov.wire.documents import error_document

        output.emit(error_document(error))
    else:
        output.complain(error)
    return error.exit_code


def metric(
    target: Target,
    step: Step,
    pair: Annotated[
        str, typer.Argument(metavar="NAME=VALUE", help="A decimal number, as it was measured.")
    ],
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Tell a metric of a checkpoint after it was sealed, for policies that keep the best.

    It outweighs what the trainer's own files said; told again, the later one counts. nan and inf
    are told, and never win.
    """
    from ckptgov_cli import render_claims

    name, equals, value = pair.rpartition("=")
    if not equals:
        raise UsageError(f"metric {pair!r}: write NAME=NUMBER")
    with opened_governor() as governor:
        record = governor.set_metric(target, step=step, name=name, value=value, dry_run=dry_run)
    return render_claims.claim(record, step=step, as_json=json, dry_run=dry_run)


def finish(target: Target, dry_run: DryRun = False, json: Json = False) -> int:
    """Say that a run's trainer is done: it is never called dead.

    Nothing else changes; its checkpoints are kept as before. A save that is sealed later lifts it.
    """
    from ckptgov_cli import render_claims

    with opened_governor() as governor:
        record = governor.end_run(target, retire=False, dry_run=dry_run)
    return render_claims.ended(record, run=target, as_json=json, dry_run=dry_run)


def retire(target: Target, reason: Reason = "", dry_run: DryRun = False, json: Json = False) -> int:
    """Say that a run is over: its policy's rules for retired runs hold from now on.

    Nothing is removed by this. Where the policy says so, its last checkpoints may go by a later
    plan. A save that is sealed later lifts it.
    """
    from ckptgov_cli import render_claims

    with opened_governor() as governor:
        record = governor.end_run(target, retire=True, reason=reason or None, dry_run=dry_run)
    return render_claims.ended(record, run=target, as_json=json, dry_run=dry_run)


def delete(
    target: Target,
    confirm: Annotated[
        str, typer.Option("--confirm", metavar="RUN", help="The run's name once more.")
    ],
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Plan the removal of every checkpoint of a retired run; 'ckptgov apply' carries it out.

    Removes nothing by itself. What is pinned, leased or started from stays.
    """
    from ckptgov_cli import render_plans

    with opened_governor() as governor:
        stored = governor.delete_run(target, confirm=confirm, dry_run=dry_run)
    return render_plans.plan(stored, as_json=json, dry_run=dry_run)
