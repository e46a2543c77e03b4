"""An unmounted tier looks like an empty directory; that is "could not look", never "none"."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ckptgov.testing.builders import write_dcp
from ckptgov.work.look import RunLook
from ckptgov.work.tier import Place


@pytest.fixture
def run(cli, tier: Path) -> Path:
    write_dcp(tier / "run/step_100")
    cli.done("scan", tier / "run")
    return tier / "run"


@pytest.fixture
def unmounted(run: Path) -> Path:
    """The mount point without its file system."""
    run.rename(run.with_name("the-file-system"))
    run.mkdir()
    return run


def test_the_run_is_9(cli, unmounted: Path) -> None:
    assert cli.json("latest", "run").code == 9


@pytest.mark.parametrize("words", [("scan",), ("verify", "run"), ("list", "run")])
def test_other_commands_are_9_too(cli, unmounted: Path, words: tuple[str, ...]) -> None:
    assert cli.json(*words).code == 9


def test_nothing_is_written_into_the_mount_point(cli, unmounted: Path) -> None:
    for words in (("scan",), ("scan", unmounted), ("latest", "run", "--restart-id", "a")):
        cli(*words)
    cli("rollback", "run", "--to", "100")
    assert list(unmounted.iterdir()) == []


def test_a_failed_look_forgets_nothing(cli, unmounted: Path) -> None:
    for words in (("scan",), ("latest", "run"), ("verify", "run")):
        cli(*words)
    unmounted.rmdir()
    unmounted.with_name("the-file-system").rename(unmounted)
    assert cli("latest", "run").path == unmounted / "step_100"


def test_a_mount_point_that_is_gone_altogether_is_9(cli, run: Path) -> None:
    run.rename(run.with_name("elsewhere"))
    assert cli.json("latest", "run").code == 9


def test_the_file_system_of_another_place_is_9(cli, unmounted: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_dcp(other / "step_999")
    cli.done("scan", other)
    unmounted.rmdir()
    other.rename(unmounted)
    answer = cli.json("latest", "run")
    assert answer.code == 9
    assert answer.json["error"]["kind"] == "foreign-place"


def test_an_identity_that_does_not_decode_is_9(cli, run: Path) -> None:
    identity = run / ".ckptgov-tier.json"
    identity.chmod(0o644)
    identity.write_bytes(identity.read_bytes().replace(b'"epoch":', b'"epock":'))
    assert cli.json("latest", "run").code == 9


def test_an_emptied_run_root_with_its_identity_is_not_never_any(cli, run: Path) -> None:
    for path in (run / "step_100").iterdir():
        path.unlink()
    (run / "step_100").rmdir()
    answer = cli.json("latest", "run")
    assert answer.code == 5


@pytest.fixture
def below(cli, tier: Path) -> Path:
    """A run that lies in a directory of a tier, as it is before the run's directory went."""
    write_dcp(tier / "below/step_100")
    write_dcp(tier / "other/step_200")
    cli.done("scan", tier)
    return tier / "below"


@pytest.mark.parametrize("words", [("latest",), ("verify",), ("list",), ("explain",)])
@pytest.mark.parametrize("is_mount_point", [True, False])
def test_a_runs_own_directory_that_went_is_9(
    cli, below: Path, words: tuple[str, ...], is_mount_point: bool
) -> None:
    below.rename(below.with_name("elsewhere"))
    if is_mount_point:
        below.mkdir()
    answer = cli.json(*words, "below")
    assert answer.code == 9
    assert str(below) in answer.json["error"]["message"]
    assert answer.json["error"]["hint"]


def test_another_run_in_its_place_is_9_and_nothing_of_it_is_taken_for_lost(
    cli, below: Path
) -> None:
    away = below.rename(below.parent.with_name("elsewhere"))
    below.with_name("other").rename(below)
    for _ in range(2):
        answer = cli.json("latest", "below")
        assert answer.code == 9
        assert "is run 'other' now" in answer.json["error"]["message"]
        cli("reconcile")
    below.rename(below.with_name("other"))
    away.rename(below)
    assert cli("latest", "below").path == below / "step_100"


