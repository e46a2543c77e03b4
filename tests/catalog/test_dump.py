"""A dump is a whole catalog: into either engine, or not at all."""

from __future__ import annotations

import io
import json
import random
from hashlib import sha256

import pytest
import zstandard
from msgspec import structs

from ckptgov.catalog import dumptables
from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import EventKind, PlacedCopy, RecordFacts, RunRootFacts
from ckptgov.catalog.loading import LEAP
from ckptgov.errors import ConfigError, LeaseLost, Malformed, StorageError, UsageError
from ckptgov.model.access import Right, TokenFacts
from ckptgov.model.checkpoint import Evidence, Expect, RunIdentity, StepKind
from ckptgov.model.cluster import NewTask, NodeBeat, PartFacts, TaskKind, TaskState
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Finding, Found, Reason, ResumeArgs, Sighting
from ckptgov.model.retention import Action, Plan, PlanState, Removal

ODD = "odd\udcff\n\0"


REMOVAL = Removal(
    run_id="r1",
    content_id="sha256:c1",
    place="p1",
    name="step_100",
    action=Action.EVICT,
    plan_id="p",
    state=CopyState.TRASHED,
    condemned_at_ns=1,
    due_at_ns=2**62,
    trash_s=0.5,
    bytes=17,
    files=3,
    trash=ODD,
    error=ODD,
)


@pytest.fixture
def full(filled, place):
    """A catalog with something in every table that is dumped."""
    filled.put_place(structs.replace(place, place="p2", root=ODD, node="n\udcff"))
    filled.put_run(RunIdentity(run_id="r2", name=ODD, expect=Expect(glob="*", count=4)), 9)
    filled.put_run_root(RunRootFacts(run_id="r1", place="p1", path=ODD, sidecar="s"))
    finding = Finding(Reason.TORN, ODD, "12 of 17")
    filled.put_copy(
        PlacedCopy(
            run_id="r1",
            content_id="sha256:c1",
            place="p2",
            name=ODD,
            state=CopyState.PARTIAL,
            coverage=b"\0\xff",
            evidence=Evidence.DIGEST,
            verified_at_ns=2**62,
            findings=(finding,),
        ),
        9,
    )
    sighting = Sighting(
        found=Found(name=ODD, layout="dcp", step=10**30, step_kind=StepKind.STEP),
        step=10**30,
        step_kind=StepKind.STEP,
        shards=(),
        expected=(),
        findings=(finding,),
        resume=ResumeArgs(path=ODD, parent="", step=None, tag=""),
    )
    filled.put_sightings("r1", "p1", [sighting], 9)
    filled.put_records(
        [RecordFacts(run_id="r1", record_id="i", number=1, kind="pin", at_ns=5, raw=b"\0\xfe")]
    )
    filled.decide("r1", ODD, 1, None, True)
    filled.put_abilities("p1", '{"a":1}', 5)
    filled.removals.adopt(REMOVAL)
    for plan_id, state in (("open", PlanState.WAITING), ("over", PlanState.APPLIED)):
        plan = Plan(plan_id=plan_id, now_ns=1, change_seq=1, policies=((ODD, "d"),), entries=())
        filled.plans.put(plan, state=state, by=ODD)
    filled.take_copy_lease("sha256:c1", "p1", holder="h", ttl_ns=10**12)
    filled.flows.take_allocator("p", 10**12)
    filled.nodes.beat(NodeBeat(node="n\udcff", boot="b", version="1"))
    filled.tokens.add(
        TokenFacts(
            token_id="t",
            label=ODD,
            secret_sha256="s",
            rights=frozenset({Right.READ}),
            created_at_ns=1,
        )
    )
    filled.activities.declare("scan", every_s=0.5, slo_s=1e9)
    filled.activities.take_leader("replica", 10.0)
    filled.put_part(PartFacts(run_id="r1", name=ODD, place="p1", told=b"\0"))
    for key in ("ended", "held", "queued"):
        filled.tasks.add(NewTask(kind=TaskKind.SCAN, key=key, payload=b"\xff"))
    ended, _ = filled.tasks.claim(node=None, holder="h", kinds=None, ttl_s=1e3, limit=2)
    filled.tasks.end(ended.task_id, ended.lease, state=TaskState.DONE, outcome=b"")
    return filled


def dumped(catalog) -> bytes:
    out = io.BytesIO()
    catalog.dump(out.write)
    return out.getvalue()


def load(catalog, raw: bytes):
    return catalog.load(io.BytesIO(raw).read)


def lines(raw: bytes) -> list[bytes]:
    text = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw)).read()
    return text.splitlines(keepends=True)


def packed(text: list[bytes]) -> bytes:
    return zstandard.ZstdCompressor().compress(b"".join(text))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path, clock):
    """A new catalog of either engine."""
    if request.param == "sqlite":
        path = str(tmp_path / "other" / "catalog.db")
        with Catalog.open(path, fs_type="ext4", is_network=False, clock=clock) as catalog:
            yield catalog
        return
    server, template = (request.getfixturevalue(name) for name in ("server", "template"))
    request.getfixturevalue("still")
    url = server.new_database(template=template)
    with Catalog.connect(url, clock=clock) as catalog:
        yield catalog
    server.drop(url)


