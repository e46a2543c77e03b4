"""With CKPTGOV_URL set every verb prints what it prints where the state lies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from stage import Cli, serving

from ckptgov.errors import CouldNotLook
from ckptgov.governor.served import open_served
from ckptgov.model.cluster import NodeBeat
from ckptgov.model.facts import Query
from ckptgov.service.peer_server import PeerServer
from ckptgov.testing.builders.dcp import write_dcp

READING = [
    ("latest", "llm"),
    ("latest", "llm", "--json"),
    ("latest", "llm", "--explain"),
    ("latest", "red/llm", "--world-size", "2"),
    ("list", "llm"),
    ("list", "llm", "--json"),
    ("show", "llm"),
    ("show", "llm", "77"),
    ("explain", "llm"),
    ("explain", "llm", "--json", "--purpose", "weights"),
    ("manifest", "llm"),
    ("manifest", "llm", "--step", "10", "--format", "xxhsum"),
    ("manifest", "llm", "--step", "77"),
    ("run", "list"),
    ("run", "list", "--json"),
    ("tier", "list"),
    ("tier", "list", "--json"),
    ("tier", "budget"),
    ("tier", "budget", "--json"),
    ("flows",),
    ("flows", "--json"),
    ("rollback", "llm", "--to", "5", "--dry-run"),
    ("mark-bad", "llm", "--step", "77", "--reason", "x"),
    ("report", "llm", "--restart-id", "unasked", "--outcome", "started"),
    ("run", "create", "llm"),
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_the_answer_is_the_same(served: Cli, words: tuple[str, ...]) -> None:
    here, asked = served.here(*words), served.asks(*words)
    assert (asked.code, stripped(asked.out)) == (here.code, stripped(here.out)), (here, asked)


def stripped(out: str) -> str:
    """Without what differs from one moment, or one author, to the next."""
    if out.startswith('{"run"') and '"staging"' in out:
        return _as_last_seen(json.loads(out))
    if '"format":"ckptgov.journal"' not in out:
        return out
    told = json.loads(out[out.index("{") :])
    for name in ("id", "at_ns", "by", "self"):
        del told[name]
    return out[: out.index("{")] + json.dumps(told)


def _as_last_seen(told: dict) -> str:
    """Of an unsealed checkpoint a service tells what the last scan saw, a look sees more."""
    for one in told["checkpoints"]:
        if one["content_id"] is None:
            del one["world_size"], one["reshardable"], one["copies"]
    return json.dumps(told)


def test_a_torn_checkpoint_has_the_same_reasons(served: Cli) -> None:
    here, asked = served.here("show", "llm", "30"), served.asks("show", "llm", "30")
    assert (here.code, asked.code) == (0, 0)
    for label in ("state", "evidence", "content id", "why not"):
        mine, theirs = (
            [line for line in one.out.splitlines() if line.startswith(label)]
            for one in (here, asked)
        )
        assert mine == theirs
        assert mine


def test_usage_is_the_same_but_for_what_the_disk_has_left(served: Cli) -> None:
    here, asked = served.here("du"), served.asks("du")
    assert (asked.code, asked.out) == (here.code, here.out)


@pytest.mark.parametrize(
    "words", [("scan",), ("verify", "llm"), ("verify", "llm", "--level", "size"), ("reconcile",)]
)
def test_what_the_service_does_in_its_own_time_is_waited_for(served: Cli, words) -> None:
    here, asked = served.here(*words), served.asks(*words)
    assert (asked.code, asked.out) == (here.code, here.out), (here, asked)
    assert "task " in asked.err


def test_a_flush_is_waited_for(served: Cli, tmp_path: Path) -> None:
    answer = served.asks("flush", "llm", "--json")
    assert answer.code == 0, answer
    assert [one["state"] for one in answer.json["checkpoints"]] == ["flushed"]
    assert (tmp_path / "s3" / "llm" / "step_20").is_dir()
    assert served.asks("flush", "--all").code == 0


def test_a_failed_task_is_its_error(served: Cli) -> None:
    answer = served.asks("flush", "llm", "--to", "lustre", "--step", "77")
    here = served.here("flush", "llm", "--to", "lustre", "--step", "77")
    assert (answer.code, answer.out) == (here.code, here.out), (here, answer)
    assert answer.code != 0


def test_without_waiting_the_task_is_printed(served: Cli) -> None:
    begun = served.asks("verify", "llm", "--no-wait")
    shown = served.asks("task", "show", begun.out.strip(), "--json")
    assert shown.json["task"]["kind"] == "verify"
    listed = served.asks("task", "list", "--run", "llm", "--json")
    assert [one["task_id"] for one in listed.json["tasks"]] == [begun.out.strip()]


def test_no_wait_without_a_service_is_wrong(cli: Cli) -> None:
    assert cli.here("scan", "--no-wait").code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("doctor",),
        ("tier", "add", "x", "/tmp"),
        ("tier", "check", "lustre"),
        ("tier", "link", "lustre", "s3", "--last", "2"),
        ("catalog", "rebuild"),
        ("catalog", "check"),
    ],
    ids=" ".join,
)
def test_what_has_no_meaning_over_http_says_where_to_run_it(served: Cli, words) -> None:
    answer = served.asks(*words)
    assert answer.code == 2
    assert "where the service runs" in answer.err


def test_history_is_written_through_the_service(served: Cli) -> None:
    first = served.asks("latest", "llm").out
    assert served.asks("mark-bad", "llm", "--step", "20", "--reason", "loss").code == 0
    second = served.asks("latest", "llm").out
    assert first.endswith("step_20\n")
    assert second.endswith("step_10\n")
    assert served.here("latest", "llm").out == second
    assert served.asks("mark-bad", "llm", "--step", "20", "--undo").code == 0
    assert served.asks("latest", "llm").out == first


def test_all_ranks_of_one_restart_get_one_answer(served: Cli) -> None:
    one = served.asks("latest", "llm", "--restart-id", "X", "--json").json
    served.asks("mark-bad", "llm", "--step", "20", "--reason", "loss")
    again = served.asks("latest", "llm", "--restart-id", "X", "--json").json
    assert one["path"] == again["path"]
    assert (one["restart"]["decided_here"], again["restart"]["decided_here"]) == (True, False)
    told = served.asks("report", "llm", "--restart-id", "X", "--outcome", "corrupt")
    assert told.code == 0, told
    later = served.asks("latest", "llm", "--restart-id", "X", "--json").json
    assert later["restart"]["epoch"] == 1
    assert later["path"] != one["path"]


def test_a_directory_is_answered_here(served: Cli, tmp_path: Path) -> None:
    path = tmp_path / "lustre" / "llm"
    url, served.url = served.url, "http://127.0.0.1:9"
    answer = served.asks("latest", path)
    served.url = url
    assert answer.out == f"{path}/step_20\n"


def test_an_unknown_run_is_could_not_look(served: Cli) -> None:
    assert served.asks("latest", "nowhere").code == 9


def test_a_run_is_made_below_a_tier_that_the_service_has(served: Cli, tmp_path: Path) -> None:
    root = tmp_path / "lustre" / "below" / "fresh"
    answer = served.asks("run", "create", "fresh", "--root", root, "--json")
    assert answer.json["runs"][0]["roots"] == [str(root)]
    assert served.asks("latest", "fresh").code == 4
    assert served.asks("run", "create", "far", "--root", tmp_path / "elsewhere").code == 2


def test_a_commit_names_its_place_by_path_or_by_tier(served: Cli, tmp_path: Path) -> None:
    path = tmp_path / "lustre" / "llm" / "step_10"
    by_path = served.asks("commit", path, "--run", "llm")
    by_tier = served.asks("commit", "llm/step_10", "--tier", "lustre", "--run", "llm")
    assert by_path.code == by_tier.code == 0, (by_path, by_tier)
    assert by_path.out == by_tier.out
    assert served.asks("commit", tmp_path / "elsewhere", "--run", "llm").code == 2


def test_bytes_come_from_the_places_that_the_service_names(served: Cli, tmp_path: Path) -> None:
    staged = served.asks("latest", "llm", "--stage", tmp_path / "nvme")
    assert staged.out == f"{tmp_path}/nvme/step_20\n"
    original = tmp_path / "lustre" / "llm" / "step_20"
    for shard in original.iterdir():
        assert (tmp_path / "nvme" / "step_20" / shard.name).read_bytes() == shard.read_bytes()
    older = served.asks("restore", "llm", "--to", tmp_path / "other", "--step", "10")
    assert older.out == f"{tmp_path}/other/step_10\n"


def test_a_place_mounted_elsewhere_is_found_by_this_hosts_own_settings(
    served: Cli, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "ckptgov.yaml").write_text(f"tiers:\n  - name: lustre\n    url: {tmp_path}/moved\n")
    with governed(served, own) as governor:
        told = governor.latest("llm", Query())
        (tmp_path / "lustre").rename(tmp_path / "moved")
        brought = governor.restore(
            "llm", to=str(tmp_path / "nvme"), content_id=told.chosen.content_id
        )
    assert brought.path == f"{tmp_path}/nvme/step_20"


def governed(served: Cli, home: Path):
    environ = {**os.environ, "CKPTGOV_URL": str(served.url), "CKPTGOV_HOME": str(home)}
    return open_served(environ=environ, talk=lambda _: None)


def test_another_place_at_the_same_path_is_not_read(served: Cli, tmp_path: Path) -> None:
    with governed(served, tmp_path / "nothing") as governor:
        told = governor.latest("llm", Query())
        other = (tmp_path / "s3" / ".ckptgov-tier.json").read_bytes()
        (tmp_path / "lustre" / ".ckptgov-tier.json").unlink()
        (tmp_path / "lustre" / ".ckptgov-tier.json").write_bytes(other)
        with pytest.raises(CouldNotLook, match="another place"):
            governor.restore("llm", to=str(tmp_path / "nvme"), content_id=told.chosen.content_id)


def test_tokens_are_made_shown_once_and_taken_back(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ckptgov.model.access import Right
    from ckptgov.service.access import make_token

    with serving(cli.home, is_open=False) as (url, served):
        cli.url = url
        assert cli.asks("latest", "llm").code == 8
        root = make_token(
            served.catalog, label="root", rights=(Right.ADMIN,), now_ns=served.clock.now_ns()
        ).text
        monkeypatch.setenv("CKPTGOV_TOKEN", root)
        would = cli.asks("token", "add", "launch", "--right", "read", "--dry-run")
        assert (would.code, would.out) == (0, "")
        made = cli.asks("token", "add", "launch", "--right", "read", "--expires", "1d")
        token_id = next(
            one["token_id"]
            for one in cli.asks("token", "list", "--json").json["tokens"]
            if one["label"] == "launch"
        )
        file = tmp_path / "token"
        file.write_text(made.out)
        file.chmod(0o600)
        assert made.out.strip() not in cli.asks("token", "list", "--json").out
        monkeypatch.delenv("CKPTGOV_TOKEN")
        monkeypatch.setenv("CKPTGOV_TOKEN_FILE", str(file))
        assert cli.asks("latest", "llm").code == 0
        assert cli.asks("rollback", "llm", "--to", "5").code == 8
        monkeypatch.setenv("CKPTGOV_TOKEN", root)
        assert cli.asks("token", "revoke", token_id, "--dry-run").code == 0
        assert cli.asks("token", "revoke", token_id).code == 0
        monkeypatch.delenv("CKPTGOV_TOKEN")
        assert cli.asks("latest", "llm").code == 8


def test_nodes_are_listed_and_spoken_of(cli: Cli) -> None:
    with serving(cli.home) as (url, served):
        cli.url = url
        served.catalog.nodes.beat(NodeBeat(node="n1", boot="b", version="1"))
        assert cli.asks("node", "list").out.split("\t")[:3] == ["n1", "active", "yes"]
        for verb, state in (
            ("drain", "drained"),
            ("cordon", "cordoned"),
            ("dead", "dead"),
            ("activate", "active"),
        ):
            would = cli.asks("node", verb, "n1", "--dry-run")
            assert would.out == f"n1 would be {state}\n"
            assert cli.asks("node", verb, "n1", "--reason", "fan").out == f"n1 is {state}\n"
        assert cli.asks("node", "drain", "n2").code == 2


def test_events_are_told_oldest_first_and_from_a_number_on(served: Cli) -> None:
    told = served.asks("events", "llm", "--json").json
    numbers = [one["seq"] for one in told["events"]]
    assert numbers == sorted(numbers)
    assert told["next"] == numbers[-1]
    lines = served.asks("events", "llm").out.splitlines()
    assert [int(line.split("\t")[0]) for line in lines] == numbers
    assert served.asks("events", "llm", "--after", told["next"]).out == ""
    assert served.asks("events", "--follow", "--json").code == 2


def test_the_short_way_imports_neither_catalog_nor_storage(served: Cli) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from ckptgov_cli.main import main; code = main(['latest', 'llm']);"
        "heavy = {'sqlmodel', 'sqlite3', 'boto3', 'yaml', 'typer', 'ckptgov.governor',"
        "'ckptgov.storage', 'ckptgov.work', 'ckptgov.catalog', 'ckptgov.layouts'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "CKPTGOV_URL": str(served.url),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "[]\n"


def test_another_nodes_disk_is_read_through_its_agent(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvme = tmp_path / "nvme"
    write_dcp(nvme / "far" / "step_7", ranks=2, seed="far")
    for words in (
        ("tier", "add", "nvme", nvme, "--ingest", "--node", "n1"),
        ("scan", "--node", "n1"),
    ):
        assert cli.here(*words).code == 0
    monkeypatch.setenv("CKPTGOV_PEER_TOKEN", "between-nodes")
    peer = PeerServer(
        "n1", lambda: {"nvme": str(tmp_path / "moved")}, tokens=lambda: ("between-nodes",)
    )
    with peer, serving(cli.home) as (url, served):
        peer.start()
        cli.url = url
        served.catalog.nodes.beat(
            NodeBeat(
                node="n1", boot="b", version="1", peer_url=f"http://127.0.0.1:{peer.address[1]}"
            )
        )
        with governed(cli, tmp_path / "nothing") as governor:
            told = governor.latest("far", Query())
            assert told.chosen is not None, told
            nvme.rename(tmp_path / "moved")
            brought = governor.restore(
                "far", to=str(tmp_path / "here"), content_id=told.chosen.content_id
            )
            assert brought.path == f"{tmp_path}/here/step_7"
            cli.asks("node", "dead", "n1")
            with pytest.raises(CouldNotLook, match="n1 is dead"):
                governor.restore(
                    "far", to=str(tmp_path / "again"), content_id=told.chosen.content_id
                )
