"""What stays and what goes, asked of a service: the same as where the state lies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from canned import HANG, Canned, FakeClock, refused, said
from stage import Answer, Cli

from ckptgov.client.claims import READ_RENEW_S, ReadClaim
from ckptgov.client.transport import Transport
from ckptgov.config.policies import parse_policy
from ckptgov.errors import ConfigError, Malformed
from ckptgov.governor.served import open_served
from ckptgov.model.clock import SystemClock
from ckptgov.model.policy import Policy
from ckptgov.model.policy_check import PolicyCheck
from ckptgov.service.app import create_app
from ckptgov.service.serving import Serving
from ckptgov.service.workers import Workers
from ckptgov.testing.served import Served, make_home, running, scanned
from ckptgov.wire import decode_policies
from ckptgov.wire import policies as documents

PRESETS = sorted((Path(__file__).resolve().parents[2] / "policies").glob("[!s]*.yaml"))
RUNS = ("llm", "red/llm", "made", "capped", "said")
POLICY = """\
policy: {name}
runs: {runs}
keep: {{lustre: {{last: {last}}}}}
floors: {{min_restorable: 1, min_age: 0s}}
safety: {{max_fraction: {fraction}, adoption_grace: 0s}}
flush: []
"""
TIGHT = POLICY.format(name="tight", runs=["llm", "red/*", "made", "said"], last=1, fraction="90%")
CAPPED = POLICY.format(name="capped", runs=["capped"], last=1, fraction="1%")
LAX = POLICY.format(name="lax", runs=["*"], last=2, fraction="90%")
_OF_A_MOMENT = frozenset(
    ("plan_id", "now", "now_ns", "stored_at", "stored_at_ns", "changed_at", "changed_at_ns")
) | {
    "used_bytes",
    "change_seq",
    "by",
    "id",
    "at_ns",
    "until_ns",
    "self",
    "due_at_ns",
    "condemned_at_ns",
}


@pytest.fixture(scope="module")
def serves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service without tokens, and its workers, over runs that policies keep one checkpoint of."""
    home = make_home(tmp_path_factory.mktemp("keeping"), RUNS)
    (home / "policies").mkdir()
    (home / "policies" / "tight.yaml").write_text(TIGHT)
    (home / "policies" / "capped.yaml").write_text(CAPPED)
    with (
        Serving.open(str(home), clock=SystemClock(), is_open=True) as serving,
        running(create_app(serving)) as url,
        Workers(serving, holder="test", poll_s=0.02) as workers,
    ):
        scanned(serving, *RUNS)
        workers.start()
        yield Served(serving, url)


