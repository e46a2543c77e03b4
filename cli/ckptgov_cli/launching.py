"""``ckptgov exec``: start a training command from the checkpoint that this restart was given."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from ckptgov.errors import CkptgovError, UsageError
from ckptgov_cli import output
from ckptgov_cli.options import EXIT_CODES, DryRun, Json, Node, opened_governor, parsed

if TYPE_CHECKING:
    from ckptgov.integrations.launching import Start, Wanted
    from ckptgov.integrations.restart_id import RestartName
    from ckptgov.model.journal import RestoreOutcome

_EPILOG = (
    EXIT_CODES.replace("Exit codes:", "Exit codes before the command was started:")
    + "\nAfter that its own, or 128 + the signal it died of.\n"
)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("exec", epilog=_EPILOG)(exec_)


def exec_(
    run: Annotated[
        str, typer.Argument(metavar="RUN|DIR|URL", help="A run's name, a directory or a URL.")
    ],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...", help="{path} {parent} {step} {tag} are replaced in it."
        ),
    ],
    restart_id: Annotated[
        str | None,
        typer.Option(
            "--restart-id",
            metavar="X",
            help="Names this restart, the same for all its ranks and for no other restart. "
            "Default: composed of CKPTGOV_RESTART_ID and what Slurm, JobSet, Volcano and "
            "torchrun say; where that is not enough it must be given.",
        ),
    ] = None,
    resume_args: Annotated[
        str | None,
        typer.Option(
            "--resume-args",
            metavar="'...'",
            help="Words that only a resumed start has, as in '--resume {path} --step {step}': "
            "put where the command says {resume_args}, else at its end.",
        ),
    ] = None,
    allow_fresh: Annotated[
        bool,
        typer.Option(
            "--allow-fresh",
            help="Start from nothing where a complete look finds that nothing ever was saved, "
            "also for a directory. A run made by 'run create' may without. An error never does.",
        ),
    ] = False,
    stage: Annotated[
        str | None,
        typer.Option("--stage", metavar="DIR", help="Bring the checkpoint to DIR first."),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", metavar="N", min=1, help="Number of ranks that will load it."),
    ] = None,
    purpose: Annotated[
        str, typer.Option("--purpose", metavar="P", help="resume (default) or weights.")
    ] = "resume",
    load_failed_code: Annotated[
        list[int] | None,
        typer.Option(
            "--load-failed-code",
            metavar="N",
            min=1,
            max=255,
            help="The command's exit code for a checkpoint that does not load: the next start "
            "gets an older one. No other end does that. May be given often.",
        ),
    ] = None,
    ready_file: Annotated[
        str | None,
        typer.Option(
            "--ready-file",
            metavar="FILE",
            help="The command makes it once it has loaded (CKPTGOV_READY_FILE in its "
            "environment; ranks but 0 have one ending in .RANK): 'started' is reported then.",
        ),
    ] = None,
    started_after: Annotated[
        str | None,
        typer.Option(
            "--started-after", metavar="D", help="Report 'started' once it lived so long (5m)."
        ),
    ] = None,
    node: Node = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Start a command from the newest checkpoint that restores, the same for every rank.

    The answer is decided once for each restart and recorded. The command finds it in
    CKPTGOV_PATH, _PARENT, _STEP, _TAG, _RESTART_ID and _EPOCH, too; on a fresh start there is no
    CKPTGOV_PATH. Signals are passed on, and the command's exit code is ours. It may tell
    its outcome itself with 'ckptgov report'; reports that fail never end it.

    A torchrun that restarts its workers does not ask again for them. Ask for each worker:

    torchrun --no-python ... ckptgov exec RUN --resume-args '--resume {path}' -- python train.py
    """
    try:
        return _launch(
            _Options(
                run=run,
                words=tuple(words),
                restart_id=restart_id,
                resume_args=resume_args,
                allow_fresh=allow_fresh,
                stage=stage,
                world_size=world_size,
                purpose=purpose,
                load_failed_codes=tuple(load_failed_code or ()),
                ready_file=ready_file,
                started_after_s=_seconds("--started-after", started_after),
                node=node,
                dry_run=dry_run,
                json=json,
            )
        )
    except CkptgovError as error:  # here, for the command may have a --json of its own
        return _failed(error, as_json=json)


class _Options(Struct, frozen=True, kw_only=True):
    run: str
    words: tuple[str, ...]
    restart_id: str | None
    resume_args: str | None
    allow_fresh: bool
    stage: str | None
    world_size: int | None
    purpose: str
    load_failed_codes: tuple[int, ...]
    ready_file: str | None
    started_after_s: float | None
    node: str | None
    dry_run: bool
    json: bool


