"""Stores that misbehave: the right answer or a clear error, nothing lost, nothing false afterwards.

A real S3 server answers; a proxy in front of it does what bad ones were seen to do.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from msgspec.structs import replace

from ckptgov.ops.context import Context
from ckptgov.storage.s3 import S3Storage
from ckptgov.testing import seaweedfs
from ckptgov.testing.s3_proxy import Fault, S3Proxy, Trouble, s3_proxy
from ckptgov.work.abilities import Abilities, to_json
from ckptgov.work.tier import Place

MIB = 2**20
PART_BYTES = 5 * MIB
SIZES = {"large.bin": 2 * PART_BYTES + MIB, "small.bin": 1000, "DONE": 0}
CONFIGURATION = """\
runs:
  - run: run
    expect: {glob: "step_*/*.bin", count: 2, marker: DONE, step: "step_(\\\\d+)"}
settle: 0s
digest_threads: 1
"""

DELIVERIES = (
    ("*/step_1/large.bin", "POST", ("uploads",)),
    ("*/step_1/large.bin", "PUT", ("partNumber",)),
    ("*/step_1/large.bin", "POST", ("uploadId",)),
    ("*/step_1/small.bin", "PUT", ()),
)
"""The requests by which shards arrive: an upload begun, sent in parts, completed; then a put."""

if reason := seaweedfs.reason_to_skip():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def server() -> Iterator[seaweedfs.WeedServer]:
    with seaweedfs.weed_s3() as running:
        yield running


@pytest.fixture(scope="module")
def served(server: seaweedfs.WeedServer) -> Iterator[S3Proxy]:
    with s3_proxy(server.endpoint, server.access_key, server.secret_key) as running:
        yield running


class Bucket:
    """Another program's view of the test's own prefix, past the proxy."""

    def __init__(self, server: seaweedfs.WeedServer, prefix: str) -> None:
        self.url = f"s3://{server.bucket}/{prefix}"
        self._bucket, self._prefix = server.bucket, prefix
        self._client = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            region_name="us-east-1",
        )

    def objects(self) -> dict[str, bytes]:
        """Every object by its key below the prefix."""
        found = {}
        for page in self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}/"
        ):
            for one in page.get("Contents", []):
                body = self._client.get_object(Bucket=self._bucket, Key=one["Key"])["Body"].read()
                found[one["Key"].removeprefix(f"{self._prefix}/")] = body
        return found

    def put(self, key: str, body: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=f"{self._prefix}/{key}", Body=body)

    def uploads(self) -> list[str]:
        """Keys of the uploads that nobody completed."""
        told = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=f"{self._prefix}/")
        return [one["Key"] for one in told.get("Uploads", [])]


@pytest.fixture
def bucket(server: seaweedfs.WeedServer, tmp_path: Path) -> Bucket:
    return Bucket(server, tmp_path.name)


@pytest.fixture
def proxy(
    server: seaweedfs.WeedServer, served: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Proxy]:
    """The store as the command line reaches it; parts are small, so that there are some."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", served.url)
    defaults = S3Storage.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "part_bytes", PART_BYTES)
    yield served
    served.clear()


@pytest.fixture
def run(cli, home: Path, tmp_path: Path) -> Path:
    """A sealed checkpoint ``step_1`` on the tier ``near``."""
    (home / "ckptgov.yaml").write_text(CONFIGURATION)
    root = tmp_path / "near"
    (root / "run/step_1").mkdir(parents=True)
    for number, (name, size) in enumerate(SIZES.items()):
        (root / "run/step_1" / name).write_bytes(random.Random(number).randbytes(size))
    cli.done("tier", "add", "near", root, "--ingest")
    cli.done("scan")
    assert cli.json("latest", "run").json["name"] == "step_1"
    return root / "run"


SOUND = Abilities(
    conditional_put=True, conditional_complete=True, checksums_on_put=True, checksums_on_parts=True
)
"""What ``tier check`` finds of this server."""


@pytest.fixture
def add_tier(cli, proxy: S3Proxy, bucket: Bucket, run: Path, monkeypatch) -> Callable[..., None]:
    """Makes the bucket's prefix the tier ``s3``, of which this is known: looking takes long."""

    def add(known: Abilities) -> None:
        def examined(context: Context, place: Place, second: object) -> tuple[()]:
            context.catalog.put_abilities(place.uuid or "", to_json(known), 0)
            return ()

        monkeypatch.setattr("ckptgov.ops.tiers._examined", examined)
        cli.done("tier", "add", "s3", bucket.url)
        proxy.forget_calls()

    return add


@pytest.fixture
def tier(add_tier: Callable[..., None], bucket: Bucket) -> str:
    add_tier(SOUND)
    return bucket.url


@pytest.fixture
def flushed(cli, tier: str) -> str:
    """The same with the checkpoint on it."""
    cli.done("flush", "run", "--to", "s3")
    return tier


def shards(run: Path, name: str = "step_1") -> dict[str, bytes]:
    return {f"run/{name}/{path.name}": path.read_bytes() for path in (run / "step_1").iterdir()}