def test_what_lies_in_an_emptied_directory_is_taken_for_the_run_when_a_person_says_so(
    cli, below: Path
) -> None:
    shutil.rmtree(below)
    write_dcp(below / "step_150")
    answer = cli.json("latest", "below")
    assert answer.code == 9
    assert f"--run {below.name}" in answer.json["error"]["hint"]
    cli.done("scan", below, "--run", "below")
    assert cli("latest", "below").path == below / "step_150"


def test_a_run_made_before_its_first_checkpoint_whose_directory_was_made_anew_is_9(
    cli, below: Path
) -> None:
    fresh = below.with_name("fresh")
    fresh.mkdir()
    cli.done("run", "create", "fresh", "--root", fresh)
    assert cli.json("latest", "fresh").code == 4
    shutil.rmtree(fresh)
    fresh.mkdir()
    assert cli.json("latest", "fresh").code == 9
    write_dcp(fresh / "step_1")
    cli.done("scan", fresh, "--run", "fresh")
    assert cli("latest", "fresh").path == fresh / "step_1"


class TestCopiedElsewhere:
    """The run's directory is gone, and another place has the run."""

    @pytest.fixture
    def nfs(self, cli, below: Path, tmp_path: Path) -> Path:
        (tmp_path / "nfs").mkdir()
        cli.done("tier", "add", "nfs", tmp_path / "nfs", "--ingest")
        cli.done("flush", "below", "--to", "nfs")
        shutil.rmtree(below)
        return tmp_path / "nfs"

    def test_the_second_reconcile_lets_go_of_it(self, cli, below: Path, nfs: Path) -> None:
        answer = cli.json("latest", "below")
        assert (answer.code, str(below) in answer.json["error"]["message"]) == (9, True)
        assert "reconcile" in answer.json["error"]["hint"]
        assert "looked for" not in cli("reconcile").err
        assert cli.json("latest", "below").code == 9
        assert "would no longer be looked for" in cli("reconcile", "--dry-run").err
        assert cli.json("latest", "below").code == 9
        assert f"is no longer looked for at {below}" in cli("reconcile").err
        assert cli("latest", "below").path == nfs / "below/step_100"
        cli.done("restore", "below", "--to", below)
        cli.done("scan")
        assert cli("latest", "below").path.name == "step_100"

    def test_not_while_it_is_only_empty(self, cli, below: Path, nfs: Path) -> None:
        below.mkdir()
        for _ in range(3):
            cli("reconcile")
            assert cli.json("latest", "below").code == 9

    def test_a_tier_that_is_lost_for_good_is_9_until_the_catalog_is_rebuilt_without_it(
        self, cli, tier: Path, nfs: Path, home: Path
    ) -> None:
        shutil.rmtree(tier)
        assert cli.json("latest", "below").code == 9
        config = home / "ckptgov.yaml"
        lines = [one for one in config.read_text().splitlines() if f"url: {tier}," not in one]
        config.write_text("\n".join(lines) + "\n")
        assert cli.json("latest", "below").code == 9
        cli.done("catalog", "rebuild")
        assert cli("latest", "below").path == nfs / "below/step_100"

    def test_nor_the_only_place_of_a_run(self, cli, below: Path, nfs: Path) -> None:
        shutil.rmtree(nfs / "below")
        for _ in range(3):
            cli("reconcile")
            assert cli.json("latest", "below").code == 9
        assert str(below) in cli("run", "list").out


def test_where_it_was_moved_it_is_found_again(cli, below: Path) -> None:
    moved = below.rename(below.with_name("elsewhere"))
    cli.done("scan", moved)
    assert cli("latest", "below").path == moved / "step_100"


def test_one_that_goes_while_it_is_scanned_hides_no_other(
    cli, below: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = RunLook.__init__

    def gone_by_now(self: RunLook, place: Place, run_root: str, *args: Any, **named: Any) -> None:
        if run_root == "below" and below.exists():
            below.rename(below.parent.parent / "elsewhere")
        looked(self, place, run_root, *args, **named)

    write_dcp(below.with_name("other") / "step_300")
    with monkeypatch.context() as patch:
        patch.setattr(RunLook, "__init__", gone_by_now)
        answer = cli.json("scan")
    assert answer.code == 3
    assert str(below) in answer.json["error"]["message"]
    assert cli("latest", "other").path == below.with_name("other") / "step_300"
