"""A field report, on a real S3 server: killed uploads left parts that no listing shows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from msgspec import Struct
from msgspec.structs import replace

from ckptgov.governor import open_governor
from ckptgov.model.clock import Clock, SystemClock
from ckptgov.model.usage import Fate, LeftKind, Leftover, LeftoverReason
from ckptgov.ops.context import Context
from ckptgov.ops.copy_lease import copy_lease
from ckptgov.ops.du import du
from ckptgov.ops.reconcile import reconcile
from ckptgov.storage.contract import PendingDelivery
from ckptgov.storage.s3 import S3Storage
from ckptgov.testing import seaweedfs
from ckptgov_cli.main import main

if reason := seaweedfs.reason_to_skip():
    pytest.skip(reason, allow_module_level=True)

DAY_NS = 86400 * 10**9
AGES_NS = {"run/step-20/shard-1": 8 * DAY_NS, "run/step-30/shard-1": 120 * 10**9}
"""How long ago each upload is to have begun; servers let nobody set it."""


class Bucket:
    """Another program at work below this test's own prefix."""

    def __init__(self, client, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def _at(self, path: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}/{path}"}

    def put(self, path: str, body: bytes) -> None:
        self._client.put_object(**self._at(path), Body=body)

    def begin(self, path: str, *bodies: bytes) -> None:
        """An upload with these parts, never completed."""
        upload_id = self._client.create_multipart_upload(**self._at(path))["UploadId"]
        for number, body in enumerate(bodies, 1):
            self._client.upload_part(
                **self._at(path), UploadId=upload_id, PartNumber=number, Body=body
            )

    def _listed(self) -> list[dict[str, str]]:
        answer = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=f"{self._prefix}/")
        return answer.get("Uploads", [])

    def uploads(self) -> list[str]:
        """Paths of the uploads that the server still has."""
        return sorted(one["Key"].removeprefix(f"{self._prefix}/") for one in self._listed())

    def abort_all(self) -> None:
        for one in self._listed():
            self._client.abort_multipart_upload(
                Bucket=self._bucket, Key=one["Key"], UploadId=one["UploadId"]
            )

    def keys(self) -> list[str]:
        answer = self._client.list_objects_v2(
            Bucket=self._bucket, Prefix=f"{self._prefix}/run/step"
        )
        return sorted(one["Key"].removeprefix(f"{self._prefix}/") for one in answer["Contents"])


def reach(server: seaweedfs.WeedServer, patch: pytest.MonkeyPatch) -> None:
    """Let the usual AWS chain lead to the server."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in server.environment.items():
        patch.setenv(name, value)


class Scanned(Struct, frozen=True):
    """The report's objects on a server, and a home that has scanned them."""

    server: seaweedfs.WeedServer
    home: Path
    bucket: Bucket


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scanned]:
    """Made once: adding a tier tries all its abilities, which takes long. step-10 is whole."""
    home = tmp_path_factory.mktemp("home")
    with seaweedfs.weed_s3() as server, pytest.MonkeyPatch.context() as patch:
        reach(server, patch)
        patch.setenv("CKPTGOV_HOME", str(home))
        client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))
        bucket = Bucket(client, server.bucket, "tier")
        url = f"s3://{server.bucket}/tier"
        rule = ["--expect-glob", "step-*/shard-*", "--expect-count", "2"]
        assert main(["tier", "add", "s3", url, "--ingest"]) == 0
        assert main(["run", "create", "run", "--root", f"{url}/run", *rule]) == 0
        for step in (10, 20, 30):
            bucket.put(f"run/step-{step}/shard-0", b"a" * 64)
        bucket.put("run/step-10/shard-1", b"b" * 64)
        main(["scan"])
        yield Scanned(server, home, bucket)
        client.close()


