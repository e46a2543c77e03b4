"""The commands, as Typer sees them. Each calls one verb and renders its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import Annotated

import typer

from ckptgov.errors import UsageError
from ckptgov_cli import (
    agent,
    claims,
    launching,
    moving,
    planning,
    policies,
    removing,
    serve,
    service_verbs,
)
from ckptgov_cli.options import (
    EXIT_CODES,
    DryRun,
    Json,
    Node,
    NoWait,
    Target,
    opened_governor,
    opened_here,
)
from ckptgov_cli.tiers import tier_app

app = typer.Typer(
    name="ckptgov",
    help="Find training checkpoints, prove them whole by hash, and say which one restores.",
    epilog=EXIT_CODES,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
run_app_ = typer.Typer(help="Training runs.")
catalog_app = typer.Typer(help="The catalog: an index that storage can always refill.")
app.add_typer(tier_app, name="tier")
app.add_typer(run_app_, name="run")
app.add_typer(catalog_app, name="catalog")
for part in (moving, planning, removing, claims, policies, launching, serve, agent, service_verbs):
    part.register(app)


@cache
def _program(name: str | None) -> Callable[..., object]:
    """The program as far as its command of this name; None: all of it.

    Reading the types of every command takes longer than most commands do.
    """
    if name is None:
        return typer.main.get_command(app).main
    only = copy(app)
    only.registered_commands = [one for one in app.registered_commands if one.name == name]
    only.registered_groups = [one for one in app.registered_groups if one.name == name]
    return typer.main.get_group(only).main


def _named(word: str) -> str | None:
    known = {one.name for one in app.registered_commands}
    known |= {one.name for one in app.registered_groups}
    return word if word in known else None


def run_app(arguments: Sequence[str]) -> int:
    """Run one command; usage errors become ours, so that ``--json`` covers them too."""
    words = list(arguments) or ["--help"]
    try:
        run = _program(_named(words[0]))
        code = run(args=words, prog_name="ckptgov", standalone_mode=False)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "ckptgov"
        raise UsageError(error.format_message(), hint=f"see '{path} --help'") from error
    return code if isinstance(code, int) else 0


@app.command(
    "latest",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def latest(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> int:
    """Print the path of the newest checkpoint that restores.  (ckptgov latest --help)"""
    from ckptgov_cli.latest import run

    return run(arguments or [])


@app.command("scan", epilog=EXIT_CODES)
def scan(
    directories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR]...", help="Directories to look at; default: every tier with 'ingest'."
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="The run's name, for one run root.")
    ] = None,
    node: Node = None,
    no_wait: NoWait = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Discover checkpoints and seal those that are whole: fsync, hash, manifest.

    A directory that belongs to no tier is registered as one. The newest checkpoint of each run is
    sealed first. Torn ones are listed with the reason and are no error.
    """
    from ckptgov_cli import render

    if no_wait:
        return service_verbs.begin_scan(
            directories or [], run, other=dry_run or node is not None, as_json=json
        )
    with opened_governor() as governor:
        answer = governor.scan(directories or [], run=run, node=node, dry_run=dry_run)
    return render.scan(answer, as_json=json, dry_run=dry_run)


@app.command("commit", epilog=EXIT_CODES)
def commit(
    path: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Its directory or file.")],
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="The run it belongs to.")
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", min=0, help="Its step, if nothing tells.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME=VALUE", help="A metric to record with it."),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            "--tier", metavar="TIER", help="CHECKPOINT is a path below the root of this tier."
        ),
    ] = None,
    node: Node = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Seal one checkpoint that its writer knows to be complete.

    For checkpoints whose full set nothing on disk tells, or that were re-saved in place. A shard
    that is missing or torn is refused all the same.
    """
    from ckptgov_cli import render

    metrics = _metrics(metric or [])
    with opened_governor() as governor:
        sealed = governor.commit(
            path,
            run=run,
            step=step,
            node=node,
            metrics=metrics,
            dry_run=dry_run,
            tier=tier,
        )
    return render.commit(sealed, as_json=json, dry_run=dry_run)


def _metrics(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            float(value)
        except ValueError:
            equals = ""
        if not equals or not name or name in pairs:
            raise UsageError(f"--metric {text!r}: write NAME=NUMBER, each name once")
        pairs[name] = value
    return tuple(sorted(pairs.items()))


@app.command("verify", epilog=EXIT_CODES)
def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DIR|CHECKPOINT", help="A run's name, a directory, or one checkpoint."
        ),
    ],
    level: Annotated[
        str,
        typer.Option("--level", metavar="L", help="size, structure or digest."),
    ] = "digest",
    no_wait: NoWait = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Compare checkpoints with their manifests, shard by shard.

    Exit 5 names the shard and the evidence. What fails is never offered by 'latest' until it is
    whole again. A checkpoint without a manifest is proven by its layout alone.
    """
    from ckptgov.model.checkpoint import VerifyLevel
    from ckptgov_cli import render

    if level not in tuple(VerifyLevel):
        raise UsageError(f"--level {level}: write size, structure or digest")
    if no_wait:
        return service_verbs.begin_verify(target, level, other=dry_run, as_json=json)
    with opened_governor() as governor:
        answer = governor.verify(target, level=VerifyLevel(level), dry_run=dry_run)
    return render.verify(answer, as_json=json)


