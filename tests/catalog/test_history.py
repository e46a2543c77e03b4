from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap

import pytest
from msgspec import structs

from ckptgov.catalog.facts import Decision, EventKind, RecordFacts
from ckptgov.errors import UnknownRun
from ckptgov.model.checkpoint import RunIdentity

RECORD = RecordFacts(
    run_id="r1", record_id="i1", number=2, kind="rollback", at_ns=5, raw=b'{"to_step":1}\n'
)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events",
        "UPDATE events SET at_ns = 0",
        "INSERT OR REPLACE INTO events (seq, at_ns, kind, detail) VALUES (1, 0, 'x', '{}')",
    ],
)
def test_events_cannot_be_changed(filled, path, statement):
    before = filled.events()
    filled.close()
    other = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(statement)
    other.close()
    assert filled.events() == before


def test_events_come_in_order_from_where_the_reader_left_off(filled):
    filled.put_run(RunIdentity(run_id="r2", name="other"), 9)
    everything = filled.events()
    assert [e.kind for e in everything] == [
        EventKind.CREATED,
        EventKind.PLACE_ADDED,
        EventKind.RUN_ADDED,
        EventKind.SEALED,
        EventKind.RUN_ADDED,
    ]
    assert filled.events(everything[1].seq, limit=2) == everything[2:4]
    assert filled.events(0, run_id="r2") == everything[4:]
    assert filled.events(everything[-1].seq) == ()


def test_records_come_by_number_and_putting_one_again_changes_nothing(filled):
    first = structs.replace(RECORD, record_id="i0", number=10, raw=b"\x00\xff")
    filled.put_records([first, RECORD])
    filled.put_records([structs.replace(RECORD, number=99), first])
    filled.put_records([])
    assert filled.records("r1") == (RECORD, first)


def test_records_of_an_unknown_run_are_refused(catalog):
    with pytest.raises(UnknownRun):
        catalog.put_records([RECORD])


def test_the_first_decision_stands(catalog):
    assert catalog.decide("r1", "restart", 1, "sha256:c1", False) == ("sha256:c1", False)
    assert catalog.decide("r1", "restart", 1, "sha256:c2", False) == ("sha256:c1", False)
    assert catalog.decide("r1", "restart", 1, None, True) == ("sha256:c1", False)
    assert catalog.decide("r1", "restart", 2, None, True) == (None, True)
    assert catalog.decision("r1", "restart", 2) == Decision(
        run_id="r1", restart_id="restart", epoch=2, content_id=None, fresh=True
    )
    assert catalog.decision("r1", "restart", 3) is None
    assert [event.kind for event in catalog.events()].count(EventKind.DECIDED) == 2


@pytest.mark.parametrize(("content_id", "fresh"), [(None, False), ("sha256:c1", True)])
def test_a_decision_is_a_checkpoint_or_a_fresh_start(catalog, content_id, fresh):
    with pytest.raises(ValueError, match="either"):
        catalog.decide("r1", "restart", 1, content_id, fresh)


def test_of_eight_processes_that_decide_one_wins(catalog, opening):
    script = textwrap.dedent(
        """
        import os
        import sys
        from ckptgov.catalog.catalog import Catalog
        from ckptgov.model.clock import SystemClock
        OPENING.close()  # everything is imported once, before they part
        ready, tell = os.pipe()
        gate, hold = os.pipe()
        for number in range(8):
            if os.fork() == 0:
                os.close(hold)
                with OPENING as catalog:
                    os.write(tell, b".")
                    os.read(gate, 1)  # until whoever holds it lets go, for all of them at once
                    told = catalog.decide("r1", "restart", 1, f"sha256:{number}", False)
                os.write(1, f"{told[0]} {told[1]}\\n".encode())
                os._exit(0)
        os.close(tell)
        waited_for = 8
        while waited_for:
            waited_for -= len(os.read(ready, 8)) or sys.exit("one of them ended")
        os.close(hold)
        sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(8)))
        """
    )
    ended = subprocess.run(
        [sys.executable, "-c", script.replace("OPENING", opening)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    won = f"{catalog.decision('r1', 'restart', 1).content_id} False"
    assert ended.stdout.splitlines() == [won] * 8


def test_a_wipe_forgets_what_storage_can_tell_and_keeps_the_rest(filled):
    filled.put_records([RECORD])
    filled.decide("r1", "restart", 1, "sha256:c1", False)
    filled.adopt_identity("u", 2)
    told = filled.events()
    filled.wipe_facts()
    assert (
        filled.places() == filled.runs() == filled.checkpoints("r1") == filled.records("r1") == ()
    )
    assert filled.identity().uuid == "u"
    assert filled.decide("r1", "restart", 1, None, True) == ("sha256:c1", False)
    assert filled.events()[:-1] == told
    assert filled.events()[-1].kind is EventKind.FACTS_WIPED


def test_facts_can_be_filled_in_again_after_a_wipe(filled, place, sealed):
    filled.wipe_facts()
    filled.put_place(place)
    filled.put_run(RunIdentity(run_id="r1", name="team/llm"), 6)
    assert filled.put_sealed(sealed, b"m")
    assert filled.checkpoints("r1") == (sealed,)