@pytest.fixture
def governed(
    serves: Served,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """The command line, where the state lies and through the service."""
    for name in ("CKPTGOV_URL", "CKPTGOV_TOKEN", "CKPTGOV_TOKEN_FILE", "CKPTGOV_CATALOG"):
        monkeypatch.delenv(name, raising=False)
    cli = Cli(capsysbinary, monkeypatch, Path(serves.serving.settings().home))
    cli.url = serves.url
    return cli


def lasting(told: object) -> object:
    """A document without what differs from one moment, or one author, to the next."""
    if isinstance(told, dict):
        return {name: lasting(each) for name, each in told.items() if name not in _OF_A_MOMENT}
    return [lasting(each) for each in told] if isinstance(told, list) else told


def same(one: Answer, two: Answer) -> bool:
    return (one.code, lasting(one.json)) == (two.code, lasting(two.json))


READING = (
    ("policy", "show"),
    ("policy", "show", "tight"),
    ("policy", "show", "llm"),
    ("policy", "show", "nothing"),
    ("policy", "check"),
    ("policy", "explain", "llm"),
    ("plan", "--dry-run"),
    ("plan", "--dry-run", "--run", "llm"),
    ("plan", "--dry-run", "--all"),
    ("plans",),
    ("plans", "show", "nothing"),
    ("plans", "approve", "nothing", "--reason", "x"),
    ("apply", "--dry-run"),
    ("apply", "nothing"),
    ("undelete", "llm"),
    ("undelete", "llm", "--dry-run"),
    ("run", "delete", "llm", "--confirm", "llm"),
    ("run", "finish", "llm", "--dry-run"),
    ("run", "retire", "llm", "--dry-run"),
    ("pin", "llm", "10", "--name", "gold", "--reason", "x", "--dry-run"),
    ("pin", "llm", "77", "--name", "gold", "--reason", "x"),
    ("unpin", "llm", "10", "--name", "gold"),
    ("metric", "llm", "10", "loss=0.5", "--dry-run"),
    ("metric", "llm", "10", "loss=low"),
    ("scan", "--dry-run"),
    ("verify", "llm", "--dry-run"),
    ("flush", "llm", "--to", "s3", "--step", "10", "--dry-run"),
    ("reconcile", "--dry-run"),
    ("reconcile", "--dry-run", "--staging"),
    ("reconcile", "--staging", "--older-than", "5s"),
)


def test_what_changes_nothing_answers_the_same(governed: Cli, tmp_path: Path) -> None:
    lax = tmp_path / "lax.yaml"
    lax.write_text(LAX)
    brought = [
        ("plan", "--policy", lax),
        ("policy", "explain", "llm", "--policy", lax),
        ("policy", "check", lax),
    ]
    for words in (*READING, *brought):
        asked = governed.asks(*words[:1], *words[1:3], "--json", *words[3:])
        here = governed.here(*words[:1], *words[1:3], "--json", *words[3:])
        assert same(here, asked), (words, here, asked)


def test_a_plan_is_made_shown_and_carried_out(governed: Cli) -> None:
    made = governed.asks("plan", "--run", "made", "--json")
    assert made.code == 0, made
    assert [one["step"] for one in made.json["entries"]] == [10]
    short = made.json["plan_id"].removeprefix("sha256:")[:12]
    assert same(governed.here("plan", "--run", "made", "--json"), made)
    for words in (("plans",), ("plans", "show", short), ("plan", "--run", "made")):
        asked, here = governed.asks(*words), governed.here(*words)
        assert (asked.code, asked.out) == (here.code, here.out), (words, here, asked)
    applied = governed.asks("apply", short, "--json")
    assert [one["went"] for one in applied.json["steps"]] == ["condemned"]
    again, here = governed.asks("apply", short), governed.here("apply", short)
    assert (again.code, again.out) == (here.code, here.out)
    assert again.code == 6
    assert same(governed.here("apply", "--json"), governed.asks("apply", "--json"))
    back = governed.asks("undelete", "made", "--step", "10", "--json")
    assert (back.code, len(back.json["restored"])) == (0, 1)
    at_once = governed.asks("plan", "--run", "made", "--apply", "--json")
    assert next(one["went"] for one in at_once.json["applied"]["steps"]) == "condemned"


def test_a_plan_beyond_a_cap_waits_and_is_approved(governed: Cli) -> None:
    made = governed.asks("plan", "--run", "capped", "--json")
    assert (made.code, made.json["state"]) == (6, "waiting")
    plan_id = made.json["plan_id"]
    assert governed.asks("apply", plan_id).code == 6
    approved = governed.asks("plans", "approve", plan_id, "--reason", "looked at it", "--json")
    assert (approved.code, approved.json["state"]) == (0, "approved")
    assert governed.asks("apply", plan_id).code == 0


def test_what_people_say_is_said_through_the_service(governed: Cli) -> None:
    for words in (
        ("pin", "said", "10", "--name", "gold", "--reason", "paper"),
        ("metric", "said", "10", "loss=0.5"),
        ("run", "finish", "said"),
        ("run", "retire", "said"),
    ):
        assert governed.asks(*words).code == 0, words
    fates = governed.here("policy", "explain", "said", "--json").json
    assert fates["life"] == "retired"
    assert "pinned" in {one["reason"] for one in fates["checkpoints"][-1]["tiers"][0]["why"]}
    would = governed.asks("run", "delete", "said", "--confirm", "said", "--json")
    assert [one["step"] for one in would.json["entries"]] == [20]
    assert governed.asks("unpin", "said", "10", "--name", "gold").code == 0


def test_a_plan_is_of_a_run_by_its_name(governed: Cli, tmp_path: Path) -> None:
    for words in (("policy", "explain"), ("undelete",), ("plan", "--run")):
        assert governed.asks(*words, tmp_path).code == 2, words


def test_a_lease_is_held_through_the_service_while_a_command_runs(
    governed: Cli, serves: Served, tmp_path: Path
) -> None:
    journal = Path(serves.serving.settings().tiers[0].root) / "llm" / ".ckptgov" / "journal"
    seen = tmp_path / "seen"
    ran = governed.asks("lease", "llm", "10", "--", "sh", "-c", f"ls {journal} > {seen}; exit 7")
    assert ran.code == 7
    assert "pin" in seen.read_text()
    assert any("unpin" in one.name for one in journal.iterdir())
    assert serves.serving.catalog.claims.claims() == ()


def test_a_restore_holds_its_checkpoint_and_lets_go(
    governed: Cli, serves: Served, tmp_path: Path
) -> None:
    held: list[tuple[str, ...]] = []
    claims = serves.serving.catalog.claims
    environ = {"CKPTGOV_URL": serves.url, "CKPTGOV_HOME": str(tmp_path / "nothing")}

    def stop() -> bool:
        held.append(tuple(one.content_id for one in claims.claims()))
        return False

    with open_served(environ=environ, talk=lambda _: None) as governor:
        brought = governor.restore("llm", to=str(tmp_path / "here"), stop=stop)
    assert set(held) == {(brought.content_id,)}
    assert claims.claims() == ()


class TestAReadersClaim:
    TAKEN = said(200, {"claim": {"claim_id": "c1"}})

    @pytest.fixture
    def claim(
        self, canned: Canned, clock: FakeClock, transport: Callable[..., Transport]
    ) -> Callable[..., ReadClaim]:
        def take(*answers: bytes) -> ReadClaim:
            canned.answers = list(answers)
            return ReadClaim(
                transport(canned, patience_s=0.0, answer_s=0.2),
                "red/llm",
                "sha256:0",
                reason="restore",
                clock=clock,
                talk=self.told.append,
            )

        self.told: list[str] = []
        return take

    def asked(self, canned: Canned) -> list[str]:
        return [one.split(b" HTTP")[0].decode() for one in canned.requests]

    def test_it_is_renewed_when_it_is_time(self, claim, canned, clock) -> None:
        held = claim(self.TAKEN)
        assert held.keep() is False
        clock.sleep(READ_RENEW_S)
        held.keep()
        held.keep()
        held.release()
        assert self.asked(canned) == [
            "POST /v1/runs/red%2Fllm/claims",
            "POST /v1/runs/red%2Fllm/claims/c1/renew",
            "DELETE /v1/runs/red%2Fllm/claims/c1",
        ]
        assert self.told == []

    def test_one_that_ran_out_is_taken_anew(self, claim, canned, clock) -> None:
        held = claim(self.TAKEN, said(409, refused("lease-lost", 7)), self.TAKEN)
        clock.sleep(READ_RENEW_S)
        held.keep()
        assert self.asked(canned)[-1] == "POST /v1/runs/red%2Fllm/claims"
        assert self.told == []

    def test_a_service_that_is_away_costs_no_restore(self, claim, canned, clock) -> None:
        held = claim(HANG, HANG, self.TAKEN)
        for _ in range(3):
            clock.sleep(READ_RENEW_S)
            assert held.keep() is False
        assert len(self.told) == 1
        assert "not held while it is read" in self.told[0]
        assert self.asked(canned)[-1].endswith("/claims/c1/renew")

    def test_who_may_not_is_told_once_and_asks_no_more(self, claim, canned, clock) -> None:
        held = claim(said(403, refused("not-allowed", 8)))
        clock.sleep(READ_RENEW_S)
        held.keep()
        held.release()
        assert len(canned.requests) == len(self.told) == 1


class TestDocumentsOfPolicies:
    @pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
    def test_a_policy_comes_back_as_it_is(self, preset: Path) -> None:
        one = parse_policy(preset.read_text(), file=str(preset), tiers=None)
        assert _back(documents.policies([one]), decode_policies.policies) == (one,)
        assert _back(documents.policy_of_run("r", one), decode_policies.policy_of_run) == one
        assert _back(documents.policy_of_run("r", None), decode_policies.policy_of_run) is None

    def test_every_rule_comes_back_as_it_is(self) -> None:
        rules = (
            "{last: 3, first: 2, within: 3h, hourly: 4, daily: 2, weekly: 1, monthly: 1,"
            " yearly: all, every_steps: 7, every: 1d, steps: [1, 2], tags: [gold],"
            " recorded_best: true, older_than_detection: 2d,"
            " best: [{metric: loss, mode: max, count: 2, ties: oldest, nan: worst,"
            " missing_for: 1h}]}"
        )
        text = (
            "policy: all\nteams: [red]\ntags: [big]\n"
            f"keep: {{a: {rules}}}\nweights: {{a: {rules}}}\n"
            "old_lines: {after: 1d, newest_too: true}\n"
            "capacity: {a: {quota: 1TB, files: 5, high: 90%, low: 80%, yields: [unkept],"
            " reserve_saves: 2}}\nlifecycle: {retired: {keep: {last: 1}}, retire_dead_after: 90d}\n"
            "flush: [{from: a, to: b, every: 2}]\nseal: {settle: 5s}\nverify: {max_age: 9d}\n"
        )
        one = parse_policy(text, file="all.yaml", tiers=None)
        assert _back(documents.policies([one]), decode_policies.policies) == (one,)

    def test_what_an_older_service_does_not_say_of_a_metric_is_the_default(self) -> None:
        text = "policy: p\nkeep: {a: {best: {metric: loss, mode: max}}}\n"
        one = parse_policy(text, file="p.yaml", tiers=None)
        told = json.loads(json.dumps(documents.policies([one])))
        (best,) = told["policies"][0]["keep"]["a"]["best"]
        del best["ties_to_oldest"], best["nan_is_worst"]
        assert _back(told, decode_policies.policies) == (one,)

    def test_a_check_comes_back_with_its_mistakes(self) -> None:
        found = PolicyCheck(
            directory=os.fsdecode(b"/etc/\xff"),
            policies=(Policy(name="a", digest="sha256:0", file="/a.yaml"),),
            errors=(ConfigError("a.yaml:2: wrong", hint="mend it"),),
            runs=(("a", "red/llm"), (None, "blue/llm")),
        )
        back = _back(documents.check(found), decode_policies.check)
        assert (back.directory, back.policies, back.runs) == (
            found.directory,
            found.policies,
            found.runs,
        )
        assert [(one.message, one.hint) for one in back.errors] == [("a.yaml:2: wrong", "mend it")]

    def test_what_is_missing_is_named(self) -> None:
        one = parse_policy(PRESETS[0].read_text(), file="p", tiers=None)
        told = json.loads(json.dumps(documents.policies([one])))
        for name in list(told["policies"][0]):
            kept = told["policies"][0].pop(name)
            if name not in ("old_lines", "links"):
                with pytest.raises(Malformed, match=name):
                    decode_policies.policies(told)
            told["policies"][0][name] = kept


def _back(document, decode):
    return decode(json.loads(json.dumps(document)))