def facts(catalog) -> dict[str, object]:
    """Everything that a load must bring back, by the answers that tell it."""
    return {
        "places": catalog.places(),
        "runs": catalog.runs(),
        "roots": catalog.roots_of("r1"),
        "checkpoints": catalog.checkpoints("r1"),
        "manifest": catalog.manifest_bytes("r1", "sha256:c1"),
        "copies": catalog.copies("r1"),
        "sightings": catalog.sightings("r1"),
        "records": catalog.records("r1"),
        "decision": catalog.decision("r1", ODD, 1),
        "abilities": catalog.abilities("p1"),
        "nodes": catalog.nodes.nodes(),
        "tokens": catalog.tokens.tokens(),
        "activities": catalog.activities.activities(),
        "parts": catalog.parts_of("r1"),
        "removals": catalog.removals.removals(),
        "plans": catalog.plans.plans(states=[PlanState.WAITING]),
    }


def test_a_loaded_catalog_says_what_the_dumped_one_said(full, empty) -> None:
    identity = full.identity()
    loaded = load(empty, dumped(full))
    assert loaded == empty.identity() == structs.replace(identity, epoch=identity.epoch + 1)
    assert facts(empty) == facts(full)
    *kept, last = empty.events()
    assert tuple(kept) == full.events()
    assert last.kind is EventKind.LOADED


def test_something_of_every_dumped_table_was_there_to_be_lost(full) -> None:
    told = lines(dumped(full))
    starts = [number for number, line in enumerate(told) if line.startswith(b'{"table"')]
    for number in starts:
        assert told[number + 1].startswith(b"["), told[number]
    assert len(starts) == len(dumptables.TABLES)


def test_a_loaded_catalog_goes_on(full, empty, sealed) -> None:
    load(empty, dumped(full))
    empty.put_run(RunIdentity(run_id="r9", name="new"), 9)
    assert empty.put_sealed(structs.replace(sealed, content_id="c9"), b"m")
    assert empty.tasks.add(NewTask(kind=TaskKind.SCAN, key="new", payload=b"")).task_id
    again = dumped(empty)
    assert again.startswith(b"\x28\xb5\x2f\xfd")


def test_no_number_that_fences_comes_again(full, empty) -> None:
    held = full.tasks.tasks(states=[TaskState.CLAIMED])[0]
    leader = full.activities.leader()
    seq, events = full.change_seq(), full.events()
    raw = dumped(full)
    # What happens behind the dump is lost with the catalog, but not to whom it was told.
    full.tasks.renew(held.task_id, held.lease, ttl_s=1.0)
    load(empty, raw)
    assert empty.change_seq() > seq + LEAP - 1
    assert empty.events()[-1].seq > events[-1].seq + LEAP - 1
    assert empty.take_copy_lease("sha256:c1", "p1", holder="h2", ttl_ns=9) > LEAP
    assert empty.activities.take_leader("other", 10.0).epoch > LEAP
    with pytest.raises(LeaseLost):
        empty.activities.require_leader(leader)
    with pytest.raises(LeaseLost):
        empty.tasks.end(held.task_id, held.lease, state=TaskState.DONE, outcome=b"")
    (taken, _) = empty.tasks.claim(node=None, holder="h2", kinds=None, ttl_s=1.0, limit=9)
    assert (taken.task.key, taken.lease) == ("held", LEAP + 2)


def test_tasks_that_ended_are_not_dumped(full, empty) -> None:
    load(empty, dumped(full))
    assert [one.task.key for one in empty.tasks.tasks()] == ["queued", "held"]


def test_plans_that_are_over_are_not_dumped(full, empty) -> None:
    load(empty, dumped(full))
    assert [one.plan.plan_id for one in empty.plans.plans()] == ["open"]


def test_a_removal_goes_on_in_a_loaded_catalog(full, empty) -> None:
    load(empty, dumped(full))
    assert empty.removals.removals() == (REMOVAL,)
    empty.removals.purged("r1", "sha256:c1", "p1")


def test_a_catalog_that_holds_facts_is_not_overwritten(full, empty, place) -> None:
    raw = dumped(full)
    empty.put_run(RunIdentity(run_id="r9", name="new"), 9)
    before = empty.events()
    with pytest.raises(UsageError, match="holds runs already"):
        load(empty, raw)
    assert ([one.identity.name for one in empty.runs()], empty.events()) == (["new"], before)


def test_what_an_empty_catalog_was_told_of_its_tiers_gives_way(full, empty, place) -> None:
    empty.put_place(structs.replace(place, place="p9", root="/elsewhere"))
    empty.put_abilities("p9", "{}", 9)
    load(empty, dumped(full))
    assert empty.places() == full.places()
    assert empty.abilities("p9") is None


