"""The hot question from memory: the same bytes as from the API, only for who may ask it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from standing_stage import Stage

from ckptgov.model.access import Right
from ckptgov.service import access
from ckptgov.service.answers import Answers
from ckptgov.service.app import create_app
from ckptgov.service.fastpath import FastPath
from ckptgov.testing import sealed_runs
from ckptgov.wire.requests import LatestQuery

Got = tuple[int, list[tuple[bytes, bytes]], bytes]


class Site:
    """The API, the fast path before it, and a token that may read."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.answers = Answers(stage.serving, poll_s=3600.0, oldest_s=3600.0)
        self.answers.start()
        self.app = create_app(stage.serving, answers=self.answers)
        # Never started, these remember nothing: the application itself answers.
        self.plain = create_app(stage.serving, answers=Answers(stage.serving))
        self.behind: list[str] = []
        verbs = ("latest", "events")
        self.front = FastPath(
            self._counted,
            stage.serving,
            self.answers,
            verbs=verbs,
            end_waits=self.app.end_waits,
        )
        self.token = self.make(Right.READ)

    async def _counted(self, scope, receive, send) -> None:
        self.behind.append(scope["path"])
        await self.app(scope, receive, send)

    def make(self, *rights: Right, teams=(), ttl_s=None) -> access.MadeToken:
        return access.make_token(
            self.stage.catalog,
            label="t",
            rights=rights,
            teams=teams,
            now_ns=self.stage.clock.now_ns(),
            ttl_s=ttl_s,
        )

    def get(
        self,
        path: str,
        *,
        query: str = "",
        token=None,
        accept: str = "*/*",
        fast=True,
        method="GET",
    ) -> Got:
        scope = self.scope(path, query=query, token=token, accept=accept, method=method)
        return asyncio.run(_call(self.front if fast else self.plain, scope))

    def scope(
        self, path: str, *, query: str = "", token=None, accept: str = "*/*", method="GET"
    ) -> dict:
        headers = [(b"host", b"localhost"), (b"accept", accept.encode())]
        text = self.token.text if token is None else token
        headers.append((b"authorization", f"Bearer {text}".encode()))
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }


async def _call(app, scope) -> Got:
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message) -> None:
        sent.append(message)

    await app(dict(scope), receive, send)
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return sent[0]["status"], sent[0]["headers"], body


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    stage = Stage(tmp_path)
    made = Site(stage)
    yield made
    made.answers.close()
    stage.close()


URL = "/v1/runs/run/latest"


@pytest.mark.parametrize("accept", ["*/*", "text/plain", "application/json", "text/plain,*/*"])
@pytest.mark.parametrize("query", ["", "purpose=weights", "world_size=2", "explain=true"])
def test_the_bytes_are_those_of_the_api(site: Site, accept: str, query: str) -> None:
    site.stage.seal(100)
    site.get(URL, query=query, accept=accept)
    site.behind.clear()
    fast = site.get(URL, query=query, accept=accept)
    assert site.behind == []
    assert fast == site.get(URL, query=query, accept=accept, fast=False)
    assert fast[0] == 200


def test_none_restorable_is_the_same_too(site: Site) -> None:
    from ckptgov.model.copies import CopyState

    site.stage.seal(100, state=CopyState.CORRUPT)
    site.get(URL)
    site.behind.clear()
    fast = site.get(URL)
    assert site.behind == []
    assert fast == site.get(URL, fast=False)
    assert fast[0] == 409


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (URL, "step=x"),
        (URL, "nothing=1"),
        (URL, "step=1&step=1"),
        (URL, "wait=0.001"),
        ("/v1/runs/run/latest/", ""),
        ("/v1/runs/run/events", ""),
        ("/v1/runs//latest", ""),
        ("/v1/runs/a/b/c/latest", ""),
        ("/v1/runs/run/events/latest", ""),
    ],
)
def test_everything_odd_goes_to_the_api(site: Site, path: str, query: str) -> None:
    site.stage.seal(100)
    site.get(URL)
    site.behind.clear()
    assert site.get(path, query=query) == site.get(path, query=query, fast=False)
    assert len(site.behind) == 1


def test_a_runs_name_that_reads_like_a_verb_is_taken_as_the_api_takes_it(site: Site) -> None:
    run_id = "0b7a41c0-0000-4000-8000-000000000002"
    catalog, place = site.stage.catalog, site.stage.places["shared"]
    sealed_runs.put_run(catalog, "run/events", run_id, [place])
    manifest = sealed_runs.manifest_of_step(7)
    sealed_runs.record_sealed(catalog, run_id, manifest, [place.place])
    site.answers.catch_up()
    site.get(URL)
    assert site.answers.latest("run/events", LatestQuery()).status == 200
    url = "/v1/runs/run/events/latest"
    assert site.get(url) == site.get(url, fast=False)


