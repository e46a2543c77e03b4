"""Everything that is not exactly the form is Malformed, and the message names file and member."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.errors import Malformed
from ckptgov.manifest.forms import frame
from ckptgov.manifest.forms.identities import decode_run, decode_tier
from ckptgov.manifest.forms.manifests import (
    decode_manifest,
    decode_manifest_header,
    decode_part,
    encode_manifest,
    encode_part,
)
from ckptgov.manifest.forms.receipts import decode_receipt
from ckptgov.manifest.forms.records import decode_record, encode_record
from ckptgov.model.checkpoint import Manifest, Part, Purpose, Shard, StepKind
from ckptgov.model.journal import MarkBad, Metric, Restart, Sealed, Stamp

Reseal = Callable[[bytes], bytes]
Decode = Callable[..., object]

MANIFEST = "manifests/step_100.9d707afe62b86050.json"
SINGLE = "manifests/epoch=1-step=200.ckpt.777656d22c7990ee.json"
RECEIPT = "receipts/step_100.9d707afe62b86050.000001.json"
SEALED = "journal/00000001.sealed.json"
ROLLBACK = "journal/00000002.rollback.json"
MARK_BAD = "journal/00000003.mark-bad.json"
RESTART = "journal/restart.23a5c80cf3c7e20f.0.json"
DECODERS: dict[str, Decode] = {
    "manifests": decode_manifest,
    "receipts": decode_receipt,
    "journal": decode_record,
    "run.json": decode_run,
    ".ckptgov-tier.json": decode_tier,
}
ZERO = f"xxh3_128:{'0' * 32}"
LINE_1 = '{"path":".metadata","bytes":5,"digest":"xxh3_128:b5e9c1ad071b3e7fc779cfaa5e523818"}'
LINE_2 = (
    '{"path":"__0_0.distcp","bytes":67108864,"digest":"xxh3_128:7227ba0ecbbf133e7d985970875d064c"}'
)

TABLE: list[tuple[str, str, str, str]] = [
    # every form: format, version, members
    (MANIFEST, "ckptgov.manifest", "ckptgov.receipt", 'member "format": this is not'),
    (MANIFEST, '"version":1', '"version":2', 'member "version": 2 is newer than this program'),
    (MANIFEST, '"version":1', '"version":01', 'member "version": not 1'),
    (MANIFEST, '"version":1', '"version":0', 'member "version": not 1'),
    (MANIFEST, '"version":1', '"version":1.0', 'member "version": not 1'),
    (MANIFEST, '"version":1', '"version":true', 'member "version": not 1'),
    (MANIFEST, '"version":1', f'"version":{"9" * 5000}', 'member "version": 9+ is newer'),
    (MANIFEST, '"layout":"dcp",', "", 'member "layout": missing'),
    (MANIFEST, '"layout":"dcp",', '"layout":"dcp","x":1,', 'member "x": unknown'),
    (MANIFEST, '"layout":"dcp",', '"layout":"dcp","layout":"dcp",', 'member "layout": twice'),
    (MANIFEST, '"step":100,"layout":"dcp"', '"layout":"dcp","step":100', 'member "step": unkn'),
    (MANIFEST, '"layout":"dcp"', '"layout":null', 'member "layout": not a string'),
    (MANIFEST, '"layout":"dcp"', '"layout":["dcp"]', 'member "layout": not a string'),
    (MANIFEST, '"layout":"dcp"', '"layout":""', 'member "layout": empty'),
    (MANIFEST, '"layout":"dcp"', '"layout":"\\ud800"', 'member "layout": holds a lone surrogate'),
    (MANIFEST, '"layout":"dcp"', '"layout":"\\u0064cp"', 'member "layout": not in the spelling'),
    (MANIFEST, '"layout":"dcp"', '"layout": "dcp"', 'member "layout": not in the spelling'),
    (MANIFEST, '"layout":"dcp"', '"layout":"dc\u00fc"', "not the JSON of this form"),
    (MANIFEST, '"step":100', '"step":null', 'member "step": not an integer'),
    (MANIFEST, '"step":100', '"step":100.0', 'member "step": not an integer'),
    (MANIFEST, '"step":100', '"step":NaN', 'member "step": not an integer'),
    (MANIFEST, '"step":100', '"step":true', 'member "step": not an integer'),
    (MANIFEST, '"step":100', '"step":"100"', 'member "step": not an integer'),
    (MANIFEST, '"step":100', '"step":-1', 'member "step": negative'),
    (MANIFEST, '"step":100', '"step":-0', 'member "step": not in the spelling'),
    (MANIFEST, '"step":100', '"step":1e2', 'member "step": not an integer'),
    (MANIFEST, '"step":100', '"step":9223372036854775808', 'member "step": not within'),
    (MANIFEST, '"step":100', f'"step":{"9" * 5000}', "not the JSON of this form"),
    (MANIFEST, '"step":100', '"step":100,"ordinal":1', 'member "ordinal": both step and'),
    (MANIFEST, '"step":100', '"ordinal":1,"step":100', 'member "step": unknown'),
    (MANIFEST, '"world_size":2', '"world_size":0', 'member "world_size": not within'),
    (MANIFEST, '["resume","weights"]', '["weights","resume"]', 'member "purpose": not each'),
    (MANIFEST, '["resume","weights"]', '["resume","resume"]', 'member "purpose": not each'),
    (MANIFEST, '["resume","weights"]', '["training"]', 'member "purpose": not one of'),
    (MANIFEST, '["resume","weights"]', "[]", 'member "purpose": not an array with'),
    (MANIFEST, '["resume","weights"]', "[" * 60000 + "]" * 60000, "not|nested|more than"),
    (MANIFEST, '["resume","weights"]', "[" * 20000 + "]" * 20000, "nested too deeply"),
    (MANIFEST, '"name":"step_100"', '"name":""', 'member "name": path .* is empty'),
    (MANIFEST, '"name":"step_100"', '"name":"../step_100"', 'member "name": path .*"\\.\\."'),
    (MANIFEST, '"name":"step_100"', '"name":"/step_100"', 'member "name": path .* absolute'),
    (MANIFEST, '"name":"step_100"', '"name":"step\\u0000"', 'belong into "name_pct"'),
    (MANIFEST, '"name":"step_100"', '"name_pct":"step%00"', 'member "name_pct": path .* NUL'),
    (MANIFEST, '"name":"step_100"', '"name_pct":"step_100"', 'member "name_pct": a path that'),
    (MANIFEST, '"name":"step_100"', '"name":"step_101"', "$"),
    (MANIFEST, "sha256:9d70", "sha256:9D70", 'member "content_id": not sha256'),
    (MANIFEST, "sha256:9d70", "sha256:9d71", 'member "content_id": not the content id of'),
    (MANIFEST, '"shards":[\n', '"shards":[', 'member "shards": missing, or not on lines'),
    (MANIFEST, "\n]", "]", 'member "shards": missing, or not the last'),
    (MANIFEST, "\n]", ',\n"x"\n]', "shard 6: not an object on its own line"),
    (MANIFEST, "\n]", "\n\n]", "shard 6: not an object on its own line"),
    (MANIFEST, "\n]", '\n],"x":1', 'member "shards": missing, or not the last member'),
    # shards
    (MANIFEST, '"bytes":5', '"bytes":6', 'member "content_id": not the content id'),
    (MANIFEST, '"bytes":5', '"bytes":-5', 'shard 1: member "bytes": negative'),
    (MANIFEST, '"bytes":5', '"bytes":5.0', 'shard 1: member "bytes": not an integer'),
    (MANIFEST, '"bytes":5', '"bytes":false', 'shard 1: member "bytes": not an integer'),
    (MANIFEST, '"bytes":5', '"bytes":null', 'shard 1: member "bytes": not an integer'),
    (MANIFEST, '"bytes":5', '"bytes":05', "shard 1: not the JSON"),
    (MANIFEST, '"bytes":5', '"bytes":99999999999999999999', 'shard 1: member "bytes": not within'),
    (MANIFEST, '"bytes":5', f'"bytes":{"9" * 5000}', "shard 1: not the JSON"),
    (MANIFEST, '"bytes":5,', '"bytes":5,"mode":1,', 'shard 1: member "mode": unknown'),
    (MANIFEST, '"bytes":5,', '"bytes":5,"bytes":5,', 'shard 1: member "bytes": twice'),
    (MANIFEST, '"bytes":5,', "", 'shard 1: member "bytes": missing'),
    (MANIFEST, '"path":".metadata","bytes":5', '"bytes":5,"path":".metadata"', 'member "bytes"'),
    (MANIFEST, '"bytes":5', '"bytes":67108865', 'member "chunks": 0, 67108865 bytes have 2'),
    (MANIFEST, '"bytes":157286400', '"bytes":67108864', 'member "chunks": 3, 67108864 bytes'),
    (MANIFEST, '"bytes":157286400', '"bytes":268435456', 'member "chunks": 3, 268435456 bytes'),
    (MANIFEST, "xxh3_128:b5e9", "xxh3_128:B5e9", 'shard 1: member "digest": not xxh3_128'),
    (MANIFEST, "xxh3_128:b5e9", "xxh3_64:b5e9", 'shard 1: member "digest": not xxh3_128'),
    (MANIFEST, "xxh3_128:b5e9", "xxh3_128:b5e", 'shard 1: member "digest": not xxh3_128'),
    (MANIFEST, "xxh3_128:0707", "xxh3_128:070x", 'shard 3: member "chunks": not xxh3_128'),
    (MANIFEST, '".metadata"', '"../metadata"', 'shard 1: member "path": path .*"\\.\\."'),
    (MANIFEST, '".metadata"', '"/metadata"', 'shard 1: member "path": path .* is absolute'),
    (MANIFEST, '".metadata"', '".metadata/"', 'shard 1: member "path": path .* empty part'),
    (MANIFEST, '".metadata"', '""', "shard 1: the empty path stands alone"),
    (MANIFEST, '".metadata"', f'"{"x" * 4097}"', "shard 2|shard 1: .* 4097 bytes"),
    (MANIFEST, '".metadata"', '".meta\\u0000"', 'control characters belong into "path_pct"'),
    (MANIFEST, '".metadata"', '".meta\\tdata"', 'control characters belong into "path_pct"'),
    (MANIFEST, '".metadata"', '".meta\\x"', 'shard 1: member "path": not a JSON string'),
    (MANIFEST, '".metadata"', '".metad\\u0061ta"', 'member "path": not in the spelling'),
    (MANIFEST, '".metadata"', '".metadata\\udce4"', 'member "path": holds a lone surr'),
    (MANIFEST, '".metadata"', '".metadata\\ud800"', "lone surrogate"),
    (MANIFEST, '"path":".metadata"', '"path_pct":".metadata"', 'member "path_pct": a path that'),
    (MANIFEST, '"path":".metadata"', '"path_pct":".meta%64"', "escapes what needs no escape"),
    (MANIFEST, '"path":".metadata"', '"path_pct":"%2e%2e/x"', "escapes what needs no escape"),
    (MANIFEST, "x%e4%f6%0ay", "x%E4%f6%0ay", 'member "path_pct": .* not percent-encoded'),
    (MANIFEST, "x%e4%f6%0ay", "x%e4%f6%00y", 'member "path_pct": path .* NUL'),
    (MANIFEST, '"__0_0.distcp"', '".metadata"', "shard 2: path .*metadata. given twice"),
    (MANIFEST, f"{LINE_1},\n{LINE_2}", f"{LINE_2},\n{LINE_1}", "shard 2: .* not sorted by raw"),
    (MANIFEST, f"{LINE_1},\n", f"{LINE_1},", "shard 1: not the JSON"),
    (MANIFEST, f"{LINE_1},\n", f"{LINE_1}\n", "not in the spelling of the form"),
    (MANIFEST, f"{LINE_1},\n", f" {LINE_1},\n", "shard 1: not an object on its own line"),
    (SINGLE, '"path":""', '"path_pct":""', 'member "path_pct": empty'),
    # receipts
    (RECEIPT, '"evidence":"digest"', '"evidence":"none"', 'member "evidence": not one of'),
    (RECEIPT, "aaaaaaaa-bbbb", "AAAAAAAA-bbbb", 'member "place": not a lower-case UUID'),
    (RECEIPT, "aaaaaaaa-bbbb", "aaaaaaaabbbb", 'member "place": not a lower-case UUID'),
    (RECEIPT, '"inode":42', '"inode":18446744073709551616', 'member "inode": not within'),
    (RECEIPT, '"inode":42', '"inode":true', 'shard 1: member "inode": not an integer'),
    (RECEIPT, '"mtime_ns":1', '"mtime_ns":-1', 'shard 1: member "mtime_ns": negative'),
    (RECEIPT, ',"inode":42', "", 'shard 1: member "inode": missing'),
    (RECEIPT, '"mtime_ns"', '"etag"', 'member "mtime_ns": missing .next is "etag".'),
    (RECEIPT, '"__0_0.distcp"', '".metadata"', "shard 2: .* given twice"),
    # journal
    (SEALED, '"kind":"sealed"', '"kind":"rollback"', 'member "to_step": missing .next is "con'),
    (SEALED, '"kind":"sealed"', '"kind":"promote"', 'member "kind": not a kind of version 1'),
    (SEALED, "00000000-0000", "{0000000-0000", 'member "id": not a lower-case UUID'),
    (SEALED, '"0.25"', "0.25", 'member "metrics": "eval_loss": not a string'),
    (SEALED, '"0.25"', '"0,25"', 'member "metrics": "eval_loss": not a decimal'),
    (SEALED, '{"eval_loss":"0.25"}', "{}", 'member "metrics": not an object with members'),
    (SEALED, '{"eval_loss":"0.25"}', '{"b":"1","a":"1"}', 'member "metrics": not sorted'),
    (SEALED, '{"eval_loss":"0.25"}', '{"a":"1","a":"1"}', 'member "a": twice'),
    (ROLLBACK, '"reason":"loss spike"', '"reason":null', 'member "reason": not a string'),
    (ROLLBACK, '"to_step":100,', "", 'member "to_step": missing'),
    (ROLLBACK, "loss spike", "x" * 66000, "bytes, more than 65536"),
    (ROLLBACK, '"line":2', '"line":2}', "not the JSON of this form"),
    (MARK_BAD, ',"from_step":150', "", 'member "from_step": exactly one of'),
    (MARK_BAD, '"from_step":150', '"from_step":150,"until_step":149', 'member "until_step"'),
    (MARK_BAD, '"from_step":150', '"until_step":149', 'member "from_step": exactly one of'),
    (RESTART, '"epoch":0,', '"epoch":0,"fresh":true,', 'member "content_id": unknown here'),
    (ROLLBACK, '"line":2', '"line": 2', 'member "line": not in the spelling'),
    (RECEIPT, '"inode":42', '"inode":042', "shard 1: not the JSON"),
    # identities
    ("run.json", '"selector":"*"', '"selector":"\\u002a"', 'member "selector": not in the spel'),
    (".ckptgov-tier.json", '"epoch":3', '"epoch":3 ', 'member "epoch": not in the spelling'),
    ("run.json", '"selector":"*"', '"selector":"*","expect":{}', '"glob": missing'),
    ("run.json", '"selector":"*"', '"selector":"*","expect":[]', 'member "expect": not an obj'),
    ("run.json", '"name":"lm/llm-7b"', '"name":"lm//llm"', 'member "name": path .* empty part'),
    (".ckptgov-tier.json", '"epoch":3', '"epoch":"3"', 'member "epoch": not an integer'),
    (".ckptgov-tier.json", '"epoch":3', '"epoch":3,"uuid":1', 'member "uuid": unknown'),
]


@pytest.mark.parametrize(("file", "old", "new", "message"), TABLE)
def test_a_wrong_file_is_refused(
    golden: Path, resealed: Reseal, file: str, old: str, new: str, message: str
) -> None:
    raw = (golden / file).read_bytes()
    assert old.encode() in raw
    changed = resealed(raw.replace(old.encode(), new.encode(), 1))
    decode = DECODERS[file.split("/")[0]]
    if message == "$":  # the control: what keeps the form decodes
        decode(changed, where=file)
        return
    with pytest.raises(Malformed, match=message) as caught:
        decode(changed, where=f"/tree/{file}")
    assert caught.value.message.startswith(f"/tree/{file}: ")
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("decode", [*DECODERS.values(), decode_part, decode_manifest_header])
@pytest.mark.parametrize("raw", [b"", b"\n", b"{}\n", b"null\n", b"\xff" * 300, b"[" * 70000])
def test_what_is_no_file_of_ours_at_all_is_corrupt(decode: Decode, raw: bytes) -> None:
    with pytest.raises(Malformed, match=r"^here: (corrupt|70000 bytes)"):
        decode(raw, where="here")


def test_a_wrong_self_comes_before_everything_else(golden: Path) -> None:
    raw = (golden / MANIFEST).read_bytes().replace(b'"version":1', b'"version":2')
    for decode in (decode_manifest, decode_manifest_header):
        with pytest.raises(Malformed, match="corrupt: self digest does not match"):
            decode(raw, where="here")


def test_a_newer_version_says_what_to_do(golden: Path, resealed: Reseal) -> None:
    raw = (golden / MANIFEST).read_bytes().replace(b'"version":1', b'"version":2')
    with pytest.raises(Malformed, match="newer than this program knows") as caught:
        decode_manifest(resealed(raw), where="here")
    assert caught.value.hint == "upgrade ckptgov on this machine"


@pytest.mark.parametrize("file", [MANIFEST, RECEIPT, SEALED, RESTART, "run.json"])
def test_any_single_flipped_bit_is_noticed(golden: Path, file: str) -> None:
    raw = (golden / file).read_bytes()
    chance = random.Random(file)
    for _ in range(300):
        bit = chance.randrange(len(raw) * 8)
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Malformed):
            DECODERS[file.split("/")[0]](bytes(flipped), where="here")


@pytest.mark.parametrize("file", [MANIFEST, RECEIPT, SEALED, RESTART, "run.json"])
def test_a_flipped_bit_under_a_fitting_self_is_another_file_of_the_form_or_refused(
    golden: Path, resealed: Reseal, file: str
) -> None:
    raw = (golden / file).read_bytes()
    chance = random.Random(file)
    body_bytes = raw.rindex(b',"self":')
    for _ in range(300):
        bit = chance.randrange(body_bytes * 8)
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            DECODERS[file.split("/")[0]](resealed(bytes(flipped)), where="here")
        except Malformed:
            continue
        json.loads(flipped)  # decoded: it is JSON at least


def test_every_cut_of_a_file_is_refused(golden: Path) -> None:
    raw = (golden / SEALED).read_bytes()
    for size in range(len(raw)):
        with pytest.raises(Malformed):
            decode_record(raw[:size], where="here")


def test_a_file_over_its_cap_is_refused_before_it_is_hashed(
    golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "LARGE_BYTES", 500)
    monkeypatch.setattr(frame, "hashlib", None)
    raw = (golden / MANIFEST).read_bytes()
    for decode in (decode_manifest, decode_manifest_header):
        with pytest.raises(Malformed, match=f"here: {len(raw)} bytes, more than 500"):
            decode(raw, where="here")


@pytest.mark.parametrize(
    "line",
    [
        b'{"path":"a","bytes":1,"digest":' + b"[" * 2_000_000,
        b"[" + b"[]," * 1_000_000 + b"[]]",
        b'{"path":"' + b"\\u00e9" * 700_000 + b'","bytes":1}',
        b'{"path":"a","bytes":1,"digest":"","chunks":["' + b'0","' * 1_000_000 + b'"]}',
        b"{}," * 1_000_000 + b"{}",
        b'{"path":[' + b"[]," * 1_000_000 + b"[]]}",
        b"\n" * 2_000_000,
        b'{"path":"' + b'\\"' * 2_000_000 + b'","bytes":1',
    ],
    ids=["deep", "lists", "path", "chunks", "objects", "members", "lines", "quotes"],
)
def test_a_hostile_file_costs_little_time_and_memory(
    golden: Path, resealed: Reseal, line: bytes
) -> None:
    raw = (golden / MANIFEST).read_bytes()
    start, end = raw.index(b"[\n") + 2, raw.index(b"\n]")
    hostile = resealed(raw[:start] + line + raw[end:])
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(Malformed):
            decode_manifest(hostile, where="here")
        took_s = time.process_time() - began
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert took_s < 20
    assert peak_bytes < 10 * len(hostile)


def test_more_shards_than_the_cap_are_refused(golden: Path, resealed: Reseal) -> None:
    raw = (golden / SINGLE).read_bytes()
    lines = b",\n".join([b"{}"] * 1_000_001)
    start, end = raw.index(b"[\n") + 2, raw.index(b"\n]")
    with pytest.raises(Malformed, match='"shards": 1000001 elements, more than 1000000'):
        decode_manifest(resealed(raw[:start] + lines + raw[end:]), where="here")


def test_the_header_is_read_without_looking_at_the_shards(golden: Path, resealed: Reseal) -> None:
    raw = (golden / MANIFEST).read_bytes()
    start = raw.index(b"[\n") + 2
    broken = resealed(raw[:start] + b"nonsense\n" + raw[raw.index(b"],") :])
    assert decode_manifest_header(broken, where="here").step == 100
    with pytest.raises(Malformed, match="shard 1: not an object"):
        decode_manifest(broken, where="here")


def test_a_header_in_another_spelling_is_refused(golden: Path, resealed: Reseal) -> None:
    raw = (golden / MANIFEST).read_bytes().replace(b'"step":100', b'"step": 100')
    with pytest.raises(Malformed, match='member "step": not in the spelling'):
        decode_manifest_header(resealed(raw), where="here")


NOBODY = "00000000-0000-4000-8000-000000000000"
STAMP = Stamp(id=NOBODY, run_id=NOBODY, at_ns=1, by="uid:0@node1")
CONTENT = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (MarkBad(stamp=STAMP), "exactly one of content_id and from_step"),
        (MarkBad(stamp=STAMP, content_id=CONTENT, from_step=1), "exactly one of content_id"),
        (MarkBad(stamp=STAMP, content_id=CONTENT, until_step=1), "without from_step"),
        (Restart(stamp=STAMP, restart_id="r", epoch=0), "exactly one of content_id and fresh"),
        (
            Restart(stamp=STAMP, restart_id="r", epoch=0, content_id=CONTENT, fresh=True),
            "exactly one of content_id and fresh",
        ),
        (Metric(stamp=STAMP, content_id="sha256:0", name="loss", value="1"), '"content_id"'),
        (Metric(stamp=STAMP, content_id=CONTENT, name="loss", value="low"), '"value": not a dec'),
        (Metric(stamp=STAMP, content_id=CONTENT, name="\udce4", value="1"), '"name": holds a lone'),
        (Metric(stamp=STAMP, content_id=CONTENT, name="n" * 66000, value="1"), "more than 65536"),
        (
            Sealed(
                stamp=STAMP,
                content_id=CONTENT,
                step=None,
                step_kind=StepKind.STEP,
                line=1,
                attempt=0,
            ),
            '"step": not an integer',
        ),
        (
            Sealed(
                stamp=STAMP,
                content_id=CONTENT,
                step=3,
                step_kind=StepKind.NONE,
                line=1,
                attempt=0,
            ),
            '"step": given, and said to be stepless',
        ),
        (
            Sealed(
                stamp=STAMP,
                content_id=CONTENT,
                step=3,
                step_kind=StepKind.STEP,
                line=1,
                attempt=0,
                metrics=(("a", "1"), ("a", "2")),
            ),
            '"metrics": a name is given twice',
        ),
    ],
)
def test_a_record_that_would_not_decode_is_not_written(record: Metric, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        encode_record(record)


def manifest_of(*shards: Shard, content_id: str = CONTENT) -> Manifest:
    return Manifest(
        content_id=content_id,
        name="step_1",
        step=1,
        step_kind=StepKind.STEP,
        layout="dcp",
        world_size=None,
        purposes=(Purpose.RESUME,),
        shards=shards,
    )


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([], '"shards": 0 elements'),
        ([Shard("b", 1, ZERO), Shard("a", 1, ZERO)], "not sorted"),
        ([Shard("a", 1, ZERO), Shard("a", 1, ZERO)], "given twice"),
        ([Shard("", 1, ZERO), Shard("a", 1, ZERO)], "the empty path stands alone"),
        ([Shard("a", True, ZERO)], '"bytes": not an integer'),
        ([Shard("a", -1, ZERO)], '"bytes": negative'),
        ([Shard("a", 2**63, ZERO)], '"bytes": not within'),
        ([Shard("a", 1, "0" * 32)], '"digest": not xxh3_128'),
        ([Shard("a", 1, ZERO, (ZERO,))], '"chunks": 1, 1 bytes have 0'),
        ([Shard("a", 2**27, ZERO, (ZERO,))], '"chunks": 1, 134217728 bytes have 2'),
        ([Shard("../a", 1, ZERO)], '".." part'),
        ([Shard("a\n../b", 1, ZERO)], '"content_id"'),
        ([Shard("a", 1, ZERO)], '"content_id": not the content id of these shards'),
    ],
)
def test_a_manifest_that_would_not_decode_is_not_written(shards: list[Shard], message: str) -> None:
    with pytest.raises(Malformed, match=message):
        encode_manifest(manifest_of(*shards))


def test_members_beyond_their_cap_are_not_written_either(golden: Path) -> None:
    manifest = decode_manifest((golden / MANIFEST).read_bytes(), where="here")
    fitting = replace(manifest, layout="x" * 65_000)
    assert decode_manifest(encode_manifest(fitting), where="here") == fitting
    with pytest.raises(Malformed, match="bytes of members, more than 65536"):
        encode_manifest(replace(manifest, layout="x" * 66_000))


def test_a_part_of_a_rank_and_a_node_is_not_written() -> None:
    part = Part(
        name="step_1",
        step=1,
        step_kind=StepKind.STEP,
        layout="dcp",
        world_size=None,
        purposes=(Purpose.RESUME,),
        rank=0,
        node="node7",
        shards=(Shard("a", 1, ZERO),),
    )
    with pytest.raises(Malformed, match='member "node": given beside rank'):
        encode_part(part)