@pytest.fixture
def bucket(scanned: Scanned, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """With a home of this test's own, and the report's uploads; all uploads go at the end."""
    reach(scanned.server, monkeypatch)
    shutil.copytree(scanned.home, home, dirs_exist_ok=True)
    scanned.bucket.begin("run/step-20/shard-1", b"d" * 64, b"e" * 64)
    scanned.bucket.begin("run/step-30/shard-1", b"g" * 64)
    yield scanned.bucket
    scanned.bucket.abort_all()


@pytest.fixture(autouse=True)
def ages(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Makes uploads look as old as they are to be."""
    real = S3Storage.pending
    wanted = dict(AGES_NS)

    def aged(storage: S3Storage, directory: str) -> Sequence[PendingDelivery]:
        return [
            replace(one, started_at_ns=one.started_at_ns - wanted.get(one.path, 0))
            for one in real(storage, directory)
        ]

    monkeypatch.setattr(S3Storage, "pending", aged)
    return wanted


class FourDaysBehind(SystemClock):
    def now_ns(self) -> int:
        return super().now_ns() - 4 * DAY_NS


@contextmanager
def opened(clock: Clock | None = None) -> Iterator[Context]:
    with open_governor(clock=clock or SystemClock()) as governor:
        yield governor.context


@pytest.fixture
def seen(bucket: Bucket, ages: dict[str, int]) -> None:
    """An earlier look found the uploads as they are."""
    with opened(FourDaysBehind()) as context:
        reconcile(context)


def left(**how: object) -> dict[str, Leftover]:
    with opened() as context:
        answer = reconcile(context, **how)
    assert answer.error is None, answer
    return {one.path: one for tier in answer.tiers for one in tier.leftovers}


def test_only_the_whole_checkpoint_is_restorable(cli, bucket: Bucket) -> None:
    answer = cli.json("latest", "run")
    assert answer.json["name"] == "step-10"
    assert set(cli.json("list", "run").names) >= {"step-20", "step-30"}
    for name in ("step-20", "step-30"):
        assert cli.json("list", "run").entries(name)[0]["state"] != "restorable"


def test_pending_bytes_are_told_apart_from_objects(bucket: Bucket) -> None:
    with opened() as context:
        (usage,) = du(context).tiers
    assert usage.left_bytes(LeftKind.PENDING) == 192
    assert usage.checkpoint_bytes == 4 * 64
    assert usage.free_bytes is None


@pytest.mark.usefixtures("seen")
def test_the_old_upload_goes_and_the_fresh_one_stays(bucket: Bucket) -> None:
    before = bucket.keys()
    told = left(older_than_s=7 * 86400.0)
    old, fresh = told["run/step-20/shard-1"], told["run/step-30/shard-1"]
    assert (old.fate, old.reason, old.bytes) == (Fate.REMOVED, LeftoverReason.OLD, 128)
    assert (fresh.fate, fresh.reason, fresh.bytes) == (Fate.KEPT, LeftoverReason.FRESH, 64)
    assert bucket.uploads() == ["run/step-30/shard-1"]
    assert bucket.keys() == before


def test_one_that_no_earlier_look_saw_stays(bucket: Bucket) -> None:
    one = left()["run/step-20/shard-1"]
    assert (one.fate, one.reason) == (Fate.KEPT, LeftoverReason.FRESH)
    assert "first seen now" in one.text
    assert len(bucket.uploads()) == 2


@pytest.mark.usefixtures("seen")
def test_a_dry_run_aborts_nothing(bucket: Bucket) -> None:
    assert left(dry_run=True)["run/step-20/shard-1"].fate is Fate.WOULD_GO
    assert len(bucket.uploads()) == 2


def test_one_in_flight_is_never_aborted_however_old(
    cli, bucket: Bucket, ages: dict[str, int]
) -> None:
    content_id = cli.json("latest", "run").json["content_id"]
    bucket.begin("run/step-10/shard-1", b"again")
    ages["run/step-10/shard-1"] = 1000 * DAY_NS
    with opened() as context:
        place = context.place(context.settings.tiers[0])
        with copy_lease(context, content_id, place.uuid or ""):
            one = left(older_than_s=0.0)["run/step-10/shard-1"]
    assert (one.fate, one.reason) == (Fate.KEPT, LeftoverReason.IN_FLIGHT)
    assert bucket.uploads() == ["run/step-10/shard-1"]


def test_an_upload_of_what_is_whole_already_goes_at_once(bucket: Bucket) -> None:
    bucket.begin("run/step-10/shard-1", b"again")
    one = left()["run/step-10/shard-1"]
    assert (one.fate, one.reason) == (Fate.REMOVED, LeftoverReason.SUPERFLUOUS)
    assert one.checkpoint == "step-10"


@pytest.mark.parametrize("path", ["run/step-10/notes.txt", "run/step-1/shard-0", "else/shard-0"])
def test_a_name_that_only_looks_like_it_does_not_make_it_superfluous(
    bucket: Bucket, path: str
) -> None:
    bucket.begin(path, b"someone's")
    one = left()[path]
    assert (one.fate, one.content_id) == (Fate.KEPT, None)


def test_of_two_uploads_to_one_key_each_is_judged_by_itself(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.begin("run/step-20/shard-1", b"second try")
    aged = S3Storage.pending

    def newest_is_fresh(storage: S3Storage, directory: str) -> Sequence[PendingDelivery]:
        found = list(aged(storage, directory))
        return [
            replace(one, started_at_ns=one.started_at_ns + 8 * DAY_NS) if one.bytes == 10 else one
            for one in found
        ]

    monkeypatch.setattr(S3Storage, "pending", newest_is_fresh)
    for clock in (FourDaysBehind(), SystemClock()):
        with opened(clock) as context:
            reconcile(context)
    assert bucket.uploads() == ["run/step-20/shard-1", "run/step-30/shard-1"]
