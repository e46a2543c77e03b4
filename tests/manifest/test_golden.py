"""Files written twice from the forms' text by independent programs: equal bytes both ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.manifest import names
from ckptgov.manifest.build import build_manifest
from ckptgov.manifest.digest import digest_file
from ckptgov.manifest.forms.identities import decode_run, decode_tier, encode_run, encode_tier
from ckptgov.manifest.forms.manifests import (
    decode_manifest,
    decode_manifest_header,
    encode_manifest,
)
from ckptgov.manifest.forms.receipts import decode_receipt, encode_receipt
from ckptgov.manifest.forms.records import decode_record, encode_record
from ckptgov.model.checkpoint import (
    Evidence,
    Manifest,
    Purpose,
    Receipt,
    RunIdentity,
    Shard,
    StepKind,
    TierIdentity,
)
from ckptgov.model.files import Token
from ckptgov.model.journal import (
    MarkBad,
    Outcome,
    Pin,
    Record,
    Restart,
    RestoreOutcome,
    Rollback,
    Sealed,
    Stamp,
)

RUN_ID = "11111111-2222-4333-8444-555555555555"
PLACE = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
CATALOG = "99999999-8888-4777-8666-555555555555"
AT_NS = 1796000000123456789
BOTH = (Purpose.RESUME, Purpose.WEIGHTS)
ODD = "x\udce4\udcf6\ny"

K1 = build_manifest(
    name="step_100",
    step=100,
    step_kind=StepKind.STEP,
    layout="dcp",
    world_size=2,
    purposes=BOTH,
    shards=[
        Shard(ODD, 1, "xxh3_128:a6cd5e9392000f6ac44bdff4074eecdb"),
        Shard("sub/été.bin", 0, "xxh3_128:99aa06d3014798d86001c324468d497f"),
        Shard(
            "__1_0.distcp",
            157286400,
            "xxh3_128:e7936a88954fac548f121e2905d7b84b",
            (
                "xxh3_128:f72df93a0d5c7ee66255585942fc4d23",
                "xxh3_128:0707848dfd60d7abc8220f14cfde9378",
                "xxh3_128:9db6b0f563c01a51819a1f5f26edc3b7",
            ),
        ),
        Shard("__0_0.distcp", 67108864, "xxh3_128:7227ba0ecbbf133e7d985970875d064c"),
        Shard(".metadata", 5, "xxh3_128:b5e9c1ad071b3e7fc779cfaa5e523818"),
    ],
)
K2 = build_manifest(
    name="epoch=1-step=200.ckpt",
    step=200,
    step_kind=StepKind.STEP,
    layout="lightning",
    world_size=None,
    purposes=BOTH,
    shards=[Shard("", 3, "xxh3_128:06b05ab6733a618578af5f94892f3950")],
)
K3 = build_manifest(
    name="checkpoints/checkpoint_1",
    step=1,
    step_kind=StepKind.ORDINAL,
    layout="accelerate",
    world_size=None,
    purposes=[Purpose.WEIGHTS],
    shards=[Shard("model.safetensors", 10, "xxh3_128:bc21ef264f9b8a7b340c69f8d30e0cdb")],
)
RECEIPT = Receipt(
    content_id=K1.content_id,
    place=PLACE,
    evidence=Evidence.DIGEST,
    verified_at_ns=AT_NS,
    tokens=tuple(
        (shard.path, Token(shard.bytes, 1795999999000000001, 1795999999000000002, 42))
        for shard in K1.shards
    ),
)
RUN = RunIdentity(run_id=RUN_ID, name="lm/llm-7b")
TIER = TierIdentity(
    place=PLACE,
    tier="lustre",
    fs_type="lustre",
    source="10.0.0.1@o2ib:/fs1",
    catalog=CATALOG,
    epoch=3,
)


def stamp(number: str, reason: str | None = None) -> Stamp:
    return Stamp(
        id=f"00000000-0000-4000-8000-{number:>012}",
        run_id=RUN_ID,
        at_ns=AT_NS,
        by="uid:1000@node7",
        reason=reason,
    )


RECORDS: list[Record] = [
    Sealed(
        stamp=stamp("1"),
        content_id=K1.content_id,
        step=100,
        step_kind=StepKind.STEP,
        line=1,
        attempt=0,
        save_id="77777777-0000-4000-8000-000000000000",
        metrics=(("eval_loss", "0.25"),),
    ),
    Rollback(stamp=stamp("2", "loss spike"), to_step=100, line=2),
    MarkBad(stamp=stamp("3", "NaN"), from_step=150),
    Pin(stamp=stamp("4", "release"), content_id=K2.content_id, pin_name="paper"),
    Outcome(
        stamp=stamp("5"),
        content_id=K1.content_id,
        restart_id="slurm-1-0",
        epoch=0,
        outcome=RestoreOutcome.LOAD_FAILED,
    ),
]
KINDS = ["sealed", "rollback", "mark-bad", "pin", "outcome"]
RESTART = Restart(stamp=stamp("aa"), restart_id="slurm-1-0", epoch=0, content_id=K1.content_id)


@pytest.mark.parametrize("manifest", [K1, K2, K3], ids=["K1", "K2", "K3"])
def test_manifests_are_the_golden_bytes_under_the_golden_name(
    golden: Path, manifest: Manifest
) -> None:
    file_name = names.manifest_file_name(manifest.name, manifest.content_id)
    raw = (golden / "manifests" / file_name).read_bytes()
    assert encode_manifest(manifest) == raw
    assert decode_manifest(raw, where=file_name) == manifest
    header = decode_manifest_header(raw, where=file_name)
    assert (header.content_id, header.name, header.step, header.step_kind) == (
        manifest.content_id,
        manifest.name,
        manifest.step,
        manifest.step_kind,
    )


def test_the_receipt_is_the_golden_bytes_under_the_golden_name(golden: Path) -> None:
    file_name = names.receipt_file_name(K1.name, K1.content_id, 1)
    raw = (golden / "receipts" / file_name).read_bytes()
    assert encode_receipt(RECEIPT) == raw
    assert decode_receipt(raw, where=file_name) == RECEIPT


@pytest.mark.parametrize("number", range(1, 6))
def test_journal_records_are_the_golden_bytes(golden: Path, number: int) -> None:
    file_name = names.record_file_name(number, KINDS[number - 1])
    raw = (golden / "journal" / file_name).read_bytes()
    assert encode_record(RECORDS[number - 1]) == raw
    assert decode_record(raw, where=file_name) == RECORDS[number - 1]


def test_the_restart_decision_is_the_golden_bytes_under_its_fixed_name(golden: Path) -> None:
    file_name = names.restart_file_name("slurm-1-0", 0)
    raw = (golden / "journal" / file_name).read_bytes()
    assert encode_record(RESTART) == raw
    assert decode_record(raw, where=file_name) == RESTART


def test_the_identities_are_the_golden_bytes(golden: Path) -> None:
    run, tier = (golden / "run.json").read_bytes(), (golden / ".ckptgov-tier.json").read_bytes()
    assert (encode_run(RUN), encode_tier(TIER)) == (run, tier)
    assert (decode_run(run, where="run"), decode_tier(tier, where="tier")) == (RUN, TIER)


@pytest.mark.parametrize(
    ("path", "factor", "start"), [("__0_0.distcp", 1, 0), ("__1_0.distcp", 7, 3)]
)
def test_digests_of_generated_files_are_the_golden_ones(
    fake_file: Callable[..., object], path: str, factor: int, start: int
) -> None:
    shard = next(shard for shard in K1.shards if shard.path == path)
    found = digest_file(fake_file(shard.bytes, factor=factor, start=start))  # type: ignore[arg-type]
    assert found.shard(path) == shard
