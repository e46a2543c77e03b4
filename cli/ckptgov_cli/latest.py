"""``ckptgov latest``: parsed without Typer, because launchers call it for every restart."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from ckptgov.client.address import is_named, is_run_name
from ckptgov.errors import CkptgovError, UsageError
from ckptgov.model.answers import LatestAnswer
from ckptgov.model.checkpoint import Evidence, Purpose
from ckptgov.model.facts import Query
from ckptgov.wire.documents import latest as document
from ckptgov.wire.documents import notes_of
from ckptgov_cli import output
from ckptgov_cli.exits import EXIT_CODES, code_of

if TYPE_CHECKING:
    from ckptgov.model.movement import RestoreAnswer
    from ckptgov.model.verbs import Launcher
    from ckptgov.wire.documents import Document

DESCRIPTION = """\
Print the path of the newest checkpoint that restores, and nothing else, on stdout.

TARGET is a run's name or a directory. A directory needs no configuration and no catalog: nothing
is written, except the record of the decision when --restart-id is given. The answer for an
unsealed directory rests on the layout's own proof ("evidence": "structure"); --evidence digest
accepts only checkpoints whose bytes were compared with a manifest.

With CKPTGOV_URL set, a run's name is asked of the service there (CKPTGOV_TOKEN or
CKPTGOV_TOKEN_FILE opens it). Where no answer comes, the tiers of this host are looked at instead,
if it has any configured.
"""


MOST_FINDINGS = 3
"""Told for each checkpoint passed over; 'ckptgov explain' and --json have all."""


class _Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting, so that --json still prints one document."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"latest: {message}", hint="see 'ckptgov latest --help'")


def parser() -> argparse.ArgumentParser:
    """The options of ``latest``."""
    parse = _Parser(
        prog="ckptgov latest",
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        # A fixed width: asking the terminal for one imports shutil, and that every compressor.
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=100),
        allow_abbrev=False,
    )
    parse.add_argument("target", metavar="RUN|DIR", help="a run's name or a directory")
    parse.add_argument(
        "--purpose",
        choices=("resume", "weights"),
        default="resume",
        help="what it must be complete for (default: resume)",
    )
    parse.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="number of ranks that will load it; one saved for another number and not "
        "loadable on N does not count",
    )
    parse.add_argument(
        "--evidence",
        choices=("structure", "digest"),
        help="the least proof to accept (default: digest for a run, structure for a directory)",
    )
    parse.add_argument(
        "--restart-id",
        metavar="X",
        help="name this restart: all ranks that give the same X get the same checkpoint. The "
        "decision is recorded in the run's journal, and a checkpoint not sealed yet is sealed",
    )
    parse.add_argument("--node", metavar="N", help="the node that asks: its own disk comes first")
    parse.add_argument("--place", metavar="UUID", help="the place that asks, by its identity")
    parse.add_argument(
        "--stage",
        metavar="DIR",
        help="bring it to DIR first, each shard from the nearest place that has it sound, and "
        "print its path there; only checkpoints whose bytes were compared count then. One whose "
        "shards are sound only over several places counts too, but not with --restart-id",
    )
    parse.add_argument(
        "--match",
        metavar="GLOB",
        action="append",
        default=[],
        help="with --stage: only these shards; may be given often ('*' does not cross '/', "
        "'**' does)",
    )
    parse.add_argument(
        "--explain", action="store_true", help="say on stderr why newer ones were passed over"
    )
    parse.add_argument(
        "--json", action="store_true", help="print one JSON document, errors included"
    )
    return parse


def run(argv: Sequence[str]) -> int:
    """Run ``latest`` with its arguments and return the exit code."""
    wants_json = "--json" in argv
    try:
        options = parser().parse_args(argv)
        if options.world_size is not None and options.world_size < 1:
            raise UsageError("latest: --world-size is at least 1")
        if options.match and options.stage is None:
            raise UsageError("latest: --match goes with --stage")
        return _answer(options)
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    except CkptgovError as error:
        return _failed(error, wants_json)


def _answer(options: argparse.Namespace) -> int:
    is_staged = options.stage is not None
    query = Query(
        purpose=Purpose(options.purpose),
        world_size=options.world_size,
        min_evidence=Evidence("digest" if is_staged else options.evidence or "structure"),
        # What is decided for all ranks must lie whole somewhere: not all of them may stage it.
        may_gather=is_staged and options.restart_id is None,
    )
    if is_named(os.environ) and is_run_name(options.target) and not is_staged:
        told, staged = _told_by_service(options, query), None
    else:
        told, staged = _told(options, query)
    return show(told, staged, explain=options.explain, as_json=options.json)


def show(
    told: LatestAnswer,
    staged: RestoreAnswer | None = None,
    *,
    explain: bool,
    as_json: bool,
) -> int:
    """The path alone on stdout; everything else is talk."""
    if as_json:
        output.emit({**document(told), **_staged_document(staged)})
        return code_of(told.error)
    if explain or told.error is not None:
        _explain(told)
    else:
        _warn(told)
    if told.error is not None:
        output.complain(told.error)
        return told.error.exit_code
    if staged is not None:
        _tell_faults(staged)
    output.line(staged.path if staged is not None else told.path or "")
    return 0


def _told_by_service(options: argparse.Namespace, query: Query) -> LatestAnswer:
    """The short way: neither storage nor catalog is imported unless the service is silent."""
    from ckptgov.client.transport import Silent
    from ckptgov.client.verbs import open_client

    try:
        with open_client(os.environ, talk=output.talk) as client:
            return _latest_of(client, options, query)
    except Silent as silent:
        from ckptgov.governor.served import open_served

        with open_served(environ=os.environ, talk=output.talk) as governor:
            return governor.latest_without_service(
                silent,
                options.target,
                query,
                restart_id=options.restart_id,
                node=options.node,
                everything=options.explain or options.json,
            )


def _told(options: argparse.Namespace, query: Query) -> tuple[LatestAnswer, RestoreAnswer | None]:
    from ckptgov_cli.opening import open_verbs

    staged: RestoreAnswer | None = None
    with open_verbs(os.environ, talk=output.talk) as governor:
        told = _latest_of(governor, options, query)
        if options.stage is not None and told.chosen is not None and told.error is None:
            staged = governor.restore(
                options.target,
                to=options.stage,
                query=query,
                content_id=told.chosen.content_id,
                match=tuple(options.match),
                node=options.node,
            )
    return told, staged


def _latest_of(launcher: Launcher, options: argparse.Namespace, query: Query) -> LatestAnswer:
    return launcher.latest(
        options.target,
        query,
        restart_id=options.restart_id,
        node=options.node,
        place=options.place,
        everything=options.explain or options.json,
    )


def _staged_document(staged: RestoreAnswer | None) -> Document:
    """What replaces the answer's own members: the path and resume args are those of the copy."""
    if staged is None:
        return {}
    from ckptgov.wire.movement import restored

    return restored(staged)