def _seconds(option: str, text: str | None) -> float | None:
    from ckptgov.config.units import parse_duration

    return parsed(option, text, parse_duration)


def _launch(options: _Options) -> int:
    from ckptgov.integrations.command import restarts_by_itself
    from ckptgov.integrations.deciding import fresh_epoch
    from ckptgov.integrations.launching import choose_start

    if options.json and not options.dry_run:
        raise UsageError("--json goes with --dry-run: stdout is the command's")
    name = None if options.dry_run else _restart_name(options)
    wanted = _wanted(options, name)
    why = restarts_by_itself(wanted.command.words, os.environ)
    if why is not None:
        output.talk(
            f"torchrun would not ask again: {why}, and what they load is decided once, here. "
            f"Ask for each: torchrun --no-python ... ckptgov exec {options.run} -- python ..."
        )
    with opened_governor() as governor:
        start = choose_start(
            governor,
            wanted,
            decide_fresh=lambda: fresh_epoch(governor, wanted, allow_fresh=options.allow_fresh),
        )
    if name is None:
        return _would(start, as_json=options.json)
    _tell_start(options.run, start, is_alone=name.is_alone)
    return _run(options, start)


def _wanted(options: _Options, name: RestartName | None) -> Wanted:
    from ckptgov.integrations.command import template
    from ckptgov.integrations.launching import Wanted
    from ckptgov.model.checkpoint import Evidence, Purpose
    from ckptgov.model.facts import Query

    if options.purpose not in tuple(Purpose):
        raise UsageError(f"--purpose {options.purpose}: resume or weights")
    command = template(options.words, options.resume_args)
    return Wanted(
        run=options.run,
        command=command,
        query=Query(
            purpose=Purpose(options.purpose),
            world_size=options.world_size,
            min_evidence=Evidence.DIGEST if options.stage is not None else Evidence.STRUCTURE,
        ),
        restart_id=None if name is None else name.restart_id,
        node=options.node,
        stage=None if options.dry_run else options.stage,
    )


def _restart_name(options: _Options) -> RestartName:
    from ckptgov.integrations.restart_id import RestartName, compose

    if options.restart_id is not None:
        return RestartName(restart_id=options.restart_id, is_alone=False)
    return compose(os.environ)


def _tell_start(run: str, start: Start, *, is_alone: bool) -> None:
    where = "from nothing: there never was a checkpoint"
    if start.resume is not None:
        where = f"from {start.resume.path}"
    output.talk(f"{run}: restart {start.restart_id} starts {where}")
    for note in start.told.choice.notes:
        if note.kind in ("alert", "unsettled-line", "unreachable"):
            output.talk(f"{note.kind}: {note.text}")
    if is_alone and not start.decided_here:
        output.talk(
            "this was decided before: if this is another restart inside one allocation, give it "
            "a --restart-id of its own, or run this command under srun"
        )


def _would(start: Start, *, as_json: bool) -> int:
    if as_json:
        from ckptgov.wire.documents import resume, text

        output.emit(
            {
                "would_start": [text(word) for word in start.words],
                "resume_args": None if start.resume is None else resume(start.resume),
            }
        )
        return 0
    output.talk(f"would start {'fresh' if start.resume is None else 'from ' + start.resume.path}")
    output.line(shlex.join(start.words))
    return 0


def _run(options: _Options, start: Start) -> int:
    from ckptgov.integrations.running import Signs, run_start
    from ckptgov.model.clock import SystemClock

    return run_start(
        start,
        Signs(
            ready_file=options.ready_file,
            started_after_s=options.started_after_s,
            load_failed_codes=options.load_failed_codes,
        ),
        os.environ,
        clock=SystemClock(),
        tell=lambda outcome, reason: _report(options.run, start, outcome, reason),
        talk=output.talk,
    )


def _report(run: str, start: Start, outcome: RestoreOutcome, reason: str | None) -> None:
    """Tell it through a governor of its own: this runs beside the command, in another thread."""
    from ckptgov.integrations.deciding import report_once

    with opened_governor() as governor:
        report_once(governor, run, start, outcome, reason)


def _failed(error: CkptgovError, *, as_json: bool) -> int:
    if as_json:
        from ckptgov.wire.documents import error_document

        output.emit(error_document(error))
    else:
        output.complain(error)
    return error.exit_code
