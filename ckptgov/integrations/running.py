"""One start from its first moment to its last: the command runs, and what it comes to is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from msgspec import Struct

from ckptgov.errors import UsageError
from ckptgov.integrations.launching import Start, environment, outcome_of
from ckptgov.integrations.restart_id import is_first_rank, rank_of
from ckptgov.integrations.supervising import Ended, supervise, watch_for_start
from ckptgov.integrations.telling import Tell, Teller
from ckptgov.model.clock import Clock
from ckptgov.model.journal import RestoreOutcome

PATIENCE_S = 30.0
"""How long the end of a command is held up by a report that does not get through."""


class Signs(Struct, frozen=True, kw_only=True):
    """How a command says what became of it, beside 'ckptgov report'."""

    ready_file: str | None = None
    started_after_s: float | None = None
    load_failed_codes: tuple[int, ...] = ()


def run_start(
    start: Start,
    signs: Signs,
    environ: Mapping[str, str],
    *,
    clock: Clock,
    tell: Tell,
    talk: Callable[[str], None],
) -> int:
    """Run what was chosen; its exit code. ``tell`` is called from another thread.

    Raises:
        UsageError: it cannot be started.
    """
    speaks = is_first_rank(environ)
    teller = Teller(tell, talk)
    ready_file = _cleared(signs.ready_file, environ)
    has_started = False

    def say(outcome: RestoreOutcome, reason: str | None = None) -> None:
        """Of a fresh start there is nothing to tell; that all went well, one rank tells."""
        if start.resume is not None and (speaks or outcome is not RestoreOutcome.STARTED):
            teller.say(outcome, reason)

    def started() -> None:
        nonlocal has_started
        has_started = True
        say(RestoreOutcome.STARTED)

    def at_end(ended: Ended) -> None:
        if not has_started and ready_file is not None and os.path.lexists(ready_file):
            started()
        found = outcome_of(
            ended, has_started=has_started, load_failed_codes=signs.load_failed_codes
        )
        if found is not None:
            say(*found)
        teller.finish(PATIENCE_S)

    return supervise(
        start.words,
        environment(environ, start, ready_file=ready_file),
        clock=clock,
        watch=watch_for_start(
            ready_file=ready_file, started_after_s=signs.started_after_s, tell=started
        ),
        at_end=at_end,
    ).code


def _cleared(ready_file: str | None, environ: Mapping[str, str]) -> str | None:
    """The file that will say "loaded", gone: what an earlier start left says nothing of this.

    Each rank but the first has one of its own: the number is put behind the name.
    """
    if ready_file is None:
        return None
    path = os.path.abspath(ready_file)
    if not is_first_rank(environ):
        path = f"{path}.{rank_of(environ)}"
    try:
        os.unlink(path)
    except FileNotFoundError:
        return path
    except OSError as error:
        raise UsageError(f"--ready-file {ready_file}: {error.strerror}") from error
    return path
