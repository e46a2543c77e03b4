"""``ckptgov serve`` as a process: it starts, says where, works, and ends as a service should."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ckptgov.errors import TransientStorageError, UsageError
from ckptgov.model.clock import SystemClock
from ckptgov.model.cluster import NewTask, TaskKind, TaskState
from ckptgov.model.settings import TierSettings
from ckptgov.ops.tiers import add_tier
from ckptgov.service.notify import sd_notify, watchdog_s
from ckptgov.service.serve import parse_listen
from ckptgov.service.serving import Serving
from ckptgov.testing.builders.dcp import write_dcp
from ckptgov.testing.postgres import postgres, reason_to_skip

LIMIT_S = 60.0
Answer = tuple[int, dict]


def until(is_so: Callable[[], object], *, limit_s: float = LIMIT_S) -> None:
    """Wait for another process."""
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, "it did not happen"
        threading.Event().wait(0.02)


class Process:
    """A running service. stdout is the address, stderr the logs."""

    def __init__(self, home: Path, *arguments: str, **environ: str) -> None:
        self.errors = home.parent / f"stderr-{time.monotonic_ns()}"
        with self.errors.open("wb") as errors:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "ckptgov_cli.main", "serve", *arguments],
                env=os.environ | {"CKPTGOV_HOME": str(home)} | environ,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.child.stdout is not None
        self.url = self.child.stdout.readline().strip()
        self.token = ""

    def ask(self, path: str, *, method: str = "GET", body: object = None) -> Answer:
        parts = urlsplit(self.url)
        with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)) as to:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            if self.token:
                headers["Authorization"] = f"Bearer {self.token}"
            raw = None if body is None else json.dumps(body)
            to.request(method, path, body=raw, headers=headers)
            answer = to.getresponse()
            read = answer.read()
            is_json = "json" in str(answer.getheader("content-type"))
            return answer.status, json.loads(read) if is_json else {"text": read.decode()}

    def stop(self, how: int = signal.SIGTERM) -> int:
        self.child.send_signal(how)
        return self.child.wait(LIMIT_S)

    @property
    def told(self) -> str:
        return self.errors.read_text()

    def events(self) -> list[str]:
        return [json.loads(one)["event"] for one in self.told.splitlines() if one[:1] == "{"]

    def close(self) -> None:
        self.child.kill()
        self.child.communicate()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one scanned tier, looked at every second."""
    (tmp_path / "home").mkdir()
    lustre = tmp_path / "lustre"
    lustre.mkdir()
    write_dcp(lustre / "llama" / "step_10", seed="10")
    root = str(tmp_path / "home")
    with Serving.open(root, clock=SystemClock()) as serving, serving.context() as context:
        add_tier(context, TierSettings(name="lustre", root=str(lustre), ingest=True))
    with (tmp_path / "home" / "ckptgov.yaml").open("a") as file:
        file.write("service:\n  activities:\n    scan: {every: 1s, slo: 10m}\n")
    return tmp_path / "home"


@pytest.fixture
def started(home: Path) -> Iterator[Callable[..., Process]]:
    with ExitStack() as stack:

        def start(*arguments: str, **environ: str) -> Process:
            process = Process(home, "--listen", "127.0.0.1:0", *arguments, **environ)
            stack.callback(process.close)
            return process

        yield start


def test_one_process_finds_seals_and_offers_checkpoints_and_ends_with_zero(
    started: Callable[..., Process], home: Path
) -> None:
    service = started("--no-auth")
    until(lambda: service.ask("/v1/runs/llama/latest")[0] == 200)
    status, answer = service.ask("/v1/runs/llama/latest")
    assert (status, answer["step"]) == (200, 10)
    until(lambda: "ckptgov_activity_last_success_timestamp_seconds" in metrics_of(service))
    write_dcp(home.parent / "lustre" / "llama" / "step_20", seed="20")
    until(lambda: service.ask("/v1/runs/llama/latest")[1].get("step") == 20)
    assert service.stop() == 0
    assert service.events()[-1] == "stopped"


def metrics_of(service: Process) -> str:
    return str(service.ask("/metrics")[1]["text"])


def test_requests_are_counted_by_their_route(started: Callable[..., Process]) -> None:
    service = started("--no-auth", "--no-scheduler")
    for run in ("a", "b"):
        service.ask(f"/v1/runs/{run}")
    service.ask("/nothing/here")
    until(lambda: 'route="/v1/runs/{run}"' in metrics_of(service))
    lines = [one for one in metrics_of(service).splitlines() if "http_requests_total{" in one]
    assert 'route="/v1/runs/{run}",status="503"} 2.0' in "\n".join(lines)
    assert 'route="other",status="404"} 1.0' in "\n".join(lines)


