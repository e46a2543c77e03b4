"""With the service down a host decides from the journal on its tiers, or could not look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stage import Cli, serving

from ckptgov.client import transport as module


@pytest.fixture
def host(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int) -> Cli:
    """Another host: it has the tiers in its settings, no catalog, and a service that is down."""
    defaults = module.Transport.__init__.__kwdefaults__ | {"patience_s": 0.0}
    monkeypatch.setattr(module.Transport.__init__, "__kwdefaults__", defaults)
    own = tmp_path / "own"
    own.mkdir()
    (own / "ckptgov.yaml").write_text((cli.home / "ckptgov.yaml").read_text())
    cli.url = f"http://127.0.0.1:{closed_port}"
    return cli


def asks(host: Cli, *words: object):
    return host.asks(*words, home=host.home.parent / "own")


def test_the_answer_comes_from_the_tiers_and_that_is_said(host: Cli, tmp_path: Path) -> None:
    answer = asks(host, "latest", "llm")
    assert answer.out == f"{tmp_path}/lustre/llm/step_20\n"
    assert "answered from the tiers of this host" in answer.err
    assert not (tmp_path / "own" / "catalog.sqlite").exists(), "a question makes no catalog"


def test_a_run_that_lies_elsewhere_on_the_tier_is_found_by_its_name(host: Cli, tmp_path) -> None:
    assert asks(host, "latest", "red/llm").out == f"{tmp_path}/lustre/red/step_10\n"


def test_a_restart_is_decided_in_the_journal_and_the_service_reads_it(host: Cli) -> None:
    decided = asks(host, "latest", "llm", "--restart-id", "X", "--json").json
    assert decided["restart"]["decided_here"] is True
    assert host.here("mark-bad", "llm", "--step", "20", "--reason", "loss").code == 0
    with serving(host.home) as (url, _):
        host.url = url
        again = host.asks("latest", "llm", "--restart-id", "X", "--json").json
    assert again["path"] == decided["path"]
    assert again["restart"]["decided_here"] is False


def test_what_the_service_decided_is_read_from_the_journal(host: Cli) -> None:
    down = host.url
    with serving(host.home) as (url, _):
        host.url = url
        decided = host.asks("latest", "llm", "--restart-id", "X", "--json").json
        host.asks("mark-bad", "llm", "--step", "20", "--reason", "loss")
    host.url = down
    again = asks(host, "latest", "llm", "--restart-id", "X", "--json").json
    assert again["path"] == decided["path"]
    assert again["restart"]["decided_here"] is False


def test_a_mark_in_the_journal_counts_without_the_service(host: Cli) -> None:
    host.here("mark-bad", "llm", "--step", "20", "--reason", "loss")
    assert asks(host, "latest", "llm").out.endswith("step_10\n")


def test_a_host_without_tiers_could_not_look(host: Cli) -> None:
    for more in ((), ("--restart-id", "X"), ("--json",)):
        assert host.asks("latest", "llm", *more).code == 9


def test_a_run_that_no_tier_shows_is_could_not_look(host: Cli) -> None:
    assert asks(host, "latest", "nowhere").code == 9


def test_an_empty_run_is_never_called_empty_without_the_service(host: Cli, tmp_path) -> None:
    assert host.here("run", "create", "new").code == 0
    assert host.here("latest", "new").code == 4
    answer = asks(host, "latest", "new", "--json")
    assert answer.code == 9
    assert answer.json["error"]["kind"] == "could-not-look"
    assert asks(host, "latest", "new", "--restart-id", "X").code == 9


def test_where_the_journals_home_is_gone_nothing_is_answered(host: Cli, tmp_path: Path) -> None:
    """Another tier has the run, too; what was decided or marked may stand at the first alone."""
    assert host.here("flush", "llm").code == 0
    (tmp_path / "lustre").rename(tmp_path / "away")
    assert asks(host, "latest", "llm").code == 9


def test_an_unmounted_tier_is_not_an_empty_one(host: Cli, tmp_path: Path) -> None:
    (tmp_path / "lustre" / ".ckptgov-tier.json").unlink()
    assert asks(host, "latest", "llm").code == 9


def test_a_refusal_of_the_service_is_its_answer_and_not_silence(host: Cli, canned) -> None:
    from canned import refused, said

    host.url = canned.url
    canned.answers = [said(503, refused("could-not-look", 9, "the catalog is away"))]
    answer = asks(host, "latest", "llm")
    assert answer.code == 9
    assert "the catalog is away" in answer.err
    canned.answers = [said(401, refused("not-allowed", 8))]
    assert asks(host, "latest", "llm").code == 8


def test_a_page_of_a_proxy_is_silence(host: Cli, canned) -> None:
    from canned import said

    host.url = canned.url
    canned.answers = [said(404, b"<html>", kind="text/html")]
    assert asks(host, "latest", "llm").out.endswith("step_20\n")
    assert host.asks("latest", "llm").code == 9


def test_other_verbs_do_not_answer_from_the_tiers(host: Cli) -> None:
    for words in (("list", "llm"), ("mark-bad", "llm", "--step", "20", "--reason", "x")):
        assert asks(host, *words).code == 9


def test_what_is_staged_comes_from_the_tiers_too(host: Cli, tmp_path: Path) -> None:
    answer = asks(host, "latest", "llm", "--stage", tmp_path / "nvme", "--json")
    assert answer.code == 0, answer
    assert json.loads(answer.out)["path"] == f"{tmp_path}/nvme/step_20"
