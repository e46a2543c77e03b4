"""A fresh start is a decision like any other: recorded first, and the same for every rank."""

from __future__ import annotations

from ckptgov.errors import CouldNotLook, NeverAny, NoneRestorable, RefusedBySafety, StaleState
from ckptgov.model.journal import NumberedRecord, Restart
from ckptgov.work.answer import share_journal
from ckptgov.work.ask import Asked
from ckptgov.work.author import Author
from ckptgov.work.decide import check_restart_id, standing_epoch
from ckptgov.work.restart import identity_of


def decide_fresh(
    asked: Asked, author: Author, restart_id: str | None, *, allow_fresh: bool
) -> Restart | None:
    """Decide that this restart begins from nothing, or read that it was so decided.

    Without an id nothing is decided and nothing written: only whether it might be.

    Raises:
        CouldNotLook: a place of the run does not answer; it may hold a checkpoint.
        NoneRestorable: something is or was here.
        NeverAny: nothing ever was, and a fresh start was not allowed.
        RefusedBySafety: it was decided before, and checkpoints were saved since.
        StaleState: another rank found a checkpoint meanwhile.
    """
    records = share_journal(asked.looks)
    if asked.unreachable:
        raise CouldNotLook(f"no fresh start: {asked.unreachable[0].text}")
    epoch = 0
    if restart_id is not None:
        standing, epoch, _ = standing_epoch(records, check_restart_id(restart_id))
        if standing is not None and standing.fresh:
            _require_nothing_since(asked, restart_id)
            return standing
    _require_never(asked, records)
    if not allow_fresh and not _is_created(asked):
        raise NeverAny(
            f"{_where(asked)}: there never was a checkpoint, and nothing says that there should "
            "be none",
            hint="register the run before it starts ('ckptgov run create NAME') and name it, or "
            "give --allow-fresh",
        )
    if restart_id is None:
        return None
    own = Restart(
        stamp=author.stamp(identity_of(asked.looks[0], author).run_id),
        restart_id=restart_id,
        epoch=epoch,
        fresh=True,
    )
    won = asked.home.publish_restart(own)
    if not won.fresh:
        raise StaleState(f"restart {restart_id} was decided for a checkpoint meanwhile")
    return won


def _require_nothing_since(asked: Asked, restart_id: str) -> None:
    """Nobody who belongs to this restart is late once something was saved by all of its ranks."""
    if not _is_empty(asked):
        raise RefusedBySafety(
            f"restart {restart_id} was decided as a fresh start, and there are checkpoints since",
            hint="this id names more than one restart: give each its own --restart-id",
        )


def _require_never(asked: Asked, records: tuple[NumberedRecord, ...]) -> None:
    is_said = any(not _says_fresh(item) for item in records)
    if is_said or not _is_empty(asked):
        raise NoneRestorable(
            f"{_where(asked)}: there are checkpoints or records of some, so nothing starts fresh",
            hint="'ckptgov explain' says why none is offered",
        )


def _says_fresh(item: NumberedRecord) -> bool:
    """The only records that tell of no checkpoint: earlier starts that had none either."""
    return isinstance(item.record, Restart) and item.record.fresh


def _is_empty(asked: Asked) -> bool:
    return not asked.more and all(not look.survey.found and not look.stored for look in asked.looks)


def _is_created(asked: Asked) -> bool:
    """A run by its name, made before its first checkpoint: its identity stands at every place."""
    return asked.sealed_only and all(look.identity is not None for look in asked.looks)


def _where(asked: Asked) -> str:
    return asked.run or asked.looks[0].place.root
