"""The commands that move bytes, and those that show them: flush, restore, flows, du, reconcile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from ckptgov.errors import UsageError
from ckptgov_cli import service_verbs
from ckptgov_cli.options import (
    EXIT_CODES,
    DryRun,
    Json,
    Node,
    NoWait,
    Target,
    opened_governor,
    parsed,
)
from ckptgov_cli.stopping import stopping

WATCH_S = 30.0
OLDER_THAN_S = 7 * 86400.0
STAGING_OLDER_THAN_S = 86400.0


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for name, command in (
        ("flush", flush),
        ("restore", restore),
        ("flows", flows),
        ("du", du),
        ("reconcile", reconcile),
    ):
        app.command(name, epilog=EXIT_CODES)(command)


def flush(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run's name or a directory of it.")
    ] = None,
    every_run: Annotated[bool, typer.Option("--all", help="Every registered run.")] = False,
    step: Annotated[
        int | None,
        typer.Option("--step", metavar="N", min=0, help="This step only, chosen or not."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TIER", help="To this tier (default: along every link)."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on: flush what is sealed from now on, too.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="S", min=0.1, help="With --watch: seconds between.")
    ] = WATCH_S,
    node: Node = None,
    no_wait: NoWait = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Copy sealed checkpoints to a slower, more durable tier and prove them there.

    Newest first, what has no durable copy before replicas, one checkpoint finished before the
    next. Every byte is compared with the manifest on its way; the copy becomes visible whole or
    not at all. Killed or stopped at any point, the same command goes on from what has arrived.
    """
    from ckptgov_cli import render_moving

    if (run is None) is not every_run:
        raise UsageError("name a run, or --all", hint="see 'ckptgov flush --help'")
    if watch and (dry_run or json):
        raise UsageError("--watch goes with neither --dry-run nor --json")
    if no_wait:
        other = watch or dry_run or node is not None
        return service_verbs.begin_flush(run, step, to, other=other, as_json=json)
    with stopping() as stop:
        while True:
            with opened_governor(word="moved") as governor:  # nothing stays open between passes
                answer = governor.flush(
                    run, step=step, to=to, node=node, dry_run=dry_run, stop=stop
                )
            code = render_moving.flushed(answer, as_json=json, quiet=watch)
            if not watch or stop():
                return code
            _wait(every, stop)
            if stop():
                return code


def _wait(seconds: float, stop: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop():
        time.sleep(min(0.2, seconds))


def restore(
    target: Target,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The directory to bring it to.")],
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", min=0, help="This step (default: latest).")
    ] = None,
    from_tier: Annotated[
        str | None, typer.Option("--from", metavar="TIER", help="Read from this tier only.")
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option("--match", metavar="GLOB", help="Only these shards; may be given often."),
    ] = None,
    purpose: Annotated[
        str, typer.Option("--purpose", metavar="P", help="resume (default) or weights.")
    ] = "resume",
    hardlink: Annotated[
        bool,
        typer.Option(
            "--hardlink",
            help="Link instead of copying on one file system; a trainer "
            "that overwrites in place would overwrite the original.",
        ),
    ] = False,
    node: Node = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Bring a checkpoint to a directory: every shard from the nearest place that has it sound.

    Compared with the manifest on the way and read back; staged, then renamed into place. A bad
    shard is taken from another copy, and the copy it came from is set aside.
    """
    from ckptgov.model.checkpoint import Purpose
    from ckptgov.model.facts import Query
    from ckptgov_cli import render_moving

    if purpose not in tuple(Purpose):
        raise UsageError(f"--purpose {purpose}: resume or weights")
    with stopping() as stop, opened_governor(word="moved") as governor:
        answer = governor.restore(
            target,
            to=to,
            step=step,
            query=Query(purpose=Purpose(purpose)),
            hardlink=hardlink,
            from_tier=from_tier,
            match=tuple(match or ()),
            node=node,
            dry_run=dry_run,
            stop=stop,
        )
    return render_moving.restored(answer, as_json=json, dry_run=dry_run)


def flows(json: Json = False) -> int:
    """Show who moves what at what rate, who waits and why, and how long it will take."""
    from ckptgov_cli import render_moving

    with opened_governor() as governor:
        found = governor.flows()
    return render_moving.flows(found, as_json=json)


def du(
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="This run only.")] = None,
    tier: Annotated[
        str | None, typer.Option("--tier", metavar="TIER", help="This tier only.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="WHAT", help="Sum up by team, run, tier, age or state, largest first."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Show what takes room, by tier, run and state, pending uploads and left-overs included.

    Condemned bytes and those in the trash are told apart, and so is how fast each tier grows and
    when it will be full. Runs that nothing was heard of for long are named.
    """
    from ckptgov.wire.usage_sums import By
    from ckptgov_cli import render_usage

    if by is not None and by not in tuple(By):
        raise UsageError(f"--by {by}: write {', '.join(By)}")
    with opened_governor() as governor:
        answer = governor.du(run=run, tier=tier)
    wanted = None if by is None else By(by)
    return render_usage.usage(answer, as_json=json, by=wanted)


def reconcile(
    tiers: Annotated[
        list[str] | None, typer.Argument(metavar="[TIER]...", help="Default: every tier.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="D",
            help="Age of left-overs that nobody works on, to go; 0s: at the first look. "
            "Default: 7d, with --staging 24h.",
        ),
    ] = None,
    staging: Annotated[
        bool,
        typer.Option(
            "--staging",
            help="Also remove what trainers left under temporary names, once nothing in it "
            "changed for so long between two looks and its bytes are of no checkpoint.",
        ),
    ] = False,
    no_wait: NoWait = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Bring catalog and tiers together again, and clear what dead movers left behind.

    Uploads and temporary files of a copy that stands whole go at once; others when they are old
    enough and two looks so long apart (three days at most) found them the same. What is being
    moved is never touched, however old. What trainers left behind, what belongs to no run, and
    trash past its time are told.
    """
    from ckptgov.config.units import parse_duration
    from ckptgov_cli import render_usage

    given_s = parsed("--older-than", older_than, parse_duration)
    older_than_s = OLDER_THAN_S if given_s is None else float(given_s)
    if no_wait:
        return service_verbs.begin_reconcile(
            tiers or [],
            older_than_s,
            _staging_s(given_s) if staging else None,
            other=dry_run,
            as_json=json,
        )
    with opened_governor() as governor:
        answer = governor.reconcile(
            tiers or [],
            older_than_s=older_than_s,
            staging_older_than_s=_staging_s(given_s) if staging else None,
            dry_run=dry_run,
        )
    return render_usage.reconciled(answer, as_json=json, dry_run=dry_run)


def _staging_s(given_s: int | None) -> float:
    return STAGING_OLDER_THAN_S if given_s is None else float(given_s)
