"""An unmounted tier looks like an empty directory; that is "could not look", never "none"."""

from __future__ import annotations

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


def test_another_run_in_its_place_is_9(cli, below: Path) -> None:
    below.rename(below.with_name("elsewhere"))
    below.with_name("other").rename(below)
    assert cli.json("latest", "below").code == 9


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