def require_there(cli, bucket: Bucket, run: Path, name: str = "step_1") -> None:
    """Restorable from the store alone, with the right bytes, and nothing besides."""
    told = cli.json("latest", f"{bucket.url}/run", "--evidence", "digest")
    assert (told.code, told.json.get("name")) == (0, name), told
    lying = {key: body for key, body in bucket.objects().items() if f"run/{name}/" in key}
    assert lying == shards(run, name)
    assert bucket.uploads() == []


def require_nothing_false(cli, bucket: Bucket) -> None:
    told = cli.json("latest", f"{bucket.url}/run", "--evidence", "digest")
    assert told.code in (4, 5, 9), told
    assert cli.json("latest", "run").json["name"] == "step_1"


def test_the_check_of_a_tier_tells_what_the_store_does_not_do(
    cli, proxy: S3Proxy, bucket: Bucket, run: Path
) -> None:
    proxy.inject(Fault(Trouble.ACCEPT_WRONG_CHECKSUMS), Fault(Trouble.IGNORE_CONDITIONS))
    added = cli.done("tier", "add", "s3", bucket.url)
    told = cli.json("tier", "list").json
    assert told["tiers"][-1]["name"] == "s3", told
    for word in ("checksum", "condition"):
        assert word in added.err, added
    cli.done("flush", "run", "--to", "s3")
    assert proxy.received_bytes("GET", "*step_1/*.bin") >= sum(SIZES.values())
    assert not [key for key in bucket.objects() if "/journal/" in key]
    require_there(cli, bucket, run)


class TestChecksumsThatNobodyLooksAt:
    @pytest.fixture
    def gullible(self, add_tier: Callable[..., None], proxy: S3Proxy) -> S3Proxy:
        proxy.inject(Fault(Trouble.ACCEPT_WRONG_CHECKSUMS))
        add_tier(replace(SOUND, checksums_on_put=False, checksums_on_parts=False))
        return proxy

    def test_what_arrived_is_read_back(
        self, cli, gullible: S3Proxy, bucket: Bucket, run: Path
    ) -> None:
        cli.done("flush", "run", "--to", "s3")
        assert gullible.received_bytes("GET", "*.bin") >= sum(SIZES.values())
        require_there(cli, bucket, run)

    def test_other_bytes_than_were_sent_are_seen(
        self, cli, gullible: S3Proxy, bucket: Bucket, run: Path
    ) -> None:
        gullible.inject(Fault(Trouble.FLIP_BYTE, key="*small.bin", method="GET"))
        told = cli.json("flush", "run", "--to", "s3")
        assert told.code == 9, told
        assert "s3" in told.json["error"]["message"]
        assert "tier check" in told.json["error"]["hint"]
        require_nothing_false(cli, bucket)

    def test_a_store_that_looks_is_not_read_back(
        self, cli, tier: str, proxy: S3Proxy, bucket: Bucket, run: Path
    ) -> None:
        cli.done("flush", "run", "--to", "s3")
        assert proxy.received_bytes("GET", "*.bin") < PART_BYTES
        require_there(cli, bucket, run)


class TestConditionsThatNobodyKeeps:
    @pytest.fixture
    def careless(self, add_tier: Callable[..., None], proxy: S3Proxy) -> S3Proxy:
        proxy.inject(Fault(Trouble.IGNORE_CONDITIONS))
        add_tier(replace(SOUND, conditional_put=False, conditional_complete=False))
        return proxy

    def test_what_has_the_name_already_is_not_overwritten(
        self, cli, careless: S3Proxy, bucket: Bucket, run: Path
    ) -> None:
        others = {"run/step_1/large.bin": b"another trainer's", "run/step_1/small.bin": b"x" * 1000}
        for key, body in others.items():
            bucket.put(key, body)
        cli.done("flush", "run", "--to", "s3")
        lying = bucket.objects()
        assert {key: lying[key] for key in others} == others
        require_there(cli, bucket, run, "attempt-1/step_1")

    def test_a_run_is_not_kept_there(self, cli, careless: S3Proxy, bucket: Bucket) -> None:
        bucket.put("other/step_1/large.bin", b"1")
        told = cli.json("scan", f"{bucket.url}/other")
        assert told.code == 9, told
        assert "journal" in told.json["error"]["message"], told
        assert not [key for key in bucket.objects() if key.startswith("other/.ckptgov")]


