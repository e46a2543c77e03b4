"""What is written decodes to what it was, whatever the values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptgov.manifest.build import build_manifest
from ckptgov.manifest.content import content_id
from ckptgov.manifest.forms.identities import decode_run, decode_tier, encode_run, encode_tier
from ckptgov.manifest.forms.manifests import (
    decode_manifest,
    decode_manifest_header,
    decode_part,
    encode_manifest,
    encode_part,
)
from ckptgov.manifest.forms.receipts import decode_receipt, encode_receipt
from ckptgov.manifest.forms.records import decode_record, encode_record
from ckptgov.model import journal
from ckptgov.model.checkpoint import (
    CHUNK_BYTES,
    Evidence,
    Expect,
    Part,
    Purpose,
    Receipt,
    RunIdentity,
    Shard,
    StepKind,
    TierIdentity,
)
from ckptgov.model.files import Token

PART = st.binary(min_size=1, max_size=12).filter(
    lambda part: part not in (b".", b"..") and not set(part) & {0, 0x2F}
)
PATHS = st.lists(PART, min_size=1, max_size=3).map(
    lambda parts: b"/".join(parts).decode("utf-8", "surrogateescape")
)
COUNTS = st.integers(0, 2**63 - 1)
TEXTS = st.text(min_size=1, max_size=20)  # hypothesis gives no surrogates here
HEX32 = st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}")
DIGESTS = HEX32.map(lambda digits: f"xxh3_128:{digits}")
CONTENT_IDS = st.integers(0, 2**256 - 1).map(lambda number: f"sha256:{number:064x}")
UUIDS = st.uuids().map(str)
PURPOSES = st.sampled_from(
    [(Purpose.RESUME,), (Purpose.WEIGHTS,), (Purpose.RESUME, Purpose.WEIGHTS)]
)
STEPS = st.one_of(
    st.tuples(COUNTS, st.sampled_from([StepKind.STEP, StepKind.ORDINAL])),
    st.just((None, StepKind.NONE)),
)


@st.composite
def shard_lists(draw: st.DrawFn) -> tuple[Shard, ...]:
    paths = draw(st.one_of(st.just({""}), st.sets(PATHS, min_size=1, max_size=5)))
    shards = []
    for path in sorted(paths, key=lambda path: path.encode("utf-8", "surrogateescape")):
        size = draw(st.one_of(COUNTS.map(lambda n: n % 2**20), st.integers(0, 5 * CHUNK_BYTES)))
        count = -(-size // CHUNK_BYTES) if size > CHUNK_BYTES else 0
        chunks = tuple(draw(st.lists(DIGESTS, min_size=count, max_size=count)))
        shards.append(Shard(path, size, draw(DIGESTS), chunks))
    return tuple(shards)


@given(PATHS, STEPS, TEXTS, st.none() | st.integers(1, 2**20), PURPOSES, shard_lists())
def test_manifests(
    name: str,
    step: tuple[int | None, StepKind],
    layout: str,
    world_size: int | None,
    purposes: tuple[Purpose, ...],
    shards: tuple[Shard, ...],
) -> None:
    manifest = build_manifest(
        name=name,
        step=step[0],
        step_kind=step[1],
        layout=layout,
        world_size=world_size,
        purposes=purposes,
        shards=reversed(shards),
    )
    raw = encode_manifest(manifest)
    assert json.loads(raw)["content_id"] == manifest.content_id
    assert decode_manifest(raw, where="m") == manifest
    assert decode_manifest_header(raw, where="m").name == name


@given(shard_lists(), st.none() | TEXTS, st.sampled_from(["rank", "node", ""]), COUNTS, TEXTS)
def test_parts(
    shards: tuple[Shard, ...], save_id: str | None, member: str, rank: int, node: str
) -> None:
    part = Part(
        name="step_1",
        step=1,
        step_kind=StepKind.STEP,
        layout="dcp",
        world_size=None,
        purposes=(Purpose.RESUME,),
        save_id=save_id,
        rank=rank if member == "rank" else None,
        node=node if member == "node" else None,
        expected_parts=2,
        shards=shards,
    )
    assert decode_part(encode_part(part), where="p") == part


@given(CONTENT_IDS, UUIDS, COUNTS, st.sets(PATHS, min_size=1, max_size=4), st.data())
def test_receipts(
    content_id: str, place: str, at_ns: int, paths: set[str], drawn: st.DataObject
) -> None:
    tokens = st.builds(Token, COUNTS, COUNTS, COUNTS, st.integers(0, 2**64 - 1))
    receipt = Receipt(
        content_id=content_id,
        place=place,
        evidence=Evidence.DIGEST,
        verified_at_ns=at_ns,
        tokens=tuple(
            (path, drawn.draw(tokens))
            for path in sorted(paths, key=lambda path: path.encode("utf-8", "surrogateescape"))
        ),
    )
    assert decode_receipt(encode_receipt(receipt), where="r") == receipt


@given(UUIDS, PATHS, TEXTS, st.none() | st.builds(Expect, glob=TEXTS, marker=st.none() | TEXTS))
def test_run_identities(run_id: str, name: str, selector: str, expect: Expect | None) -> None:
    run = RunIdentity(run_id=run_id, name=name, selector=selector, expect=expect)
    assert decode_run(encode_run(run), where="run.json") == run


@given(UUIDS, TEXTS, st.text(max_size=20), COUNTS)
def test_tier_identities(place: str, tier: str, source: str, epoch: int) -> None:
    identity = TierIdentity(
        place=place, tier=tier, fs_type="nfs", source=source, catalog=place, epoch=epoch
    )
    assert decode_tier(encode_tier(identity), where="t") == identity


DECIMALS = st.one_of(
    st.floats().map(repr), st.integers().map(str), st.sampled_from(["NaN", "+1.", ".5e-3", "-inf"])
)
STAMPS = st.builds(
    journal.Stamp,
    id=UUIDS,
    run_id=UUIDS,
    at_ns=COUNTS,
    by=TEXTS,
    reason=st.none() | st.text(max_size=20),
)
WHO = {"stamp": STAMPS, "content_id": CONTENT_IDS}
BAD = {"stamp": STAMPS, "from_step": st.integers(0, 9), "until_step": st.none() | st.just(9)}
METRICS = st.dictionaries(TEXTS, DECIMALS, max_size=3).map(lambda m: tuple(sorted(m.items())))
PLACES = st.none() | UUIDS
RECORDS = st.one_of(
    STEPS.flatmap(
        lambda step: st.builds(
            journal.Sealed,
            **WHO,
            step=st.just(step[0]),
            step_kind=st.just(step[1]),
            line=COUNTS,
            attempt=COUNTS,
            save_id=st.none() | TEXTS,
            metrics=METRICS,
        )
    ),
    st.builds(
        journal.LineOpened,
        stamp=STAMPS,
        line=COUNTS,
        parent=COUNTS,
        base_step=COUNTS,
        cause=st.sampled_from(journal.LineCause),
    ),
    st.builds(journal.Rollback, stamp=STAMPS, to_step=COUNTS, line=COUNTS),
    st.builds(journal.MarkBad, **BAD),
    st.builds(journal.MarkBad, **WHO),
    st.builds(journal.UnmarkBad, **BAD),
    st.builds(journal.Pin, **WHO, pin_name=TEXTS, until_ns=st.none() | COUNTS),
    st.builds(journal.Unpin, **WHO, pin_name=TEXTS),
    st.builds(journal.Metric, **WHO, name=TEXTS, value=DECIMALS),
    st.builds(
        journal.Outcome,
        **WHO,
        restart_id=TEXTS,
        epoch=COUNTS,
        outcome=st.sampled_from(journal.RestoreOutcome),
    ),
    st.builds(journal.Restart, **WHO, restart_id=TEXTS, epoch=COUNTS),
    st.builds(journal.Restart, stamp=STAMPS, restart_id=TEXTS, epoch=COUNTS, fresh=st.just(True)),
    st.builds(journal.Lost, **WHO, place=UUIDS),
    st.builds(journal.Tombstone, **WHO, place=PLACES, plan_id=st.none() | TEXTS),
    st.builds(journal.Undelete, **WHO, place=PLACES),
    st.builds(journal.Retire, stamp=STAMPS),
    st.builds(journal.Finish, stamp=STAMPS),
)


@given(RECORDS)
def test_records_of_all_kinds(record: journal.Record) -> None:
    raw = encode_record(record)
    assert json.loads(raw)["kind"] == journal.KIND_OF[type(record)]
    assert decode_record(raw, where="j") == record


def test_metrics_are_written_sorted_by_name() -> None:
    nobody = "00000000-0000-0000-0000-000000000000"
    stamp = journal.Stamp(id=nobody, run_id=nobody, at_ns=0, by="me")
    sealed = journal.Sealed(
        stamp=stamp,
        content_id=f"sha256:{'0' * 64}",
        step=None,
        step_kind=StepKind.NONE,
        line=1,
        attempt=0,
        metrics=(("b", "1"), ("a", "2")),
    )
    assert b'"metrics":{"a":"2","b":"1"},' in encode_record(sealed)


CONTENT_OF_A_AND_B = "sha256:b07be069512e0cfa5b537c45be009a2bad3a101545d168dc405608f30c598cec"
"""From a shell: printf of the text in the forms, piped into sha256sum."""


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_content_id_does_not_depend_on_the_order_of_shards(order: str) -> None:
    shards = {
        "a": Shard("a", 2, f"xxh3_128:{'1' * 32}"),
        "b": Shard("b", 1, f"xxh3_128:{'0' * 32}"),
    }
    assert content_id(shards[path] for path in order) == CONTENT_OF_A_AND_B
