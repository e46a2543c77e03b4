"""Who writes a record, when, and under which id: everything that is not a function of storage."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ckptgov.model.clock import Clock
from ckptgov.model.journal import Stamp


def _random_id() -> str:
    import uuid

    return str(uuid.uuid4())


def sealed_record_id(run_id: str, content_id: str, name: str) -> str:
    """The id of the ``sealed`` record of a checkpoint: the same for whoever seals it.

    Two racing sealers may both append one; records merge by id, so the journal still says it once.
    """
    import uuid

    return str(uuid.uuid5(uuid.UUID(run_id), f"{content_id}/{name.encode('utf-8', 'replace')!r}"))


class Author(Struct, frozen=True, kw_only=True):
    """Stamps records. ``by`` reads ``uid:<n>@<host>``."""

    clock: Clock
    by: str
    new_id: Callable[[], str] = _random_id

    def stamp(self, run_id: str, *, reason: str | None = None, record_id: str = "") -> Stamp:
        """A stamp for a record of ``run_id``, now."""
        return Stamp(
            id=record_id or self.new_id(),
            run_id=run_id,
            at_ns=self.clock.now_ns(),
            by=self.by,
            reason=reason or None,
        )
