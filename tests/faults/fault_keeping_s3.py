"""A tier in an S3 store under a policy: what is saved there, and what is asked and seen of it."""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fault_process import Answer, Defect, Ended, Forkery
from fault_trees import require_clear

from ckptgov.testing.s3_proxy import Call, Fault, S3Proxy
from ckptgov.testing.seaweedfs import WeedServer

TIER = "cold"
RULE = """\
  - run: %s
    expect: {glob: "step_*/*.bin", count: %d, marker: DONE, step: "step_(\\\\d+)"}
"""
POLICY = """\
policy: tight
runs: ["*"]
keep: {cold: {last: 1}}
floors: {min_restorable: 1, min_age: 0s}
safety: {max_fraction: 99%, grace: 0s, trash: 7d, adoption_grace: 0s}
"""

Files = Mapping[str, bytes]


def pages_of(keys: int) -> Defect:
    """Listings in pages of so many keys, and no pauses between tries."""
    return Defect(str(Path(__file__).with_name("fault_keeping_defects.py")), "small_pages", (keys,))


class ObjectTier:
    """A prefix that is a tier of ``home``'s; ``shards`` says how many files each run's steps have.

    Saving and looking are those of another program, past proxy and product.
    """

    def __init__(
        self,
        base: Path,
        forkery: Forkery,
        store: WeedServer,
        proxy: S3Proxy,
        shards: dict[str, int],
    ) -> None:
        self.home, self._nobody = base / "home", base / "nobody"
        self.shards = shards
        self.prefix = base.name
        self._forkery, self._bucket, self._proxy = forkery, store.bucket, proxy
        self._client = store.client()
        self.saved: dict[tuple[str, int], Files] = {}
        (self.home / "policies").mkdir(parents=True)
        (self.home / "policies/tight.yaml").write_text(POLICY)
        rules = "".join(RULE % one for one in shards.items())
        self._config = self.home / "ckptgov.yaml"
        self._config.write_text(f"runs:\n{rules}settle: 0s\ndigest_threads: 1\n")
        self.done("tier", "add", TIER, self.url(), "--ingest", "--endpoint", store.endpoint)
        self._direct = self._config.read_text()
        self._proxied = self._direct.replace(store.endpoint, proxy.url)
        assert self._proxied != self._direct

    def close(self) -> None:
        self._client.close()

    def url(self, run: str = "") -> str:
        """Where the tier, or a run there, lies."""
        return f"s3://{self._bucket}/{self.prefix}" + (f"/{run}" if run else "")

    def save(self, run: str, step: int, files: Files) -> None:
        """As a trainer does it: the marker last."""
        below = f"{self.prefix}/{run}/step_{step}"
        with ThreadPoolExecutor(8) as several:
            list(several.map(lambda one: self._put(f"{below}/{one[0]}", one[1]), files.items()))
        self._put(f"{below}/DONE", b"")
        self.saved[run, step] = {**files, "DONE": b""}

    def _put(self, key: str, raw: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=key, Body=raw)

    # What is asked

    def __call__(self, *words: str, defect: Defect | None = None) -> Answer:
        """One command of the home's."""
        (answer,) = self._forkery(self.home, words, defect=defect)
        require_clear([answer])
        return answer

    def done(self, *words: str) -> Answer:
        """One that the test relies on."""
        answer = self(*words)
        assert answer.code == 0, (words, answer)
        return answer

    @contextmanager
    def behind_proxy(self) -> Iterator[S3Proxy]:
        """Commands reach the store through the proxy."""
        self._config.write_text(self._proxied)
        self._proxy.forget_calls()
        try:
            yield self._proxy
        finally:
            self._proxy.clear()
            self._config.write_text(self._direct)

    def plan(self, run: str) -> str:
        """The id of a plan for one run."""
        return str(self.done("plan", "--run", run).json["plan_id"])

    def time_is_over(self) -> None:
        """As if the time of every removal had run out."""
        self._change("UPDATE removals SET due_at_ns = 1")

    def _change(self, statement: str) -> None:
        with closing(sqlite3.connect(self.home / "catalog.sqlite", timeout=30)) as catalog:
            catalog.execute(statement)
            catalog.commit()

    def killed(self, words: tuple[str, ...], change: int, late_s: float) -> bool:
        """Kill a command so long after it asked for its ``change``-th change of the store.

        Whether it was killed, not done before.
        """
        with self.behind_proxy() as proxy:
            child = self._forkery.held(self.home, words)
            # Not its number: that is gone, or another's, as soon as the child ends by itself.
            process = os.pidfd_open(child.pid)
            try:
                child.let_go()
                until = time.monotonic() + 120
                while _changes(proxy.calls) < change and not _has_ended(process):
                    assert time.monotonic() < until, "it hangs"
                    time.sleep(0.002)
                time.sleep(late_s)
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)
            ended: Ended = child.wait()
            require_clear(list(ended.answers))
            return ended.was_killed

    @contextmanager
    def stopped(self, words: tuple[str, ...], fault: Fault) -> Iterator[None]:
        """A command stopped, past its leases, at its first request that has the fault."""
        with self.behind_proxy() as proxy:
            injected = proxy.inject(fault)
            child = self._forkery.held(self.home, words)
            child.let_go()
            until = time.monotonic() + 120
            while not injected.fired:
                assert time.monotonic() < until, "it was not reached"
                time.sleep(0.002)
            os.kill(child.pid, signal.SIGSTOP)
            try:
                self._config.write_text(self._direct)
                self._change("UPDATE copy_leases SET expires_at_ns = 1")
                yield
            finally:
                os.kill(child.pid, signal.SIGCONT)
                ended = child.wait()
            require_clear(list(ended.answers))

    def offered(self, run: str, *, forkery: Forkery | None = None) -> set[int]:
        """The steps that anybody would be handed; fails unless each is whole there, to the byte.

        Those that the catalog lists, and what somebody is told who has only the store.
        """
        ask = forkery or self._forkery
        (listed,) = ask(self.home, ("list", run))
        (latest,) = ask(self._nobody, ("latest", self.url(run), "--evidence", "digest"))
        require_clear([listed, latest])
        assert (listed.code, latest.code) == (0, 0), (listed, latest)
        told = listed.json["checkpoints"]
        self.findings = [(one["step"], one["content_id"], one["findings"]) for one in told]
        steps = {one["step"] for one in told if not one["findings"]}
        for step in {*steps, latest.json["step"]}:
            assert self.lies(run, step) == self.saved[run, step], f"step {step} is offered"
        return steps

    # What is seen

    def keys(self, run: str = "") -> dict[str, str]:
        """Every key below a run, relative to it, and its ETag."""
        below = f"{self.prefix}/{run}/" if run else f"{self.prefix}/"
        pages = self._client.get_paginator("list_objects_v2")
        found = {}
        for page in pages.paginate(Bucket=self._bucket, Prefix=below):
            for one in page.get("Contents", []):
                found[one["Key"].removeprefix(below)] = one["ETag"]
        return found

    def read(self, run: str, name: str) -> bytes:
        """The bytes of one object of a run."""
        key = f"{self.prefix}/{run}/{name}"
        return bytes(self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())

    def lies(self, run: str, step: int) -> dict[str, bytes]:
        """What lies under a step's name."""
        names = [one for one in self.keys(run) if one.startswith(f"step_{step}/")]
        return {one.partition("/")[2]: self.read(run, one) for one in names}

    def own(self, run: str, kind: str) -> list[str]:
        """Names of the product's own objects of one kind: manifests, trash, journal."""
        below = f".ckptgov/{kind}/"
        return sorted(one.removeprefix(below) for one in self.keys(run) if one.startswith(below))

    def journal(self, run: str) -> list[dict[str, Any]]:
        """Every record, in order, read without the product."""
        names = self.own(run, "journal")
        return [json.loads(self.read(run, f".ckptgov/journal/{one}")) for one in names]

    def taken_away(self, run: str) -> set[str]:
        """Content ids that the journal says are gone, and not back."""
        gone: set[str] = set()
        for record in self.journal(run):
            match record["kind"]:
                case "tombstone":
                    gone.add(record["content_id"])
                case "undelete":
                    gone.discard(record["content_id"])
        return gone

    def sealed(self, run: str) -> dict[str, int]:
        """The steps that manifests stand for, by content id."""
        names = self.own(run, "manifests")
        read = [json.loads(self.read(run, f".ckptgov/manifests/{one}")) for one in names]
        return {one["content_id"]: one["step"] for one in read}


def _changes(calls: tuple[Call, ...]) -> int:
    """Requests that change something other than what clocks are compared by."""
    looks = ("GET", "HEAD")
    return sum(one.method not in looks and "tmp-clock" not in one.key for one in calls)


def _has_ended(process: int) -> bool:
    return bool(select.select([process], [], [], 0)[0])
