"""Somebody who asks a cluster for the newest checkpoint all the time, and believes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ckptgov.testing.cluster_processes import ProcessCluster
from ckptgov.testing.seaweedfs import WeedServer

HTTP_PAUSE_S, COMMAND_PAUSE_S = 0.2, 1.0
"""A process takes a processor for half a second, which the cluster needs as well."""
HTTP_TIMEOUT_S = 15.0
CLI_TIMEOUT_S = 120.0
LATER = frozenset(
    {"could-not-look", "storage", "storage-transient", "slow-down", "busy", "timed-out"}
    | {"interrupted"}
)
"""Kinds of errors that say nothing of the run's checkpoints."""

Document = dict[str, Any]


class Copies:
    """The bytes of copies, compared with what the ranks wrote; each once, or ``again``."""

    def __init__(self, cluster: ProcessCluster, run: str) -> None:
        self._cluster, self._run = cluster, run
        self._store = _Store(cluster.store)
        self._seen: set[tuple[str, str, frozenset[str]]] = set()

    def faults(self, checkpoint: Document, *, again: bool = False) -> Iterator[str]:
        """What is not so of an answer about one checkpoint; nothing where all is."""
        name, copies = checkpoint["name"], checkpoint["copies"]
        written = self._cluster.written.get((self._run, checkpoint["step"]), {})
        if name != f"checkpoint-{checkpoint['step']}":
            yield f"{name} is step {checkpoint['step']}"
        covered: set[str] = set()
        away = {note["path"] for note in checkpoint["notes"] if note["kind"] == "unreachable"}
        for copy in copies:
            shards = frozenset(written if copy["shards"] is None else copy["shards"])
            if not any(copy["root"].startswith(root) for root in away):
                covered |= shards
            key = (name, copy["root"], shards)
            if key in self._seen and not again:
                continue
            wrong = [one for one in shards if self._digest(copy, name, one) != written.get(one)]
            if wrong:
                yield f"{name} at {copy['root']}: {sorted(wrong)} is not what was written"
            self._seen.add(key)
        if covered != set(written) or not written:
            yield f"{name}: {sorted(set(written) ^ covered)} of it lies nowhere, or was not written"
        if copies and checkpoint.get("path", "").rpartition("/")[0] not in (
            "",
            *(copy["root"] for copy in copies),
        ):
            yield f"{checkpoint['path']} is none of its copies"

    def _digest(self, copy: Document, name: str, shard: str) -> str | None:
        if copy["tier"] == "s3":
            body = self._store.read(f"{copy['root']}/{name}/{shard}")
        else:
            try:
                body = (Path(copy["root"]) / name / shard).read_bytes()
            except FileNotFoundError:
                return None
        return None if body is None else hashlib.sha256(body).hexdigest()


class _Store:
    def __init__(self, server: WeedServer) -> None:
        self._client = server.client()

    def read(self, url: str) -> bytes | None:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        try:
            return self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
        except self._client.exceptions.NoSuchKey:
            return None


class Watch:
    """Threads that ask, each in its own way; ``wrong`` is all that may not have been answered."""

    def __init__(self, cluster: ProcessCluster, run: str) -> None:
        self._cluster, self._run = cluster, run
        self._copies = Copies(cluster, run)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._told: list[tuple[float, int]] = []
        self._shared: set[int] = set()
        asks = [
            (f"replica {number}", self._http(number), HTTP_PAUSE_S)
            for number in range(len(cluster.ports))
        ]
        asks.append(("command", self._command, COMMAND_PAUSE_S))
        self._threads = [threading.Thread(target=self._ask_on, args=one) for one in asks]
        self.wrong: list[str] = []
        self.right: Counter[str] = Counter()
        self.later: Counter[str] = Counter()

    @contextlib.contextmanager
    def asking(self) -> Iterator[Watch]:
        """Ask until the end of the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._ending.set()
            for thread in self._threads:
                thread.join()

    def _ask_on(self, who: str, ask: Callable[[], Document | str], pause_s: float) -> None:
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                told = ask()
                with self._lock:
                    self._judge(who, told, began)
            except Exception as error:  # a thread that ended would have nothing to say against
                self.wrong.append(f"{who}: {type(error).__name__}: {error}")
            self._ending.wait(pause_s)

    def _http(self, number: int) -> Callable[[], Document | str]:
        def ask() -> Document | str:
            path = f"/v1/runs/{self._run}/latest"
            try:
                status, document = self._cluster.get(number, path, timeout_s=HTTP_TIMEOUT_S)
            except (OSError, http.client.HTTPException) as error:
                return type(error).__name__
            if (status == 200) == ("error" in document):
                self.wrong.append(f"status {status} with {document}")
            return document

        return ask

    def _command(self) -> Document | str:
        words = ("latest", self._run, "--json")
        try:
            told = self._cluster.ask(*words, expect=None, timeout_s=CLI_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "no answer in time"
        document = told.document
        if told.code != document.get("error", {}).get("exit_code", 0):
            self.wrong.append(f"exit {told.code} with {document}")
        return document

    def _judge(self, who: str, told: Document | str, began: float) -> None:
        if isinstance(told, str):
            self.later[told] += 1
            return
        if error := told.get("error"):
            self.later[error["kind"]] += 1
            if error["kind"] not in LATER:
                self.wrong.append(f"{who}: {error}")
            return
        self.right[who] += 1
        self.wrong += [f"{who}: {fault}" for fault in self._copies.faults(told)]
        step = told["step"]
        floor = max((one for at, one in self._told if at < began), default=-1)
        if step < floor and not self._may_pass_over(floor, told):
            self.wrong.append(f"{who}: step {step} after {floor}: {told}")
        if any(copy["node"] is None for copy in told["copies"]):
            self._shared.add(step)
        self._told.append((time.monotonic(), step))

    def _may_pass_over(self, step: int, told: Document) -> bool:
        """Only while it lies on nodes alone, one of which is not heard of, and that is said."""
        reasons = {
            finding["reason"]
            for one in told["passed_over"]
            if one["step"] == step
            for finding in one["findings"]
        }
        return step not in self._shared and "unreachable" in reasons