def test_a_browsers_request_is_looked_at_more_closely(site: Site) -> None:
    site.stage.seal(100)
    site.get(URL)
    site.behind.clear()
    scope = site.scope(URL)
    scope["headers"].append((b"origin", b"https://elsewhere.example"))
    asyncio.run(_call(site.front, scope))
    assert len(site.behind) == 1


@pytest.mark.parametrize(("host", "is_ours"), [(b"localhost:1", 0), (b"[::1]:1", 0), (b"a.b", 1)])
def test_without_tokens_only_names_of_this_machine_are_answered_from_memory(
    tmp_path: Path, host: bytes, is_ours: int
) -> None:
    stage = Stage(tmp_path)
    stage.serving.is_open = True
    site = Site(stage)
    try:
        stage.seal(100)
        site.answers.catch_up()
        site.answers.latest("run", LatestQuery())
        scope = site.scope(URL)
        scope["headers"][0] = (b"host", host)
        asyncio.run(_call(site.front, scope))
        assert len(site.behind) == is_ours
    finally:
        site.answers.close()
        stage.close()


def test_a_head_request_goes_to_the_api(site: Site) -> None:
    site.stage.seal(100)
    site.get(URL)
    site.behind.clear()
    site.get(URL, method="HEAD")
    assert len(site.behind) == 1


def test_a_revoked_token_fails_at_once(site: Site) -> None:
    site.stage.seal(100)
    site.get(URL)
    assert site.get(URL)[0] == 200
    other = site.make(Right.READ).text
    site.stage.catalog.tokens.revoke(site.token.facts.token_id)
    site.answers.catch_up()
    assert site.get(URL)[0] == 401
    assert site.get(URL, token=other)[0] == 200  # it is remembered again, for those who may ask
    assert site.get(URL)[0] == 401


def test_a_token_revoked_while_it_is_looked_up_is_not_remembered(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.stage.seal(100)
    site.answers.catch_up()
    callers, tokens = site.front._callers, site.stage.catalog.tokens
    by_secret = tokens.by_secret

    def meanwhile(sha256):
        found = by_secret(sha256)
        tokens.revoke(site.token.facts.token_id)
        site.answers.catch_up()
        return found

    authorization = f"Bearer {site.token.text}".encode()
    with monkeypatch.context() as patch:
        patch.setattr(type(tokens), "by_secret", lambda _self, sha256: meanwhile(sha256))
        callers.learn(authorization)
    assert callers.caller_of(authorization) is None


def test_an_expired_token_fails_at_once(site: Site) -> None:
    site.stage.seal(100)
    token = site.make(Right.READ, ttl_s=60.0).text
    site.get(URL, token=token)
    assert site.get(URL, token=token)[0] == 200
    site.stage.clock.ahead_s = 61.0
    assert site.get(URL, token=token)[0] == 401


def test_an_unknown_token_opens_nothing(site: Site) -> None:
    site.stage.seal(100)
    site.get(URL)
    assert site.get(URL, token="nonsense")[0] == 401


def test_another_teams_run_does_not_exist(site: Site) -> None:
    site.stage.seal(100)
    site.get(URL)
    token = site.make(Right.READ, teams=("vision",)).text
    for _ in range(2):
        assert site.get(URL, token=token) == site.get(URL, token=token, fast=False)
        assert site.get(URL, token=token)[0] == 503


def test_a_token_that_may_not_read_is_refused(site: Site) -> None:
    site.stage.seal(100)
    site.get(URL)
    token = site.make(Right.COMMIT).text
    site.front._callers.learn(f"Bearer {token}".encode())
    assert site.get(URL, token=token)[0] == 403


def test_one_more_look_serves_all_when_the_last_one_is_too_old(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.stage.seal(100)
    site.answers.catch_up()
    site.get(URL)
    site.behind.clear()
    ahead = site.stage.clock.monotonic() + 7200.0
    monkeypatch.setattr(site.stage.clock, "monotonic", lambda: ahead)
    looks = []
    seq = site.stage.catalog.change_seq
    monkeypatch.setattr(site.stage.catalog, "change_seq", lambda: (looks.append(1), seq())[1])

    async def many() -> list[Got]:
        return await asyncio.gather(*(_call(site.front, site.scope(URL)) for _ in range(50)))

    assert {status for status, _, _ in asyncio.run(many())} == {200}
    assert site.behind == []
    assert len(looks) <= 2


def test_a_look_that_is_too_old_is_never_relied_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.stage.seal(100)
    first = site.get(URL)
    site.stage.seal(200)
    ahead = site.stage.clock.monotonic() + 7200.0
    monkeypatch.setattr(site.stage.clock, "monotonic", lambda: ahead)
    assert site.get(URL) != first


def test_a_change_is_never_answered_from_memory(site: Site) -> None:
    site.stage.seal(100)
    site.get(URL)
    first = site.get(URL)
    site.stage.seal(200)
    site.answers.catch_up()
    assert site.get(URL) != first
