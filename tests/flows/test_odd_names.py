"""Any name POSIX allows survives: discovered, sealed, verified, and printed as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptgov.testing.builders import write_dcp

NAMES = [
    "Läufe/模型-step_5",
    " two  words /an other step_5",
    "line\nbreak/a\tb-step_5",
    "-run/--step_5",
    "*[a]?/*[a]?-step_5",
    "quo\"ted's/\"'-step_5",
    "not-utf8-\udcff/\udcfe-step_5",
    "a" * 240 + "/step_5",
]


@pytest.fixture(params=NAMES, ids=ascii)
def checkpoint(request, tier: Path) -> Path:
    return write_dcp(tier / request.param)


def test_the_path_is_printed_byte_for_byte(spawn: Callable, checkpoint: Path) -> None:
    process = spawn("latest", os.fsencode(checkpoint.parent))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == os.fsencode(checkpoint) + b"\n"


def test_it_is_sealed_and_verified(cli, checkpoint: Path) -> None:
    cli.done("scan", checkpoint.parent, "--run", "odd")
    assert cli.json("verify", "odd").json["checkpoints"][0]["state"] == "restorable"
    answer = cli.json("latest", "odd", "--evidence", "digest")
    assert (answer.code, answer.json["step"]) == (0, 5)


def test_shards_of_odd_names_are_sealed_and_verified(cli, tier: Path) -> None:
    directory = tier / "run/step_1"
    directory.mkdir(parents=True)
    names = ["plain", "über", "new\nline", " ", "-dash", "*", "\udcff\udcfe", "x" * 240]
    for name in names:
        (directory / name).write_bytes(name.encode("utf-8", "surrogateescape"))
    cli.done("commit", directory)
    cli.done("verify", directory)
    (directory / "\udcff\udcfe").write_bytes(b"other")
    assert cli("verify", directory).code == 5


def test_a_symlink_to_a_checkpoint_is_an_alias(cli, tier: Path) -> None:
    directory = write_dcp(tier / "run/step_5")
    (tier / "run/step_9").symlink_to("step_5")
    assert cli("latest", tier / "run").path == directory
    assert cli.json("list", tier / "run").names == ["step_5"]


def test_a_directory_that_is_itself_a_checkpoint_stands_for_its_run(cli, tier: Path) -> None:
    older, newer = write_dcp(tier / "run/step_5"), write_dcp(tier / "run/step_6")
    assert cli("latest", older).path == older
    assert cli("latest", newer).path == newer


def test_a_relative_directory_gives_an_absolute_path(cli, tier: Path, monkeypatch) -> None:
    directory = write_dcp(tier / "run/step_5")
    monkeypatch.chdir(tier)
    assert cli("latest", "./run").path == directory