def damages(raw: bytes) -> dict[str, bytes]:
    text = lines(raw)
    row = next(n for n, line in enumerate(text) if b"sha256:c1" in line)
    renamed = text[row].replace(b'"dcp"', b'"hf"')
    return {
        "nothing": b"",
        "no dump": b"not a dump at all\n" * 100,
        "cut in half": raw[: len(raw) // 2],
        "cut at its end": raw[:-1],
        "a bit flipped": raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:],
        "more behind it": raw + b"x",
        "a line behind its end": packed([*text, b"{}\n"]),
        "a row lost": packed(text[:row] + text[row + 1 :]),
        "a row twice": packed([*text[: row + 1], *text[row:]]),
        "a row changed": packed([*text[:row], renamed, *text[row + 1 :]]),
        "without its end": packed(text[:-1]),
        "cut in a line": packed([*text[:-1], text[-1][:-5]]),
        "no JSON": packed([*text[:row], b"[\xff]\n", *text[row + 1 :]]),
        "deep": packed([text[0], text[1], b"[" * 100_000 + b"\n", *text[2:]]),
        "too few columns": packed([*text[:row], b"[1]\n", *text[row + 1 :]]),
        "another table": packed([text[0], text[1].replace(b"places", b"palaces"), *text[2:]]),
        "another thing": packed([b'{"format":"x"}\n', *text[1:]]),
        "another format": packed([text[0].replace(b".catalog", b".manifest"), *text[1:]]),
    }


def test_a_damaged_dump_is_refused_whole(full, path, tmp_path, clock) -> None:
    raw = dumped(full)
    other = str(tmp_path / "other" / "catalog.db")
    with Catalog.open(other, fs_type="ext4", is_network=False, clock=clock) as empty:
        before = empty.events(), empty.identity()
        for damage, wrong in damages(raw).items():
            with pytest.raises(Malformed):
                load(empty, wrong)
            assert (empty.events(), empty.identity()) == before, damage
            assert empty.places() == empty.runs() == empty.tokens.tokens() == (), damage
        load(empty, raw)


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (b'["p1",', b"[1,"),
        (b",true]", b",1]"),
        (b",true]", b",null]"),
        (b",5,true]", b",5.5,true]"),
        (b",5,true]", b",true,true]"),
        (b",5,true]", b",99999999999999999999,true]"),
        (b'"bHVzdHJl"', b'"b*VzdHJl"'),
    ],
)
def test_a_row_that_no_ckptgov_wrote_is_refused_though_its_checksum_is_right(
    catalog, place, row, wrong, empty
) -> None:
    catalog.put_place(place)
    text = lines(dumped(catalog))
    assert row in text[2]
    text[2] = text[2].replace(row, wrong)
    end = {"rows": json.loads(text[-1])["rows"], "sha256": sha256(b"".join(text[:-1])).hexdigest()}
    with pytest.raises(Malformed):
        load(empty, packed([*text[:-1], json.dumps(end).encode() + b"\n"]))
    assert empty.places() == ()


def test_events_stay_as_they_are_in_a_loaded_catalog(full, empty) -> None:
    load(empty, dumped(full))

    def forget() -> None:
        with empty._database.write() as connection:
            connection.exec_driver_sql("DELETE FROM events")

    with pytest.raises(StorageError, match="append-only"):
        forget()


def test_a_server_too_loads_all_or_nothing(catalog, url, sealed, place) -> None:
    catalog.put_place(place)
    catalog.put_run(RunIdentity(run_id="r1", name="a"), 9)
    catalog.put_sealed(sealed, b"m")
    raw = dumped(catalog)
    catalog.wipe_facts()
    with pytest.raises(Malformed):
        load(catalog, raw[:-1])
    assert catalog.places() == ()
    load(catalog, raw)
    assert catalog.checkpoints("r1") == (sealed,)


@pytest.mark.parametrize("member", ["version", "schema"])
def test_a_dump_of_another_version_is_refused_saying_so(full, empty, member) -> None:
    text = lines(dumped(full))
    heading = json.loads(text[0])
    heading[member] += 1
    with pytest.raises(ConfigError, match="has version"):
        load(empty, packed([json.dumps(heading).encode() + b"\n", *text[1:]]))


def test_a_dump_is_written_piece_by_piece(filled, sealed) -> None:
    noise = random.Random(1).randbytes
    for number in range(40):
        filled.put_sealed(structs.replace(sealed, content_id=str(number)), noise(50_000))
    pieces: list[int] = []
    filled.dump(lambda piece: pieces.append(len(piece)))
    assert len(pieces) > 1


def test_a_dump_is_of_one_moment(filled, open_catalog) -> None:
    """What is committed while it is written is not in it."""
    other = open_catalog()
    out = io.BytesIO()

    def write(piece: bytes) -> None:
        if not out.tell():
            other.put_run(RunIdentity(run_id="late", name="late"), 9)
        out.write(piece)

    filled.dump(write)
    assert b"late" not in b"".join(lines(out.getvalue()))


def test_what_a_writer_raises_is_not_ours_to_translate(filled) -> None:
    def write(piece: bytes) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        filled.dump(write)
