"""A flush to object storage killed at any moment: nothing false is offered, little sent twice."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import boto3
import pytest
from fault_process import Answer, Forkery
from fault_trees import require_clear

from ckptgov.testing import seaweedfs
from ckptgov.testing.s3_proxy import Call, S3Proxy, s3_proxy

MIB = 2**20
RUN = "run"
CONFIGURATION = """\
runs:
  - run: run
    expect: {glob: "step_*/*.bin", count: %d, marker: DONE, step: "step_(\\\\d+)"}
settle: 0s
digest_threads: 1
"""
OTHER_BYTES = MIB
"""What each upload says it is for."""

if reason := seaweedfs.reason_to_skip():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def store() -> Iterator[seaweedfs.WeedServer]:
    with seaweedfs.weed_s3() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(store: seaweedfs.WeedServer) -> Iterator[S3Proxy]:
    with s3_proxy(store.endpoint, store.access_key, store.secret_key) as running:
        yield running


@pytest.fixture(scope="module")
def client(store: seaweedfs.WeedServer):
    """Another program's client, past the proxy."""
    return boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key,
        region_name="us-east-1",
    )


@pytest.fixture(scope="module")
def s3_forkery(store: seaweedfs.WeedServer, proxy: S3Proxy) -> Iterator[Forkery]:
    """Processes that reach the store through the proxy."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in store.environment.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        made = Forkery()
    yield made
    made.close()


class Flush:
    """One sealed checkpoint, flushed to a prefix of its own, again and again until it is there."""

    def __init__(
        self,
        base: Path,
        forkery: Forkery,
        store: seaweedfs.WeedServer,
        proxy: S3Proxy,
        *,
        shards: int,
    ) -> None:
        self.home = base / "home"
        self.tier = base / "near"
        self.files = [*(f"step_1/{number}.bin" for number in range(shards)), "step_1/DONE"]
        self._shards = shards
        self._forkery, self._proxy, self._bucket = forkery, proxy, store.bucket

    def seal(self, shard_bytes: int, seed: int) -> None:
        """Write and seal it; numbers in the bytes make every MiB another one."""
        filler = random.Random(seed).randbytes(MIB - 8)
        directory = self.tier / RUN / "step_1"
        directory.mkdir(parents=True)
        for name in self.files:
            if name.endswith(".bin"):
                shard = int(Path(name).stem)
                with (self.tier / RUN / name).open("wb") as file:
                    for number in range(shard_bytes // MIB):
                        file.write((shard << 32 | number).to_bytes(8, "big") + filler)
        (directory / "DONE").touch()
        self.home.mkdir()
        (self.home / "ckptgov.yaml").write_text(CONFIGURATION % self._shards)
        done = self._forkery(
            self.home, ("tier", "add", "near", self.tier, "--ingest"), ("scan",), ("latest", RUN)
        )
        assert [one.code for one in done] == [0, 0, 0], done
        assert done[2].json["name"] == "step_1"

    def add_target(self, prefix: str) -> None:
        """A new tier ``s3``, below a prefix that nothing lies under."""
        self.url = f"s3://{self._bucket}/{prefix}"
        self.prefix = prefix
        (done,) = self._forkery(self.home, ("tier", "add", prefix, self.url))
        assert done.code == 0, done
        self._proxy.forget_calls()

    def whole(self) -> Answer:
        """Let the command come to its end."""
        (ended,) = self._forkery(self.home, ("flush", RUN, "--to", self.prefix))
        return ended

    def killed_at(self, request: int, seconds: float) -> tuple[bool, list[Call]]:
        """Kill it so long after it began its ``request``-th request about a shard.

        Whether it was killed, not done before; and the requests that had no answer yet.
        """
        began = len(self._proxy.calls)
        child = self._forkery.held(self.home, ("flush", RUN, "--to", self.prefix))
        # Not its number: that is gone, or another's, as soon as the child ends by itself.
        process = os.pidfd_open(child.pid)
        try:
            child.let_go()
            until = time.monotonic() + 120
            while self._asked_since(began) < request and not _has_ended(process):
                assert time.monotonic() < until, "it hangs"
                time.sleep(0.002)
            time.sleep(seconds)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
        under_way = [call for call in self._proxy.calls if call.status == 0]
        return child.wait().was_killed, under_way

    def _asked_since(self, began: int) -> int:
        return sum(1 for call in self._proxy.calls[began:] if call.key.endswith(".bin"))

    def latest_of_store_alone(self) -> int:
        """What somebody without a catalog is told; whatever is offered is right, or this fails."""
        (told,) = self._forkery(
            self.home / "nobodys", ("latest", f"{self.url}/{RUN}", "--evidence", "digest")
        )
        require_clear([told])
        assert told.code in (0, 4, 5, 9), told
        return told.code


def _require_same(flush: Flush, client, bucket: str) -> None:
    for name in flush.files:
        body = client.get_object(Bucket=bucket, Key=f"{flush.prefix}/{RUN}/{name}")["Body"]
        with (flush.tier / RUN / name).open("rb") as file:
            while piece := file.read(MIB):
                assert body.read(len(piece)) == piece, f"{name} is wrong in the store"
        assert body.read() == b"", f"{name} is longer in the store"


def _has_ended(process: int) -> bool:
    return bool(select.select([process], [], [], 0)[0])


def _sent_twice(calls: Sequence[Call], unanswered: Sequence[Call]) -> list[Call]:
    """Requests that send what the store had said to the sender that it has."""
    known: set[tuple[str, str | None]] = set()
    again = []
    for call in calls:
        if call.method != "PUT" or not call.key.endswith(".bin"):
            continue
        what = (call.key, call.query.get("partNumber"))
        if what in known:
            again.append(call)
        if call.status == 200 and not any(call is one for one in unanswered):
            known.add(what)
    return again


@pytest.mark.timeout(3600)
def test_a_flush_killed_at_random_moments_sends_only_what_is_missing(
    tmp_path: Path, s3_forkery, store, proxy: S3Proxy, client, dice, full_sweep, request, capsys
) -> None:
    """The same flush killed again and again, until it is done: 5 kills, 50 in the full campaign."""
    shards, shard_bytes = (4, 256 * MIB) if full_sweep else (2, 72 * MIB)
    size = shards * shard_bytes
    requests = 30 if full_sweep else 14
    seed = request.config.getoption("--seed")
    flush = Flush(tmp_path, s3_forkery, store, proxy, shards=shards)
    flush.seal(shard_bytes, dice.randrange(2**32))
    kills = rounds = 0
    while kills < (50 if full_sweep else 5):
        flush.add_target(f"killed-{seed}-{rounds}")
        unanswered: list[Call] = []
        is_done = False
        for _ in range(5):
            was_killed, under_way = flush.killed_at(dice.randint(1, requests), dice.random() / 3)
            if not was_killed:
                break
            kills += 1
            unanswered += under_way
            if is_done := flush.latest_of_store_alone() == 0:
                _require_same(flush, client, store.bucket)
        ended = flush.whole()
        assert ended.code == 0, ended
        assert flush.latest_of_store_alone() == 0
        if not is_done:
            _require_same(flush, client, store.bucket)
        sent_bytes = proxy.sent_bytes("PUT", "*.bin")
        lost_bytes = sum(call.sent_bytes for call in unanswered if call.method == "PUT")
        with capsys.disabled():
            print(
                f"{sent_bytes / MIB:.0f} MiB sent of {size / MIB:.0f}; "
                f"{lost_bytes / MIB:.0f} were under way when {kills} kills came"
            )
        assert sent_bytes <= size + lost_bytes + OTHER_BYTES
        assert _sent_twice(proxy.calls, unanswered) == []
        (cleared,) = s3_forkery(flush.home, ("reconcile",))
        assert cleared.code == 0, cleared
        left = client.list_multipart_uploads(Bucket=store.bucket, Prefix=flush.prefix)
        assert "Uploads" not in left
        rounds += 1
