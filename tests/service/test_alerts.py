"""Alerts: the webhook is told once per episode; Prometheus's rules fire as they should."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from ckptgov.model.clock import SystemClock
from ckptgov.service.alerts import TRIES, Alert, Notifier, post_json

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
URL = "http://alerts.example.org/hook?secret=hunter2"
CORRUPT = Alert(name="corrupt-copy", text="2 copies", about=(("tier", "lustre"),))
LATE = Alert(name="activity-late", text="scan", about=(("activity", "scan"),))


class Hook:
    """A receiver in this process; ``answers`` are statuses or errors, the last one for good."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers) or [200]
        self.told: list[dict[str, object]] = []
        self.asked = 0

    def __call__(self, url: str, body: bytes) -> int:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer == 200:
            self.told.append(json.loads(body))
        return answer


class FakeClock(SystemClock):
    def __init__(self) -> None:
        self.slept: list[float] = []

    def now_ns(self) -> int:
        return 1_000

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def notifier(hook: Hook, *, url: str | None = URL, clock: FakeClock | None = None) -> Notifier:
    return Notifier(lambda: url, clock=clock or FakeClock(), post=hook, in_background=False)


def told(hook: Hook) -> list[tuple[object, object]]:
    return [(one["alert"], one["status"]) for one in hook.told]


def test_an_alert_is_told_once_while_it_stands() -> None:
    hook = Hook()
    alerts = notifier(hook)
    for _ in range(3):
        alerts.notice([CORRUPT])
        alerts.deliver()
    assert hook.told == [
        {
            "version": 1,
            "status": "firing",
            "alert": "corrupt-copy",
            "text": "2 copies",
            "labels": {"tier": "lustre"},
            "at_ns": 1_000,
        }
    ]


def test_an_alert_whose_words_change_is_the_same_episode() -> None:
    hook = Hook()
    alerts = notifier(hook)
    alerts.notice([CORRUPT])
    alerts.notice([Alert(name="corrupt-copy", text="3 copies", about=CORRUPT.about)])
    alerts.deliver()
    assert len(hook.told) == 1


def test_what_is_over_is_told_and_its_return_is_a_new_episode() -> None:
    hook = Hook()
    alerts = notifier(hook)
    for standing in ([CORRUPT, LATE], [LATE], [CORRUPT, LATE]):
        alerts.notice(standing)
    alerts.deliver()
    assert told(hook) == [
        ("corrupt-copy", "firing"),
        ("activity-late", "firing"),
        ("corrupt-copy", "resolved"),
        ("corrupt-copy", "firing"),
    ]


def test_a_process_that_no_longer_notices_says_nothing_is_over() -> None:
    hook = Hook()
    alerts = notifier(hook)
    alerts.notice([CORRUPT])
    alerts.forget()
    alerts.notice([])
    alerts.deliver()
    assert told(hook) == [("corrupt-copy", "firing")]


def test_a_receiver_that_is_away_is_tried_again_with_growing_pauses() -> None:
    hook, clock = Hook(OSError("refused"), 503, 200), FakeClock()
    alerts = notifier(hook, clock=clock)
    alerts.notice([CORRUPT])
    alerts.deliver()
    assert told(hook) == [("corrupt-copy", "firing")]
    assert clock.slept == [1.0, 2.0]


def test_a_receiver_that_never_answers_is_given_up_and_the_next_alert_is_tried() -> None:
    hook, clock = Hook(500), FakeClock()
    alerts = notifier(hook, clock=clock)
    alerts.notice([CORRUPT, LATE])
    alerts.deliver()
    assert hook.asked == 2 * TRIES
    assert max(clock.slept) == 60.0


def test_without_an_address_nothing_is_sent() -> None:
    hook = Hook()
    alerts = notifier(hook, url=None)
    alerts.notice([CORRUPT])
    alerts.deliver()
    assert hook.asked == 0


def test_noticing_does_not_wait_for_a_receiver_that_hangs() -> None:
    asked, let_go = threading.Event(), threading.Event()

    def hang(url: str, body: bytes) -> int:
        asked.set()
        let_go.wait(30)
        return 200

    with Notifier(lambda: URL, clock=FakeClock(), post=hang) as alerts:
        alerts.notice([CORRUPT])
        assert asked.wait(30)
        alerts.notice([CORRUPT, LATE])
        let_go.set()


def test_the_address_never_stands_in_the_logs(caplog: pytest.LogCaptureFixture) -> None:
    alerts = notifier(Hook(500))
    alerts.notice([CORRUPT])
    alerts.deliver()
    assert "alerts.example.org" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_real_receiver_is_posted_json() -> None:
    got: list[tuple[str, str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            got.append((self.path, self.headers["Content-Type"], self.rfile.read(size)))
            self.send_response(302 if self.path == "/away" else 204)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert post_json(f"{url}/hook?key=1", b'{"a":1}') == 204
        assert post_json(f"{url}/away", b"{}") == 302, "a redirect is an answer, not a way"
        server.shutdown()
    assert got[0] == ("/hook?key=1", "application/json", b'{"a":1}')
    assert len(got) == 2


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "http://", "nonsense"])
def test_only_http_addresses_are_posted_to(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        post_json(url, b"{}")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return subprocess.run(
        [tool, *arguments], cwd=RULES, capture_output=True, text=True, timeout=60, check=False
    )


def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_fires_when_it_should_and_only_then() -> None:
    done = promtool("test", "rules", "rules_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_scrape_configuration() -> None:
    done = promtool("check", "config", "--syntax-only", "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_that_sees_it_fire() -> None:
    alerts = re.findall(r"- alert: (\w+)", (RULES / "rules.yaml").read_text())
    tests = (RULES / "rules_test.yaml").read_text()
    assert alerts
    for alert in alerts:
        fired = rf"alertname: {alert}\n\s+exp_alerts:\n\s+- exp_labels"
        assert re.search(fired, tests), f"no test sees {alert} fire"
