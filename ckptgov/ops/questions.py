"""That a launcher asked for a run, noted where no service does it: a sign that the run lives."""

from __future__ import annotations

from contextlib import suppress

from ckptgov.catalog.peek import Peek
from ckptgov.errors import CkptgovError
from ckptgov.ops.context import Context


def note_question(context: Context, run: str) -> None:
    """Note that ``latest``, or a restart, asked for the run of this name; at most once an hour.

    Never fails and never makes a question wait: what was known to be asked is read with the other
    few facts that a launcher's question needs, without SQLModel.
    """
    with suppress(CkptgovError):
        where = context.whereabouts
        found = where.run_by_name(run)
        if found is None:
            return
        run_id = found.identity.run_id
        if isinstance(where, Peek):
            where.note_asked(run_id, at_ns=context.author.clock.now_ns())
        else:
            context.catalog.signs.asked(run_id)