def _tell_faults(staged: RestoreAnswer) -> None:
    for fault in staged.faults:
        output.talk(f"passed over {fault.path}: {fault.reason.value}: {fault.evidence}")
    if staged.matched:
        output.talk(f"{staged.name}: only {staged.shards} shards were brought, not all of it")


def _warn(told: LatestAnswer) -> None:
    """What a person should know even when only the path was asked for."""
    if told.chosen is not None and told.chosen.evidence is Evidence.STRUCTURE:
        output.talk(
            f"{told.chosen.name}: proven by its layout's structure only; its bytes were not "
            "compared with a manifest here"
        )
    for note in notes_of(told):
        if note.kind in ("alert", "unsettled-line", "unreachable"):
            output.talk(f"{note.kind}: {note.text}")


def _explain(told: LatestAnswer) -> None:
    if told.chosen is not None:
        one = told.chosen
        output.talk(
            f"{one.name}: {one.step_kind.value} {one.step}, {one.layout}, line {one.line}, "
            f"evidence {one.evidence.value}, saved by {one.world_size or '?'} ranks"
        )
        for copy in one.copies:
            held = "all shards" if copy.shards is None else f"{len(copy.shards)} shards"
            where = copy.node or "shared"
            output.talk(f"  {held} at {copy.root} ({copy.tier or 'unregistered'}, {where})")
    for verdict in told.choice.verdicts:
        for finding in verdict.findings[:MOST_FINDINGS]:
            output.talk(
                f"passed over {verdict.checkpoint.name}: {finding.reason.value}: "
                f"{finding.path}: {finding.evidence}"
            )
    for note in notes_of(told):
        output.talk(f"note: {note.kind}: {note.path}: {note.text}")


def _failed(error: CkptgovError, wants_json: bool) -> int:
    if wants_json:
        from ckptgov.wire.documents import error_document

        output.emit(error_document(error))
    else:
        output.complain(error)
    return error.exit_code
