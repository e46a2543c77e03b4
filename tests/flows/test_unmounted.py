"""An unmounted tier looks like an empty directory; that is "could not look", never "none"."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptgov.testing.builders import write_dcp


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
