"""A thousand random bit flips over everything a sealed run consists of: every one is found.

Each round damages files of three in four checkpoints and asks once; the others must answer as
before. Then the bits are flipped back, so that each round starts from the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ckptgov.testing.builders import flip_bit, write_dcp

SEED = 20240229
CHECKPOINTS = 12
PER_ROUND = 9
FLIPS = {"shards": 504, "manifests": 198, "receipts": 153, "sealed": 99, "rollback": 50}


@dataclass(frozen=True)
class Flip:
    """One inverted bit; applying it again undoes it."""

    step: int
    path: Path
    offset: int
    bit: int

    def apply(self) -> None:
        mode = self.path.stat().st_mode
        self.path.chmod(0o644)
        flip_bit(self.path, self.offset, self.bit)
        self.path.chmod(mode & 0o7777)

    def __str__(self) -> str:
        return f"seed {SEED}: {self.path.name} byte {self.offset} bit {self.bit}"


@pytest.fixture
def run(cli, tier: Path) -> Path:
    for step in range(1, CHECKPOINTS + 1):
        write_dcp(tier / f"run/step_{step}", ranks=3, rows=1)
    cli.done("scan", tier / "run")
    return tier / "run"


def files_of(run: Path, kind: str, step: int) -> list[Path]:
    """The files of one kind that belong to one checkpoint."""
    if kind == "shards":
        return sorted((run / f"step_{step}").iterdir())
    return sorted((run / ".ckptgov" / kind).glob(f"step_{step}.*.json"))[-1:]


def random_flip(rng: random.Random, step: int, path: Path) -> Flip:
    return Flip(step, path, rng.randrange(path.stat().st_size), rng.randrange(8))


def rounds(rng: random.Random, run: Path, kind: str) -> Iterator[list[Flip]]:
    """One bit in every file of some checkpoints, until there were enough."""
    left = FLIPS[kind]
    while left > 0:
        steps = rng.sample(range(1, CHECKPOINTS + 1), PER_ROUND)
        chosen = [(step, path) for step in steps for path in files_of(run, kind, step)]
        yield [random_flip(rng, step, path) for step, path in chosen]
        left -= len(chosen)


@contextmanager
def damage(flips: list[Flip]) -> Iterator[None]:
    for flip in flips:
        flip.apply()
    yield
    for flip in flips:
        flip.apply()


def told_of(answer) -> dict[str, object]:
    """What a verification says of each checkpoint."""
    entries = answer.json["checkpoints"]
    return {entry["name"]: (entry["state"], entry["content_id"]) for entry in entries}


@pytest.mark.parametrize("kind", ["shards", "manifests", "receipts"])
def test_verify_finds_each_and_the_others_answer_as_before(cli, run: Path, kind: str) -> None:
    rng = random.Random(f"{SEED}/{kind}")
    whole = told_of(cli.json("verify", "run"))
    assert len(whole) == CHECKPOINTS
    assert {state for state, _ in whole.values()} == {"restorable"}
    for flips in rounds(rng, run, kind):
        with damage(flips):
            answer = cli.json("verify", "run")
        check(answer, whole, flips, kind)
    assert told_of(cli.json("verify", "run")) == whole


def check(answer, whole: dict[str, object], flips: list[Flip], kind: str) -> None:
    """Every damaged file is named, and what is whole is said to be whole."""
    told = told_of(answer)
    damaged = {f"step_{flip.step}" for flip in flips}
    for flip in flips:
        assert flip.path.name in answer.out, flip
        if kind == "shards":
            findings = answer.findings(f"step_{flip.step}")
            assert any(flip.path.name in finding["path"] for finding in findings), flip
            assert told[f"step_{flip.step}"][0] == "corrupt", flip
    if kind == "shards":
        assert answer.code == 5
    untouched = {name: state for name, state in told.items() if name not in damaged}
    assert untouched == {name: whole[name] for name in whole if name not in damaged}


def test_a_flip_in_the_newest_is_never_handed_out_after_verify(cli, run: Path) -> None:
    (path, *_) = files_of(run, "shards", CHECKPOINTS)
    random_flip(random.Random(SEED), CHECKPOINTS, path).apply()
    cli("verify", "run")
    assert cli.json("latest", "run").json["step"] == CHECKPOINTS - 1
    assert cli.json("latest", run).json["step"] == CHECKPOINTS - 1


def test_damaged_sealed_records_are_named_and_change_no_answer(cli, run: Path) -> None:
    rng = random.Random(f"{SEED}/sealed")
    records = sorted((run / ".ckptgov/journal").glob("*.sealed.json"))
    whole = cli.json("latest", "run").json["path"]
    for _ in range(FLIPS["sealed"] // PER_ROUND):
        flips = [random_flip(rng, 0, path) for path in rng.sample(records, PER_ROUND)]
        with damage(flips):
            answer = cli.json("latest", run)
        for flip in flips:
            assert flip.path.name in answer.out, flip
        assert answer.json["path"] == whole, flips


def test_a_damaged_rollback_is_never_ignored(cli, run: Path) -> None:
    rng = random.Random(f"{SEED}/rollback")
    cli.done("rollback", "run", "--to", "8")
    (path,) = (run / ".ckptgov/journal").glob("*.rollback.json")
    for round_number in range(FLIPS["rollback"]):
        flip = random_flip(rng, 0, path)
        with damage([flip]):
            answer = cli.json("latest", ("run", run)[round_number % 2])
        assert answer.code == 9, flip
    assert cli.json("latest", "run").json["step"] == 8