@app.command("list", epilog=EXIT_CODES)
def list_(target: Target, json: Json = False) -> int:
    """List a run's checkpoints, newest first, each with its state."""
    from ckptgov.model.facts import Query
    from ckptgov_cli import render

    with opened_governor() as governor:
        listing = governor.listing(target, Query())
    return render.listing(listing, as_json=json)


@app.command("show", epilog=EXIT_CODES)
def show(
    target: Target,
    step: Annotated[int | None, typer.Argument(metavar="[STEP]", min=0, help="Its step.")] = None,
    json: Json = False,
) -> int:
    """Show one checkpoint: set, copies, evidence. Default: the newest restorable one."""
    from ckptgov.model.facts import Query
    from ckptgov_cli import render

    with opened_governor() as governor:
        listing = governor.listing(target, Query())
    return render.show(listing, step=step, as_json=json)


@app.command("explain", epilog=EXIT_CODES)
def explain(
    target: Target,
    step: Annotated[
        int | None, typer.Argument(metavar="[STEP]", min=0, help="Only this step.")
    ] = None,
    purpose: Annotated[
        str, typer.Option("--purpose", metavar="P", help="resume or weights.")
    ] = "resume",
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", metavar="N", min=1, help="Ranks that will load it."),
    ] = None,
    json: Json = False,
) -> int:
    """Say why each checkpoint is or is not offered, with the file and the evidence.

    What a plan let go is told with the plan, its reasons, what comes next and how to undo it; with
    STEP also what is purged.
    """
    from ckptgov.model.checkpoint import Purpose
    from ckptgov.model.facts import Query
    from ckptgov_cli import render

    if purpose not in tuple(Purpose):
        raise UsageError(f"--purpose {purpose}: write resume or weights")
    query = Query(purpose=Purpose(purpose), world_size=world_size)
    with opened_governor() as governor:
        listing = governor.listing(target, query)
        removed = governor.removed(target, step=step)
    return render.explain(listing, removed, step=step, as_json=json)


@app.command("manifest", epilog=EXIT_CODES)
def manifest(
    target: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|RUN", help="Its directory or file; of a run the newest."
        ),
    ],
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", min=0, help="Of a run: this step.")
    ] = None,
    format: Annotated[
        str, typer.Option("--format", metavar="F", help="json or xxhsum (for 'xxhsum -c').")
    ] = "json",
    json: Json = False,
) -> int:
    """Print the manifest of a sealed checkpoint.

    'ckptgov manifest DIR --format xxhsum | (cd DIR && xxhsum -c)' checks it with public tools.
    """
    from ckptgov_cli import render

    if format not in ("json", "xxhsum"):
        raise UsageError(f"--format {format}: write json or xxhsum")
    with opened_governor() as governor:
        one = governor.manifest(target, step=step)
    return render.manifest(one, form="json" if json else format)


@app.command("mark-bad", epilog=EXIT_CODES)
def mark_bad(
    target: Target,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", min=0, help="One checkpoint.")
    ] = None,
    from_step: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, help="This step and above.")
    ] = None,
    until_step: Annotated[
        int | None, typer.Option("--until", metavar="N", min=0, help="Up to this step.")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded.")
    ] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Lift the mark again.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Never offer a checkpoint, or a range of steps, whatever its bytes say.

    A range covers what exists now; the same steps written again on a new line are new.
    """
    from ckptgov_cli import render

    if not reason and not undo:
        raise UsageError("mark-bad: say why with --reason TEXT")
    with opened_governor() as governor:
        record = governor.mark_bad(
            target,
            step=step,
            from_step=from_step,
            until_step=until_step,
            reason=reason,
            undo=undo,
            dry_run=dry_run,
        )
    return render.record(record, as_json=json, dry_run=dry_run)


@app.command("rollback", epilog=EXIT_CODES)
def rollback(
    target: Target,
    to_step: Annotated[
        int,
        typer.Option("--to", metavar="STEP", min=0, help="The newest step that stays on offer."),
    ],
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why, for whoever reads it.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Continue the run from STEP: higher steps saved until now are never offered again."""
    from ckptgov_cli import render

    with opened_governor() as governor:
        record = governor.rollback(target, to_step=to_step, reason=reason, dry_run=dry_run)
    return render.record(record, as_json=json, dry_run=dry_run)


