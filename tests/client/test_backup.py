"""The catalog lost and restored by one command answers as before, with what happened since."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage import Cli

from ckptgov.storage.posix import PosixStorage


@pytest.fixture
def lose(cli: Cli):
    """Everything but the settings goes."""

    def lose() -> None:
        for path in cli.home.iterdir():
            if path.name != "ckptgov.yaml":
                path.unlink()

    return lose


def answers(cli: Cli) -> list[tuple[int, str]]:
    asked = [cli.here("latest", run, "--json") for run in ("llm", "red/llm")]
    return [(one.code, one.out) for one in asked]


@pytest.mark.parametrize("to", ["s3", "file"])
def test_the_answers_are_the_same_again(cli: Cli, lose, tmp_path: Path, to: str) -> None:
    cli.here("mark-bad", "llm", "--step", "20", "--reason", "loss")
    before = answers(cli)
    target = to if to == "s3" else tmp_path / "catalog.dump"
    written = cli.here("catalog", "backup", "--to", target)
    assert written.code == 0, written
    lose()
    back = cli.here("catalog", "restore", written.out.strip())
    assert back.code == 0, back
    assert answers(cli) == before
    assert [code for code, _ in before] == [0, 0]


def test_what_happened_since_is_read_from_the_tiers(cli: Cli, lose) -> None:
    assert cli.here("catalog", "backup", "--to", "s3").code == 0
    assert cli.here("rollback", "llm", "--to", "10").code == 0
    assert cli.here("mark-bad", "red/llm", "--step", "10", "--reason", "loss").code == 0
    after = answers(cli)
    lose()
    assert cli.here("catalog", "restore", "s3").code == 0
    assert answers(cli) == after
    assert [code for code, _ in after] == [0, 5]


def test_an_older_instance_is_fenced_off(cli: Cli, lose, tmp_path: Path) -> None:
    cli.here("catalog", "backup", "--to", "s3")
    lose()
    first = cli.here("catalog", "restore", "s3", "--json").json
    lose()
    second = cli.here("catalog", "restore", "s3", "--json").json
    assert second["epoch"] > first["epoch"]
    identity = (tmp_path / "lustre" / ".ckptgov-tier.json").read_text()
    assert f'"epoch":{second["epoch"]}' in identity


def test_only_the_newest_stay_and_what_is_not_ours_does(cli: Cli, tmp_path: Path) -> None:
    for _ in range(3):
        written = cli.here("catalog", "backup", "--to", "s3", "--keep", "2", "--json").json
    held = next((tmp_path / "s3" / ".ckptgov-catalog").iterdir())
    (held / "notes").write_text("mine")
    last = cli.here("catalog", "backup", "--to", "s3", "--keep", "1", "--json").json
    assert len(written["removed"]) == 1
    assert len(last["removed"]) == 2
    assert sorted(one.name for one in held.iterdir()) == [Path(last["path"]).name, "notes"]


def test_a_damaged_file_changes_nothing(cli: Cli, lose, tmp_path: Path) -> None:
    path = tmp_path / "catalog.dump"
    cli.here("catalog", "backup", "--to", path)
    raw = path.read_bytes()
    lose()
    flipped = raw[:100] + bytes([raw[100] ^ 1]) + raw[101:]
    for damaged in (raw[:-20], flipped, b"", b"hello"):
        path.write_bytes(damaged)
        answer = cli.here("catalog", "restore", path)
        assert answer.code == 9, answer
        assert cli.here("latest", "llm").code == 9
    path.write_bytes(raw)
    assert cli.here("catalog", "restore", path).code == 0


def test_a_catalog_that_holds_facts_is_not_overwritten(cli: Cli) -> None:
    cli.here("catalog", "backup", "--to", "s3")
    before = answers(cli)
    assert cli.here("catalog", "restore", "s3").code == 2
    assert answers(cli) == before


def test_a_file_that_is_there_is_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "catalog.dump"
    path.write_text("mine")
    assert cli.here("catalog", "backup", "--to", path).code == 2
    assert path.read_text() == "mine"


def test_copies_of_two_catalogs_are_not_guessed_between(cli: Cli, lose, tmp_path: Path) -> None:
    cli.here("catalog", "backup", "--to", "s3")
    mine = next((tmp_path / "s3" / ".ckptgov-catalog").iterdir())
    (mine.parent / "other").mkdir()
    (mine.parent / "other" / next(mine.iterdir()).name).write_bytes(b"x")
    lose()
    assert cli.here("catalog", "restore", "s3").code == 12
    assert cli.here("catalog", "restore", f"s3/.ckptgov-catalog/{mine.name}").code == 2


def test_an_unmounted_tier_is_not_written_to(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "s3" / ".ckptgov-tier.json").unlink()
    assert cli.here("catalog", "backup", "--to", "s3").code == 9
    assert list((tmp_path / "s3").iterdir()) == []


def test_a_dry_run_writes_and_loads_nothing(cli: Cli, lose, tmp_path: Path) -> None:
    path = tmp_path / "catalog.dump"
    would = cli.here("catalog", "backup", "--to", path, "--dry-run")
    assert (would.code, would.out) == (0, f"{path}\n")
    assert not path.exists()
    cli.here("catalog", "backup", "--to", path)
    lose()
    assert cli.here("catalog", "restore", path, "--dry-run").code == 0
    assert not (cli.home / "catalog.sqlite").exists()


def test_a_tier_that_is_away_is_told_and_the_rest_is_back(cli: Cli, lose, tmp_path) -> None:
    cli.here("catalog", "backup", "--to", "s3")
    lose()
    (tmp_path / "lustre").rename(tmp_path / "away")
    answer = cli.here("catalog", "restore", "s3", "--json")
    assert answer.code == 3
    assert answer.json["runs"] == 2
    assert cli.here("latest", "llm").code == 9
    (tmp_path / "away").rename(tmp_path / "lustre")
    assert cli.here("latest", "llm").code == 0


def test_what_comes_back_otherwise_is_no_copy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = PosixStorage.publish

    def lossy(self, path, chunks):
        return publish(self, path, [chunk[:-1] + b"?" for chunk in chunks])

    monkeypatch.setattr(PosixStorage, "publish", lossy)
    answer = cli.here("catalog", "backup", "--to", "s3")
    assert (answer.code, answer.out) == (9, "")
    assert "comes back otherwise" in answer.err
