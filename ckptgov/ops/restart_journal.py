"""The journal at a run's home, beside the catalog's copy of it.

The home is the run's first shared place. Its create-once records decide, whoever else writes there
meanwhile: a command line without the service, or another replica. What it holds and the catalog
does not is copied before anything is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckptgov.catalog.facts import RecordFacts
from ckptgov.errors import CkptgovError, CouldNotLook, Malformed
from ckptgov.manifest.forms.records import decode_record, encode_record
from ckptgov.manifest.names import (
    parse_record_file_name,
    parse_restart_file_name,
    restart_file_name,
)
from ckptgov.model.journal import BINDING_KINDS, KIND_OF, NumberedRecord, Record, Restart
from ckptgov.ops.context import Context
from ckptgov.ops.standing_run import Site, StandingRun, is_here
from ckptgov.work.runstore import MAX_FILE_BYTES, RunStore, store_at

_NOT_ASKED = frozenset({"sealed", "metric"})
"""Kinds that say nothing about what may be offered; there is one for every checkpoint."""


def home_store(context: Context, run: StandingRun) -> RunStore | None:
    """Where the run's journal is written first; None for a run without a shared place.

    Raises:
        CouldNotLook: the place does not answer, holds another run, or can hold no journal.
    """
    home = run.home
    if home is None:
        return None
    return _store(context, run, home)


def _store(context: Context, run: StandingRun, site: Site) -> RunStore:
    tier = context.tier_of(site.place.root, site.place.node)
    if tier is None:
        raise CouldNotLook(
            f"tier {site.place.tier} at {site.place.root} is not configured any more"
        )
    place = context.place(tier)
    if not context.may_hold_journal(place):
        raise CouldNotLook(
            f"tier {tier.name}: no journal can be kept there, as 'tier check' saw",
            hint="a restart cannot be decided by its journal",
        )
    context.rely_on_abilities(place)
    store = store_at(place.storage, site.root.path)
    identity = store.identity()
    if identity is None or identity.run_id != run.run_id:
        found = "no run" if identity is None else f"run {identity.name!r}"
        raise CouldNotLook(
            f"{site.address}: {found} is there, {run.name!r} was expected",
            hint="is it mounted? 'ckptgov scan' tells what lies there",
        )
    return store


def catch_up(context: Context, run: StandingRun, store: RunStore, restart_id: str) -> bool:
    """Copy records that the home holds and the catalog does not; whether there were any.

    Raises:
        Malformed: a new record of a binding kind does not decode.
    """
    known = {(one.number, KIND_OF[type(one.record)]) for one in run.records}
    ids = {one.record.stamp.id for one in run.records}
    found = [one for one in _unknown(store, restart_id, known) if one.record.stamp.id not in ids]
    put(context, run.run_id, found)
    return bool(found)


def _unknown(
    store: RunStore, restart_id: str, known: set[tuple[int, str]]
) -> Iterator[NumberedRecord]:
    own, _, _ = restart_file_name(restart_id, 0).removeprefix("restart.").partition(".")
    directory = f"{store.sidecar}/journal"
    try:
        names = [entry.name for entry in store.storage.list(directory)]
    except FileNotFoundError:
        return
    for name in names:
        restart = parse_restart_file_name(name)
        if restart is not None:
            if restart[0] == own:
                yield NumberedRecord(0, _read(store, f"{directory}/{name}"))
            continue
        parsed = parse_record_file_name(name)
        if parsed is None or parsed in known or parsed[1] in _NOT_ASKED:
            continue
        number, kind = parsed
        try:
            yield NumberedRecord(number, _read(store, f"{directory}/{name}"))
        except Malformed:
            if kind in BINDING_KINDS or kind not in KIND_OF.values():
                raise


def _read(store: RunStore, path: str) -> Record:
    with store.storage.open(path) as file:
        size = file.stat().bytes
        if size > MAX_FILE_BYTES:
            raise Malformed(f"{path}: {size} bytes are no record")
        return decode_record(file.read_at(0, size + 1), where=path)


def put(context: Context, run_id: str, records: Iterable[NumberedRecord]) -> None:
    """Keep the catalog's copy of records."""
    facts = [
        RecordFacts(
            run_id=run_id,
            record_id=one.record.stamp.id,
            number=one.number,
            kind=KIND_OF[type(one.record)],
            at_ns=one.record.stamp.at_ns,
            raw=encode_record(one.record),
        )
        for one in records
    ]
    if facts:
        context.catalog.put_records(facts)


def index(context: Context, run_id: str, restart: Restart) -> None:
    """Let the catalog know a decision that stands in the journal."""
    with context.catalog.transaction():
        put(context, run_id, [NumberedRecord(0, restart)])
        context.catalog.decide(
            run_id, restart.restart_id, restart.epoch, restart.content_id, restart.fresh
        )


def append(context: Context, run: StandingRun, store: RunStore | None, record: Record) -> None:
    """Write a record: to the home and, if they answer, the run's other places; then the catalog.

    A run without a shared place has its records in the catalog alone until a node's agent is
    asked to keep them.
    """
    if store is None:
        with context.catalog.transaction():
            known = context.catalog.binding_records(run.run_id)
            number = max((one.number for one in known), default=0) + 1
            put(context, run.run_id, [NumberedRecord(number, record)])
        return
    number = store.append(record)
    put(context, run.run_id, [NumberedRecord(number, record)])
    for site in run.sites.values():
        if site is run.home or site.why_not is not None or not is_here(context, site.place.node):
            continue
        try:
            _store(context, run, site).append(record)
        except CkptgovError as error:
            context.talk(f"the record was not copied to {site.address}: {error.message}")