@app.command("report", epilog=EXIT_CODES)
def report(
    target: Target,
    restart_id: Annotated[
        str,
        typer.Option("--restart-id", metavar="X", help="The id that 'latest' was asked with."),
    ],
    outcome: Annotated[
        str,
        typer.Option(
            "--outcome",
            metavar="O",
            help="started, missing, corrupt, load-failed or failed-later.",
        ),
    ],
    epoch: Annotated[
        int | None,
        typer.Option("--epoch", metavar="E", min=0, help="The epoch 'latest --json' gave."),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="What went wrong.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Tell what became of a start.

    missing, corrupt and load-failed make 'latest --restart-id X' choose the next older one;
    started and failed-later never do.
    """
    from ckptgov.model.journal import RestoreOutcome
    from ckptgov_cli import render

    if outcome not in tuple(RestoreOutcome):
        raise UsageError(f"--outcome {outcome}: write one of {', '.join(RestoreOutcome)}")
    with opened_governor() as governor:
        record = governor.report(
            target,
            restart_id=restart_id,
            outcome=RestoreOutcome(outcome),
            epoch=epoch,
            reason=reason,
            dry_run=dry_run,
        )
    return render.record(record, as_json=json, dry_run=dry_run)


@app.command("doctor", epilog=EXIT_CODES)
def doctor(json: Json = False) -> int:
    """Check configuration, catalog and every tier; exit 9 if something fails."""
    from ckptgov_cli import render

    with opened_here("doctor") as governor:
        from ckptgov.ops.doctor import doctor

        checks = doctor(governor.context)
    return render.checks(checks, as_json=json)


@run_app_.command("create", epilog=EXIT_CODES)
def run_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="'name' or 'team/name'.")],
    root: Annotated[
        str | None,
        typer.Option("--root", metavar="DIR", help="Default: NAME below the first shared tier."),
    ] = None,
    expect_glob: Annotated[
        str | None,
        typer.Option("--expect-glob", metavar="G", help="Shards of a checkpoint no layout proves."),
    ] = None,
    expect_count: Annotated[
        int | None, typer.Option("--expect-count", metavar="N", min=1, help="How many there are.")
    ] = None,
    expect_marker: Annotated[
        str | None, typer.Option("--expect-marker", metavar="FILE", help="Written last.")
    ] = None,
    expect_step: Annotated[
        str | None, typer.Option("--expect-step", metavar="RE", help="Its first group is the step.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Register a run before its first checkpoint, with a declared rule if it needs one."""
    from ckptgov.model.checkpoint import Expect
    from ckptgov_cli import render

    expect = None
    if expect_glob is not None:
        expect = Expect(
            glob=expect_glob, count=expect_count, marker=expect_marker, step=expect_step
        )
    elif (expect_count, expect_marker, expect_step) != (None, None, None):
        raise UsageError("--expect-count, --expect-marker and --expect-step go with --expect-glob")
    with opened_governor() as governor:
        run = governor.create_run(name, root=root, expect=expect, dry_run=dry_run)
    return render.runs([run], as_json=json, dry_run=dry_run)


@run_app_.command("list", epilog=EXIT_CODES)
def run_list(json: Json = False) -> int:
    """List the registered runs."""
    from ckptgov_cli import render

    with opened_governor() as governor:
        runs = governor.runs()
    return render.runs(runs, as_json=json)


@catalog_app.command("rebuild", epilog=EXIT_CODES)
def catalog_rebuild(
    roots: Annotated[
        list[str] | None, typer.Argument(metavar="[ROOT]...", help="Roots to add as tiers.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Fill the catalog again from configuration, manifests, receipts and journals."""
    from ckptgov_cli import render

    with opened_here("catalog rebuild") as governor:
        from ckptgov.ops.rebuild import rebuild

        rebuilt = rebuild(governor.context, roots or [], dry_run=dry_run)
    return render.rebuilt(rebuilt, as_json=json, dry_run=dry_run)


@catalog_app.command("check", epilog=EXIT_CODES)
def catalog_check(json: Json = False) -> int:
    """Compare the catalog with storage and name every difference; changes nothing."""
    from ckptgov_cli import render

    with opened_here("catalog check") as governor:
        from ckptgov.ops.rebuild import check

        checks = check(governor.context, governor.context.catalog)
    return render.checks(checks, as_json=json)


@catalog_app.command("backup", epilog=EXIT_CODES)
def catalog_backup(
    to: Annotated[
        str, typer.Option("--to", metavar="FILE|TIER", help="A new file, or a shared tier's name.")
    ],
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=1, help="At a tier: only the newest N stay."),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Write the catalog to a file, or below a tier's root, and read it back.

    Storage tells everything that matters again; this is faster, and has the rest: tokens, nodes,
    events.
    """
    from ckptgov_cli import render

    with opened_here("catalog backup") as governor:
        from ckptgov.ops.backup import back_up

        written = back_up(governor.context, to, keep=keep, dry_run=dry_run)
    return render.backed_up(written, as_json=json, dry_run=dry_run)


@catalog_app.command("restore", epilog=EXIT_CODES)
def catalog_restore(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|TIER[/KEY]", help="What 'backup' wrote; of a tier alone the newest."
        ),
    ],
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Fill an empty catalog from a file that 'catalog backup' wrote.

    What happened since is read from the tiers afterwards, marks and rollbacks included.
    """
    from ckptgov_cli import render

    with opened_here("catalog restore") as governor:
        from ckptgov.ops.backup import restore_catalog

        restored = restore_catalog(governor.context, source, dry_run=dry_run)
    return render.restored_catalog(restored, as_json=json, dry_run=dry_run)