def test_the_first_start_makes_an_admins_token_and_shows_it_once(
    started: Callable[..., Process],
) -> None:
    first = started("--no-scheduler")
    assert first.ask("/v1/runs")[0] == 401
    [token] = [word for word in first.told.split() if word.startswith("ckptgov_")]
    first.token = token
    assert first.ask("/v1/tokens")[0] == 200
    assert first.stop() == 0
    second = started("--no-scheduler")
    assert "ckptgov_" not in second.told
    second.token = token
    assert second.ask("/v1/tokens")[0] == 200


def test_without_tokens_it_does_not_listen_to_other_machines(home: Path) -> None:
    with closing_process(home, "--no-auth", "--listen", "0.0.0.0:0") as refused:
        assert refused.child.wait(LIMIT_S) == 2
        assert "--no-auth on 0.0.0.0" in refused.told
        assert refused.url == ""


def test_an_address_that_is_taken_is_told_before_anything_begins(home: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with closing_process(home, "--listen", f"127.0.0.1:{port}") as refused:
            assert refused.child.wait(LIMIT_S) == 9
            assert "cannot be listened on" in refused.told
            assert "ckptgov_" not in refused.told, "no token was made and lost"


@contextmanager
def closing_process(home: Path, *arguments: str) -> Iterator[Process]:
    process = Process(home, *arguments)
    try:
        yield process
    finally:
        process.close()


def test_who_waits_is_answered_as_things_stand_when_it_is_told_to_stop(
    started: Callable[..., Process], home: Path
) -> None:
    service = started("--no-auth", "--no-scheduler")
    with Serving.open(str(home), clock=SystemClock()) as serving:
        new = NewTask(kind=TaskKind.PUBLISH, key="x", payload=b"{}", node="n1")
        task_id = serving.catalog.tasks.add(new).task_id
    answers: list[Answer] = []
    asking = threading.Thread(
        target=lambda: answers.append(service.ask(f"/v1/tasks/{task_id}?wait=60"))
    )
    asking.start()
    threading.Event().wait(1.0)
    began = time.monotonic()
    assert service.stop() == 0
    asking.join(LIMIT_S)
    assert [status for status, _ in answers] == [200]
    assert time.monotonic() - began < 50


def test_the_leader_that_ends_is_followed_at_once(started: Callable[..., Process]) -> None:
    """Within the time between two claims, not within a lease."""
    first = started("--no-auth")
    until(lambda: "ckptgov_leader 1.0" in metrics_of(first))
    second = started("--no-auth")
    assert "ckptgov_leader 0.0" in metrics_of(second)
    assert first.stop() == 0
    assert "leader-released" in first.events()
    until(lambda: "ckptgov_leader 1.0" in metrics_of(second), limit_s=14.0)


def test_systemd_is_told_how_it_stands(started: Callable[..., Process], tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    told: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)

        def listen() -> None:
            while not told or told[-1] != b"STOPPING=1":
                told.append(listening.recv(100))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        service = started("--no-auth", NOTIFY_SOCKET=path, WATCHDOG_USEC="400000")
        until(lambda: len(told) >= 3)
        assert service.stop() == 0
        thread.join(LIMIT_S)
    assert told[0] == b"READY=1"
    assert set(told[1:-1]) == {b"WATCHDOG=1"}
    assert told[-1] == b"STOPPING=1"


def test_a_manager_that_does_not_read_holds_nothing_up(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        told = [sd_notify("WATCHDOG=1", environ={"NOTIFY_SOCKET": path}) for _ in range(5000)]
    assert told[0]
    assert not told[-1]


def test_nobody_is_told_where_no_unit_started_it() -> None:
    assert not sd_notify("READY=1", environ={})
    assert watchdog_s({}) is None
    assert watchdog_s({"WATCHDOG_USEC": "30000000"}) == 15.0
    assert watchdog_s({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("127.0.0.1:8270", ("127.0.0.1", 8270)),
        ("localhost:0", ("localhost", 0)),
        ("example.org", ("example.org", 8270)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 8270)),
        (":8270", ("0.0.0.0", 8270)),
    ],
)
def test_addresses_are_read(text: str, wanted: tuple[str, int]) -> None:
    assert parse_listen(text) == wanted


@pytest.mark.parametrize("text", ["host:port", "::1:99:x", "host:70000", "a:b:1", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no address"):
        parse_listen(text)


LEADING = """
import sys, threading
from ckptgov.model.clock import SystemClock
from ckptgov.service.scheduler import Scheduler
from ckptgov.service.serving import Serving

with Serving.open(sys.argv[1], clock=SystemClock()) as serving:
    schedule = Scheduler(serving, holder=sys.argv[2], lease_s=1.0, look_every_s=0.1)
    schedule.start()
    threading.Event().wait()
"""


class TestStoppedLeader:
    """A leader stopped past its lease (SIGSTOP) and continued does nothing any more."""

    @pytest.fixture(params=["sqlite", "postgresql"])
    def shared(self, request: pytest.FixtureRequest, home: Path) -> Iterator[Path]:
        """The home, its catalog held by either engine."""
        if request.param == "sqlite":
            yield home
            return
        reason = reason_to_skip()
        if reason is not None:
            pytest.skip(reason)
        with postgres() as server:
            with (home / "ckptgov.yaml").open("a") as file:
                file.write(f"catalog: {server.new_database()}\n")
            yield home

    @pytest.fixture
    def serving(self, shared: Path) -> Iterator[Serving]:
        with Serving.open(str(shared), clock=SystemClock()) as serving:
            yield serving

    @pytest.fixture
    def leading(self, shared: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
        children: list[subprocess.Popen[bytes]] = []

        def start(holder: str) -> subprocess.Popen[bytes]:
            child = subprocess.Popen([sys.executable, "-c", LEADING, str(shared), holder])
            children.append(child)
            return child

        yield start
        for child in children:
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait()

    def work(self, serving: Serving) -> list[int]:
        """End every task there is; under which leaderships tasks were made, oldest first."""
        tasks = serving.catalog.tasks
        for one in tasks.claim(node=None, holder="w", kinds=None, ttl_s=60.0, limit=100):
            tasks.end(one.task_id, one.lease, state=TaskState.DONE, outcome=b"{}")
        made = tasks.tasks(limit=10_000)[::-1]
        return [json.loads(one.task.payload)["by"]["leader_epoch"] for one in made]

    def leads(self, serving: Serving, holder: str) -> bool:
        self.work(serving)
        leader = serving.catalog.activities.leader()
        return leader is not None and leader.holder == holder

    def takes_over(self, serving: Serving, holder: str) -> bool:
        """Within a few leases of the one that is stopped."""
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            try:
                if self.leads(serving, holder):
                    return True
            except TransientStorageError:
                return False
            threading.Event().wait(0.05)
        return False

    def test_at_most_one_ever_acts(
        self, serving: Serving, leading: Callable[[str], subprocess.Popen[bytes]]
    ) -> None:
        first = leading("first")
        until(lambda: self.leads(serving, "first") and len(self.work(serving)) > 5)
        second = leading("second")
        first.send_signal(signal.SIGSTOP)
        until(lambda: self.takes_over(serving, "second") or let_go(first), limit_s=200.0)
        before = serving.catalog.activities.leader()
        assert before is not None
        until(lambda: self.work(serving)[-1] == before.epoch)
        first.send_signal(signal.SIGCONT)
        count = len(self.work(serving))
        until(lambda: len(self.work(serving)) > count + 5)
        made = self.work(serving)
        assert made == sorted(made), "a former leader made a task after a newer one had"
        assert len(set(made)) >= 2
        assert self.leads(serving, "second")
        assert second.poll() is None
        assert first.poll() is None, "and it lives, ready to lead again"


def let_go(child: subprocess.Popen[bytes]) -> None:
    """Stopped inside a transaction, it holds the catalog's lock: let it end that, and stop it."""
    child.send_signal(signal.SIGCONT)
    threading.Event().wait(0.1)
    child.send_signal(signal.SIGSTOP)


def test_a_real_prometheus_scrapes_it(started: Callable[..., Process], tmp_path: Path) -> None:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    service = started("--no-auth")
    until(lambda: service.ask("/v1/runs/llama/latest")[0] == 200)
    rules = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
    config = tmp_path / "prometheus.yaml"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: [{rules}]\n"
        "scrape_configs:\n"
        "  - job_name: ckptgov\n"
        f"    static_configs: [{{targets: ['{urlsplit(service.url).netloc}']}}]\n"
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    child = subprocess.Popen(
        [
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address={address}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: queried(address, 'ckptgov_newest_step{run="llama"}') == ["10"])
        assert queried(address, 'up{job="ckptgov"}') == ["1"]
        assert queried(address, "ckptgov_catalog_up") == ["1"]
        assert queried(address, 'ALERTS{alertname="CkptgovDown", alertstate="firing"}') == []
    finally:
        child.kill()
        child.wait()


def queried(address: str, expression: str) -> list[str]:
    """The values Prometheus gives for an expression; none while it does not answer."""
    host, _, port = address.partition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=10)) as to:
        try:
            from urllib.parse import quote

            to.request("GET", f"/api/v1/query?query={quote(expression)}")
            answer = json.loads(to.getresponse().read())
        except (OSError, ValueError):
            return []
    return [one["value"][1] for one in answer["data"]["result"]]
