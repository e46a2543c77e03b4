"""A real service process, stopped and let go on, and agents that move bytes meanwhile."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckptgov.errors import CkptgovError, CouldNotLook
from ckptgov.model.clock import SystemClock
from ckptgov.model.pacing import FlowClass, FlowRequest
from ckptgov.model.settings import Settings
from ckptgov.ops.flows_remote import RemoteDesk

BUDGET = 20 * 2**20
PIECE = 64 * 2**10
LEASE_S = 2.0

SERVICE = textwrap.dedent(
    """
    import json, sys
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from ckptgov.catalog.catalog import Catalog
    from ckptgov.model.clock import SystemClock
    from ckptgov.model.pacing import Budget
    from ckptgov.model.settings import Settings, TierSettings
    from ckptgov.ops.flows import FlowDesk
    from ckptgov.ops.flows_door import close_flows, hear_beats, open_flow
    from ckptgov.planning.bandwidth import limits_of
    from ckptgov.wire import flows as wire

    home, budget = sys.argv[1], int(sys.argv[2])
    tier = TierSettings(name="s3", root="s3://b", budget=Budget(write_bytes_per_s=budget))
    settings = Settings(home=home, tiers=(tier,))
    catalog = Catalog.open(
        home + "/catalog.sqlite", fs_type="ext4", is_network=False, clock=SystemClock()
    )
    desk = FlowDesk(catalog, settings, SystemClock(), beat_s=0.2, always_computes=True)

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_POST(self):
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("open"):
                told = wire.decode(raw, wire.OpenFlow)
                open_flow(catalog, limits_of(settings), told, node=None)
                answer = {}
            elif self.path.endswith("beat"):
                answer = wire.to_document(
                    hear_beats(catalog, wire.decode(raw, wire.FlowBeats), node=None)
                )
            else:
                told = wire.decode(raw, wire.CloseFlows)
                answer = wire.to_document(close_flows(catalog, told, node=None))
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    print(server.server_address[1], flush=True)
    server.serve_forever()
    """
)


def poster(port: int) -> Any:
    def post(path: str, document: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.5)
        try:
            connection.request("POST", path, body=json.dumps(document))
            response = connection.getresponse()
            return json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CouldNotLook(str(error)) from error
        finally:
            connection.close()

    return post


class Agent:
    """One agent that moves as fast as its pacer lets it, and writes down when."""

    def __init__(self, port: int, node: str) -> None:
        self.sent: list[float] = []
        self.is_over = threading.Event()
        clock = SystemClock()
        settings = Settings(home="/h")
        self.desk = RemoteDesk(
            poster(port), settings, clock, node=node, beat_s=0.2, lease_s=LEASE_S
        )
        self.request = FlowRequest(
            flow_id=node,
            what="run/step_1",
            flow_class=FlowClass.DURABLE,
            source=None,
            target="s3",
            node=node,
            bytes=2**40,
        )
        self.thread = threading.Thread(target=self.move)
        self.thread.start()

    def move(self) -> None:
        with suppress(CkptgovError), self.desk, self.desk.open(self.request) as flow:
            while not self.is_over.is_set():
                flow.writing.take(PIECE)
                flow.moved(PIECE)
                self.sent.append(time.monotonic())

    def stop(self) -> None:
        self.is_over.set()
        self.thread.join()


def until(condition: Any, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_stopped_service_neither_breaks_the_budget_nor_stops_the_work(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVICE, str(tmp_path), str(BUDGET)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    service = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    agents: list[Agent] = []
    try:
        assert service.stdout is not None
        port = int(service.stdout.readline())
        agents = [Agent(port, node) for node in ("a", "b")]
        until(lambda: all(len(one.sent) > 40 for one in agents))
        service.send_signal(signal.SIGSTOP)
        until(lambda: all(one.desk._is_lost for one in agents))
        stopped_at = time.monotonic()
        until(lambda: time.monotonic() > stopped_at + LEASE_S + 1.5)
        back_at = time.monotonic()
        service.send_signal(signal.SIGCONT)
        before = [len(one.sent) for one in agents]
        until(lambda: all(len(one.sent) > n + 60 for one, n in zip(agents, before, strict=True)))
    finally:
        for one in agents:
            one.stop()
        service.kill()
        service.wait()
        assert service.stdout is not None
        service.stdout.close()
    sent = sorted(at for one in agents for at in one.sent)
    for first, begin in enumerate(sent):
        window = [at for at in sent[first:] if at < begin + 1.0]
        assert len(window) * PIECE <= BUDGET + 4 * 2**20, "a second, and what buckets may hold"
    late = [at for at in sent if stopped_at + LEASE_S < at < back_at]
    rate = len(late) * PIECE / (back_at - stopped_at - LEASE_S)
    assert 0 < rate <= BUDGET / 10 * 1.5, "the share kept aside"
