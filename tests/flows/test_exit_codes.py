"""Exit codes: three kinds of "no", each with exactly one document under ``--json``."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptgov.testing.builders import truncate, write_dcp, write_lightning

CODES = {
    "restorable": 0,
    "empty": 4,
    "torn": 5,
    "missing": 9,
    "file": 9,
    "several": 12,
}


@pytest.fixture
def directories(tier: Path) -> Path:
    write_dcp(tier / "restorable/step_1")
    (tier / "empty").mkdir()
    truncate(write_dcp(tier / "torn/step_1") / "__0_0.distcp", by_bytes=1)
    for name in ("a", "b"):
        write_dcp(tier / "several" / name / "step_1")
    (tier / "file").write_text("not a directory")
    return tier


@pytest.mark.parametrize("name", CODES)
def test_latest_of_a_directory(cli, directories: Path, name: str) -> None:
    assert cli("latest", directories / name).code == CODES[name]


@pytest.mark.parametrize("name", [name for name, code in CODES.items() if code])
def test_an_error_says_so_in_its_document(cli, directories: Path, name: str) -> None:
    answer = cli.json("latest", directories / name)
    assert answer.code == CODES[name]
    assert answer.json["error"]["exit_code"] == CODES[name]
    assert answer.json["error"]["message"]


@pytest.mark.parametrize("name", [name for name, code in CODES.items() if code])
def test_an_error_leaves_stdout_empty(cli, directories: Path, name: str) -> None:
    answer = cli("latest", directories / name)
    assert answer.out == ""
    assert answer.err


def test_success_prints_the_path_alone(cli, directories: Path) -> None:
    answer = cli("latest", directories / "restorable")
    assert answer.out == f"{directories}/restorable/step_1\n"


def test_an_empty_directory_is_4_even_beside_others(cli, directories: Path) -> None:
    (directories / "empty/notes").mkdir()
    (directories / "empty/notes/readme.txt").write_text("nothing here")
    assert cli("latest", directories / "empty").code == 4


def test_a_torn_one_is_named_with_its_file(cli, directories: Path) -> None:
    answer = cli.json("latest", directories / "torn")
    assert any("__0_0.distcp" in f["path"] for f in answer.findings("step_1"))


def test_several_runs_are_named(cli, directories: Path) -> None:
    message = cli.json("latest", directories / "several").json["error"]["message"]
    assert str(directories / "several") in message
    assert message.endswith("a, b")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything; an ordinary user stays who they are."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def run(cli, directories: Path) -> Iterator[Path]:
    """A run where anybody may look; what is asked once needs no imports any more."""
    with tempfile.TemporaryDirectory() as public:
        os.chmod(public, 0o755)
        run = Path(public) / "run"
        shutil.copytree(directories / "restorable", run)
        assert cli.json("latest", run).code == 0
        yield run


def test_a_directory_that_may_not_be_read_is_9(cli, run: Path) -> None:
    run.chmod(0)
    with as_nobody():
        answer = cli.json("latest", run)
    run.chmod(0o755)
    assert answer.code == 9
    assert "Permission denied" in answer.json["error"]["message"]


def test_a_checkpoint_that_may_not_be_read_is_never_skipped_as_none(cli, run: Path) -> None:
    (run / "step_1").chmod(0)
    with as_nobody():
        answer = cli.json("latest", run)
    (run / "step_1").chmod(0o755)
    assert answer.code in {5, 9}
    assert "Permission denied" in answer.out


def test_an_unknown_run_is_9_and_never_4(cli) -> None:
    answer = cli.json("latest", "team/unheard-of")
    assert answer.code == 9
    assert answer.json["error"]["kind"] == "unknown-run"


BAD_USAGE = [
    ("latest",),
    ("latest", ".", "--no-such-option"),
    ("latest", ".", "--world-size", "many"),
    ("latest", ".", "--purpose", "fun"),
    ("verify", ".", "--level", "deepest"),
    ("rollback", "."),
    ("no-such-command",),
]


@pytest.mark.parametrize("words", BAD_USAGE, ids=" ".join)
def test_bad_usage_is_2(cli, words: tuple[str, ...]) -> None:
    answer = cli(*words)
    assert answer.code == 2
    assert answer.out == ""


@pytest.mark.parametrize("words", BAD_USAGE[:-1], ids=" ".join)
def test_bad_usage_is_one_document_too(cli, words: tuple[str, ...]) -> None:
    answer = cli.json(*words)
    assert answer.code == 2
    assert answer.json["error"]["exit_code"] == 2


def test_structure_is_not_enough_where_digest_is_asked_for(cli, directories: Path) -> None:
    answer = cli.json("latest", directories / "restorable", "--evidence", "digest")
    assert answer.code == 5
    assert answer.reasons("step_1") == ["unverified"]


def test_latest_of_a_directory_writes_nothing(cli, directories: Path, home: Path) -> None:
    before = listing(directories) | listing(home)
    cli.done("latest", directories / "restorable")
    assert listing(directories) | listing(home) == before


def test_scan_touches_no_time_of_a_checkpoint(cli, tier: Path) -> None:
    directory = write_dcp(tier / "run/step_1")
    write_lightning(tier / "other/epoch=0-step=5.ckpt", 5)
    before = listing(directory), listing(tier / "other/epoch=0-step=5.ckpt")
    for run in ("run", "other"):
        cli.done("scan", tier / run)
    assert (listing(directory), listing(tier / "other/epoch=0-step=5.ckpt")) == before


def test_scan_of_torn_checkpoints_is_no_error(cli, directories: Path) -> None:
    assert cli("scan", directories / "torn").code == 0


def test_scan_of_a_missing_directory_is_9(cli, directories: Path) -> None:
    assert cli.json("scan", directories / "missing").code == 9


def test_scan_says_on_stderr_that_it_registered_the_directory(cli, directories: Path) -> None:
    assert "restorable" in cli.done("scan", directories / "restorable").err


def test_a_root_inside_a_registered_one_is_2(cli, directories: Path) -> None:
    cli.done("scan", directories / "restorable")
    assert cli("tier", "add", "inner", directories / "restorable/step_1").code == 2
    assert cli("tier", "add", "outer", directories).code == 2


def test_weights_alone_do_not_resume(cli, sample) -> None:
    run = sample("dcp-hf/consolidated")
    answer = cli.json("latest", run)
    assert answer.code == 5
    assert answer.reasons("step_1") == ["wrong-purpose"]


def listing(root: Path) -> dict[str, tuple[int, int, int]]:
    """What ``root`` and everything beneath it is: mode, size, time of change."""
    found = [root, *root.rglob("*")]
    stats = {str(path): path.lstat() for path in found}
    return {path: (stat.st_mode, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}
