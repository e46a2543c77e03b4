"""Public tools can check a sealed checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ckptgov.testing.builders import flip_bit, write_hf_trainer

needs_xxhsum = pytest.mark.skipif(shutil.which("xxhsum") is None, reason="xxhsum is not installed")


@pytest.fixture
def sealed(cli, tier: Path) -> Path:
    directory = write_hf_trainer(tier / "run/checkpoint-10", 10)
    cli.done("scan", tier / "run")
    return directory


def check(cli, directory: Path) -> subprocess.CompletedProcess[bytes]:
    listing = cli.done("manifest", directory, "--format", "xxhsum").out
    return subprocess.run(
        ["xxhsum", "-c", "-"],
        input=os.fsencode(listing),
        cwd=directory,
        capture_output=True,
        check=False,
    )


@needs_xxhsum
def test_xxhsum_finds_a_sealed_checkpoint_whole(cli, sealed: Path) -> None:
    checked = check(cli, sealed)
    assert checked.returncode == 0, checked
    assert checked.stdout.count(b": OK") == len(list(sealed.iterdir()))


@needs_xxhsum
def test_xxhsum_names_the_shard_after_a_flip(cli, sealed: Path) -> None:
    flip_bit(sealed / "model.safetensors", -1, 3)
    checked = check(cli, sealed)
    assert checked.returncode != 0
    assert b"model.safetensors: FAILED" in checked.stdout


@needs_xxhsum
def test_xxhsum_finds_odd_names_too(cli, tier: Path) -> None:
    directory = tier / "run/step_1"
    directory.mkdir(parents=True)
    for name in (" blanks ", "back\\slash", "über", "not-utf8-\udcff", "-dash", "*", "-", "stdin"):
        (directory / name).write_bytes(os.fsencode(name))
    cli.done("commit", directory)
    checked = check(cli, directory)
    assert (checked.returncode, checked.stdout.count(b": OK")) == (0, 8), checked


def test_a_name_that_xxhsum_cannot_carry_is_refused(cli, tier: Path) -> None:
    directory = tier / "run/step_1"
    directory.mkdir(parents=True)
    (directory / "line\nbreak").write_bytes(b"x")
    cli.done("commit", directory)
    answer = cli("manifest", directory, "--format", "xxhsum")
    assert answer.code != 0
    assert answer.out == ""


def test_the_manifest_is_printed_as_it_lies_on_storage(cli, sealed: Path) -> None:
    (file,) = (sealed.parent / ".ckptgov/manifests").iterdir()
    assert cli.done("manifest", sealed, "--format", "json").out == file.read_text()


def test_an_unsealed_checkpoint_has_no_manifest(cli, tier: Path) -> None:
    directory = write_hf_trainer(tier / "run/checkpoint-10", 10)
    assert cli("manifest", directory).code != 0