class TestListings:
    def test_their_order_does_not_matter(
        self, cli, flushed: str, proxy: S3Proxy, bucket: Bucket, run: Path, tmp_path: Path
    ) -> None:
        proxy.inject(Fault(Trouble.SHUFFLE_LIST))
        require_there(cli, bucket, run)
        cli.done("restore", f"{flushed}/run", "--to", tmp_path / "out")
        assert (tmp_path / "out/step_1/large.bin").read_bytes() == shards(run)[
            "run/step_1/large.bin"
        ]
        assert cli.json("reconcile").code == 0
        require_there(cli, bucket, run)

    @pytest.mark.parametrize("skip", [0, 3])
    def test_one_that_is_short_loses_nothing(
        self, cli, flushed: str, proxy: S3Proxy, bucket: Bucket, run: Path, skip: int
    ) -> None:
        before = bucket.objects()
        proxy.inject(Fault(Trouble.SHORT_LIST, method="GET", query=("list-type",), skip=skip))
        for words in (
            ("latest", f"{flushed}/run", "--evidence", "digest"),
            ("reconcile", "--older-than", "0s"),
            ("flush", "run", "--to", "s3"),
            ("latest", "run"),
        ):
            told = cli.json(*words)
            assert told.code in (0, 3, 4, 5, 9), told
            if words[0] == "latest" and told.code == 0:
                assert told.json["name"] == "step_1"
        assert cli.json("latest", "run").code == 0
        lying = bucket.objects()
        assert {key: lying.get(key) for key in before} == before, "something was removed"
        proxy.clear()
        assert cli.json("reconcile").code == 0
        require_there(cli, bucket, run)

    def test_a_shard_that_is_not_listed_is_not_lost(
        self, cli, flushed: str, proxy: S3Proxy, bucket: Bucket, run: Path
    ) -> None:
        proxy.inject(Fault(Trouble.SHORT_LIST, key="*step_1/*", query=("list-type",)))
        told = cli.json("latest", f"{flushed}/run", "--evidence", "digest")
        assert told.code in (0, 5, 9), told
        cli.json("reconcile")
        proxy.clear()
        require_there(cli, bucket, run)
        shutil.rmtree(run / "step_1")
        told = cli.json("latest", "run")
        assert told.code == 0, told
        assert told.json["path"].startswith("s3://")


class TestAnswersThatDoNotCome:
    def test_a_busy_store_is_outlasted(
        self, cli, tier: str, proxy: S3Proxy, bucket: Bucket, run: Path
    ) -> None:
        fault = proxy.inject(Fault(Trouble.SLOW_DOWN, for_s=2.0))
        cli.done("flush", "run", "--to", "s3")
        assert fault.fired >= 2
        require_there(cli, bucket, run)

    def test_what_was_done_and_not_told_is_done_once(
        self, cli, tier: str, proxy: S3Proxy, bucket: Bucket, run: Path
    ) -> None:
        faults = [
            proxy.inject(Fault(Trouble.DROP_AFTER, key=key, method=method, query=query, times=2))
            for key, method, query in (*DELIVERIES, ("*/.ckptgov/*", "PUT", ()))
        ]
        cli.done("flush", "run", "--to", "s3")
        assert [one.fired for one in faults] == [2] * len(faults)
        proxy.clear()
        assert cli.json("reconcile", "--older-than", "0s").code == 0
        require_there(cli, bucket, run)
        lying = bucket.objects()
        assert not [name for name in lying if "attempt-" in name]
        assert len([name for name in lying if "/manifests/" in name]) == 1

    def test_one_that_stalls_is_given_up(
        self, cli, home: Path, tier: str, proxy: S3Proxy, bucket: Bucket, run: Path
    ) -> None:
        with (home / "ckptgov.yaml").open("a") as file:
            file.write("stall: 1s\n")
        key, method, query = DELIVERIES[1]
        fault = proxy.inject(Fault(Trouble.STALL, key=key, method=method, query=query))
        began = time.monotonic()
        told = cli.json("flush", "run", "--to", "s3")
        assert time.monotonic() - began < 30
        assert fault.fired
        assert told.code in (9, 11), told
        assert "tier s3" in told.json["error"]["message"], told
        assert told.json["error"]["hint"], told
        proxy.clear()
        require_nothing_false(cli, bucket)
        (home / "ckptgov.yaml").write_text(
            (home / "ckptgov.yaml").read_text().replace("stall: 1s", "")
        )
        cli.done("flush", "run", "--to", "s3")
        assert cli.json("reconcile", "--older-than", "0s").code == 0
        require_there(cli, bucket, run)


class TestBytesThatFlipOnTheirWayBack:
    def test_another_copy_gives_the_shard(
        self, cli, flushed: str, proxy: S3Proxy, run: Path, tmp_path: Path
    ) -> None:
        (run / "step_1/small.bin").write_bytes(b"?")
        wanted = shards(run)["run/step_1/large.bin"]
        proxy.inject(Fault(Trouble.FLIP_BYTE, key="*large.bin", method="GET"))
        told = cli.json("restore", "run", "--to", tmp_path / "out")
        assert told.code == 0, told
        assert (tmp_path / "out/step_1/large.bin").read_bytes() == wanted

    def test_without_another_copy_nothing_is_restored(
        self, cli, flushed: str, proxy: S3Proxy, run: Path, bucket: Bucket, tmp_path: Path
    ) -> None:
        proxy.inject(Fault(Trouble.FLIP_BYTE, key="*large.bin", method="GET"))
        told = cli.json("restore", f"{flushed}/run", "--to", tmp_path / "out")
        assert told.code == 9, told
        assert "large.bin" in told.json["error"]["message"], told
        assert not (tmp_path / "out/step_1").exists()
        proxy.clear()
        assert cli.json("verify", "run").code == 0
        require_there(cli, bucket, run)
        cli.done("restore", f"{flushed}/run", "--to", tmp_path / "out")
