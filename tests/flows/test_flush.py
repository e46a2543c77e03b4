"""``ckptgov flush`` as its users see it: what is copied, what is not and why, and what it says."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ckptgov.testing import faultfs
from ckptgov.testing.builders import flip_bit, write_dcp
from ckptgov.testing.faultfs import Faults, Rule

MIB = 2**20
SHARD = "__1_0.distcp"


@pytest.fixture
def nvme(cli, tmp_path: Path) -> Path:
    """The root of a node's own tier."""
    root = tmp_path / "nvme"
    root.mkdir()
    cli.done("tier", "add", "nvme", root, "--scope", "node", "--node", "a", "--ingest")
    return root


@pytest.fixture
def lustre(cli, nvme: Path, tmp_path: Path) -> Path:
    """The root of a shared tier beside it."""
    root = tmp_path / "lustre"
    root.mkdir()
    cli.done("tier", "add", "lustre", root)
    return root


@pytest.fixture
def run(cli, nvme: Path, lustre: Path) -> Path:
    """Two sealed checkpoints, step_1 and step_2."""
    for step in (1, 2):
        write_dcp(nvme / f"run/step_{step}", seed=f"{step}")
    cli.done("scan", nvme / "run")
    return nvme / "run"


@pytest.fixture
def change(home: Path) -> Callable[..., None]:
    """Sets keys of one tier, or of the whole file, in the configuration."""

    def apply(tier: str | None = None, **keys: object) -> None:
        path = home / "ckptgov.yaml"
        told = yaml.safe_load(path.read_text()) if path.exists() else {}
        holder = told if tier is None else next(t for t in told["tiers"] if t["name"] == tier)
        holder.update(keys)
        path.write_text(yaml.safe_dump(told))

    return apply


def files(root: Path) -> dict[str, bytes]:
    """Everything below, our own files included."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def checkpoints(root: Path) -> set[str]:
    """Names of the directories that anybody would take for checkpoints."""
    return {p.name for p in root.glob("run/step_*")}


def told_of(answer, name: str) -> dict:
    """What a flush tells of one checkpoint that it moved or tried to."""
    (one,) = [each for each in answer.json["checkpoints"] if each["name"] == name]
    return one


def skipped(answer) -> dict[str, str]:
    return {one["name"]: one["why_not"] for one in answer.json["skipped"]}


class TestWhatIsAskedFor:
    def test_one_step_goes_to_the_named_tier(self, cli, run: Path, lustre: Path) -> None:
        answer = cli.json("flush", "run", "--step", "1", "--to", "lustre")
        assert answer.code == 0
        one = told_of(answer, "step_1")
        assert (one["state"], one["source"], one["target"]) == ("flushed", "nvme", "lustre")
        assert one["sent_bytes"] == one["bytes"] > 0
        assert checkpoints(lustre) == {"step_1"}
        assert (lustre / "run/step_1" / SHARD).read_bytes() == (run / "step_1" / SHARD).read_bytes()
        there = cli.json("latest", lustre / "run", "--evidence", "digest")
        assert there.chosen == lustre / "run/step_1"

    def test_all_flushes_every_run_along_the_links(
        self, cli, run: Path, nvme: Path, lustre: Path
    ) -> None:
        write_dcp(nvme / "other/step_7")
        cli.done("scan", nvme / "other")
        cli.done("tier", "link", "nvme", "lustre", "--every", "1")
        answer = cli.json("flush", "--all")
        assert answer.code == 0
        moved = {(one["run"], one["name"]) for one in answer.json["checkpoints"]}
        assert moved == {("run", "step_1"), ("run", "step_2"), ("other", "step_7")}
        assert (lustre / "other/step_7").is_dir()

    def test_the_newest_goes_first(self, cli, run: Path) -> None:
        answer = cli.json("flush", "run", "--to", "lustre")
        assert [one["name"] for one in answer.json["checkpoints"]] == ["step_2", "step_1"]

    def test_a_dry_run_says_would_and_writes_nothing(
        self, cli, run: Path, lustre: Path, nvme: Path
    ) -> None:
        before = files(lustre), files(nvme)
        answer = cli("flush", "run", "--to", "lustre", "--dry-run")
        assert answer.code == 0
        assert answer.out.count("would-flush") == 2
        assert (files(lustre), files(nvme)) == before
        assert cli.json("flows").json["flows"] == []

    def test_what_is_there_already_is_not_sent_again(self, cli, run: Path) -> None:
        cli.done("flush", "run", "--to", "lustre")
        again = cli.json("flush", "run", "--to", "lustre")
        assert (again.code, again.json["checkpoints"]) == (0, [])
        assert skipped(again) == {"step_1": "already-there", "step_2": "already-there"}
        one = cli.json("flush", "run", "--to", "lustre", "--step", "1")
        assert (one.code, one.json["checkpoints"]) == (0, [])

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (["nobody", "--to", "lustre"], 9, "nobody"),
            (["run", "--to", "nowhere"], 2, "no tier 'nowhere'"),
            (["run"], 2, "no link"),
            ([], 2, "--all"),
            (["run", "--all"], 2, "--all"),
            (["run", "--to", "lustre", "--step", "99"], 5, "step 99"),
            (["run", "--to", "lustre", "--watch"], 2, "--watch"),
        ],
    )
    def test_what_cannot_be_done_is_said(
        self, cli, run: Path, lustre: Path, words: list[str], code: int, said: str
    ) -> None:
        answer = cli.json("flush", *words)
        assert answer.code == code, answer
        assert said in answer.json["error"]["message"]
        assert checkpoints(lustre) == set()


class TestWhatIsNotCopied:
    def test_what_was_marked_bad(self, cli, run: Path, lustre: Path) -> None:
        cli.done("mark-bad", "run", "--step", "2", "--reason", "loss spike")
        answer = cli.json("flush", "run", "--to", "lustre")
        assert (answer.code, skipped(answer)) == (0, {"step_2": "bad"})
        assert checkpoints(lustre) == {"step_1"}

    def test_what_was_rewritten_in_place_with_the_same_size(
        self, cli, run: Path, lustre: Path
    ) -> None:
        flip_bit(run / "step_2" / SHARD, -1, 0, keep_times=False)
        answer = cli.json("flush", "run", "--to", "lustre")
        assert skipped(answer) == {"step_2": "not-restorable-at-source"}
        asked = cli.json("flush", "run", "--to", "lustre", "--step", "2")
        assert asked.code == 5
        assert "reopened" in asked.json["error"]["message"].replace("-", "")
        assert checkpoints(lustre) == {"step_1"}

    def test_what_is_still_being_written(self, cli, run: Path, lustre: Path) -> None:
        write_dcp(run / "step_3", seed="3")
        (run / "step_3/.metadata").unlink()
        cli("scan", run)
        answer = cli.json("flush", "run", "--to", "lustre")
        assert answer.code == 0
        assert checkpoints(lustre) == {"step_1", "step_2"}
        assert cli.json("flush", "run", "--to", "lustre", "--step", "3").code == 5

    def test_a_whole_one_that_nobody_sealed_yet(self, cli, run: Path, lustre: Path) -> None:
        write_dcp(run / "step_3", seed="3")
        cli.done("flush", "run", "--to", "lustre")
        assert checkpoints(lustre) == {"step_1", "step_2"}

    def test_what_a_rollback_left_behind(self, cli, run: Path, lustre: Path) -> None:
        cli.done("rollback", "run", "--to", "1")
        answer = cli.json("flush", "run", "--to", "lustre")
        assert skipped(answer) == {"step_2": "older-line"}
        assert checkpoints(lustre) == {"step_1"}


class TestWhereItLands:
    def test_a_taken_name_is_left_alone_and_an_attempt_name_answers(
        self, cli, run: Path, lustre: Path
    ) -> None:
        write_dcp(lustre / "run/step_2", seed="somebody else's")
        before = files(lustre / "run/step_2")
        answer = cli.json("flush", "run", "--to", "lustre")
        assert answer.code == 0
        assert told_of(answer, "attempt-1/step_2")["state"] == "flushed"
        assert files(lustre / "run/step_2") == before
        there = cli.json("latest", lustre / "run", "--evidence", "digest")
        parent = lustre / "run/attempt-1"
        assert there.chosen == parent / "step_2"
        resume = there.json["resume_args"]
        assert (resume["path"], resume["parent"]) == (str(parent / "step_2"), str(parent))
        assert files(parent / "step_2") == files(run / "step_2")

    def test_what_a_person_decided_binds_on_the_target_alone(
        self, cli, run: Path, lustre: Path, home: Path, forget_catalog: Callable[[], None]
    ) -> None:
        for step in (3, 4):
            write_dcp(run / f"step_{step}", seed=f"{step}")
        cli.done("scan", run)
        cli.done("mark-bad", "run", "--step", "2", "--reason", "loss spike")
        cli.done("rollback", "run", "--to", "3")
        assert not (lustre / "run").exists()
        for step in (1, 2):
            cli.done("flush", "run", "--to", "lustre", "--step", str(step))
        shutil.rmtree(run.parent)
        forget_catalog()
        (home / "ckptgov.yaml").unlink()
        there = cli.json("latest", lustre / "run", "--evidence", "digest")
        assert there.chosen == lustre / "run/step_1"
        assert there.reasons("step_2") == ["bad"]
        write_dcp(lustre / "run/step_4", seed="4")  # of the line that the rollback closed
        assert cli.json("latest", lustre / "run").chosen == lustre / "run/step_1"

    def test_a_rebuilt_catalog_gives_the_same_answers(
        self, cli, run: Path, forget_catalog: Callable[[], None]
    ) -> None:
        cli.done("flush", "run", "--to", "lustre")
        before = [cli.json(word, "run", "--node", "a").json for word in ("latest", "list")]
        forget_catalog()
        cli.done("catalog", "rebuild")
        assert [cli.json(word, "run", "--node", "a").json for word in ("latest", "list")] == before
        again = cli.json("flush", "run", "--to", "lustre")
        assert (again.code, again.json["checkpoints"]) == (0, [])

    def test_without_a_proof_it_is_not_restorable_before_verify(
        self, cli, run: Path, lustre: Path, change: Callable[..., None]
    ) -> None:
        change("lustre", proof="none")
        answer = cli.json("flush", "run", "--to", "lustre", "--step", "2")
        assert told_of(answer, "step_2")["state"] == "unproven"
        there = lustre / "run"
        assert cli.json("latest", there, "--evidence", "digest").code == 5
        cli.done("verify", "run")
        assert cli.json("latest", there, "--evidence", "digest").chosen == there / "step_2"


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Callable[[str], tuple[Path, Faults]]]:
    """Makes directories that fail on demand."""
    if reason := faultfs.reason_to_skip():
        pytest.skip(reason)
    from contextlib import ExitStack

    with ExitStack() as stack:

        def mount(name: str) -> tuple[Path, Faults]:
            (tmp_path / f"{name}-below").mkdir()
            faults = stack.enter_context(
                faultfs.faulty_mount(tmp_path / f"{name}-below", tmp_path / name)
            )
            return tmp_path / name, faults

        yield mount


class TestWhenSomethingIsBroken:
    @pytest.fixture
    def rotten(self, cli, faulty: Callable[[str], tuple[Path, Faults]]) -> Path:
        """A sealed run on a medium that now gives one wrong bit; no stat shows it."""
        nvme, faults = faulty("nvme")
        cli.done("tier", "add", "nvme", nvme, "--scope", "node", "--node", "a", "--ingest")
        write_dcp(nvme / "run/step_1")
        cli.done("scan", nvme / "run")
        faults.inject([Rule(op="read", match=f"*/{SHARD}", flip=True, times=-1)])
        return nvme / "run"

    def test_a_bit_that_flipped_in_the_only_source_stops_it(
        self, cli, rotten: Path, lustre_only: Path
    ) -> None:
        answer = cli.json("flush", "run", "--to", "lustre")
        assert answer.code == 9
        assert SHARD in answer.json["error"]["message"]
        one = told_of(answer, "step_1")
        assert (one["state"], [f["reason"] for f in one["faults"]]) == ("failed", ["corrupt"])
        assert checkpoints(lustre_only) == set()
        assert cli.json("latest", lustre_only / "run").code in (4, 9)

    def test_a_sound_copy_elsewhere_is_used_instead(
        self, cli, rotten: Path, lustre_only: Path, tmp_path: Path
    ) -> None:
        second = tmp_path / "second"
        shutil.copytree(tmp_path / "nvme-below/run/step_1", second / "run/step_1")
        cli.done("tier", "add", "second", second, "--ingest")
        cli.done("scan", second / "run", "--run", "run")
        cli.done("tier", "link", "nvme", "lustre", "--every", "1")
        answer = cli.json("flush", "run")
        assert answer.code == 0, answer
        one = told_of(answer, "step_1")
        assert [f["reason"] for f in one["faults"]] == ["corrupt"]
        assert files(lustre_only / "run/step_1") == files(second / "run/step_1")

    @pytest.fixture
    def lustre_only(self, cli, tmp_path: Path) -> Path:
        root = tmp_path / "lustre"
        root.mkdir()
        cli.done("tier", "add", "lustre", root)
        return root

    def test_a_target_that_became_read_only_is_named(
        self, cli, nvme: Path, faulty: Callable[[str], tuple[Path, Faults]]
    ) -> None:
        write_dcp(nvme / "run/step_1")
        cli.done("scan", nvme / "run")
        archive, faults = faulty("archive")
        cli.done("tier", "add", "archive", archive)
        faults.inject(
            [Rule(op=op, errno="EROFS", times=-1) for op in ("create", "mkdir", "link", "rename")]
        )
        answer = cli.json("flush", "run", "--to", "archive")
        assert answer.code == 9, answer
        assert "archive" in answer.json["error"]["message"]
        assert "ead-only" in answer.json["error"]["message"]
        faults.clear()
        assert checkpoints(archive) == set()
        assert cli.json("latest", "run", "--node", "a").chosen == nvme / "run/step_1"


class TestStopped:
    SIZES = (("a", 130 * MIB), ("b", 20 * MIB), ("c", 20 * MIB), ("d", 30 * MIB))

    @pytest.fixture
    def big(self, cli, nvme: Path, lustre: Path, change: Callable[..., None]) -> Path:
        """200 MB in four shards, to a tier that takes 60 MB/s."""
        expect = {"glob": "step_*/*.bin", "count": 4, "step": r"step_(\d+)"}
        change(runs=[{"run": "run", "expect": expect}], settle="0s")
        change("lustre", budget={"write": "60MB/s"})
        (nvme / "run/step_1").mkdir(parents=True)
        for name, size in self.SIZES:
            body = random.Random(name).randbytes(MIB) * (size // MIB)
            (nvme / f"run/step_1/{name}.bin").write_bytes(body)
        cli.done("scan", nvme / "run")
        return nvme / "run"

    def test_stopped_midway_nothing_is_visible_and_the_rest_is_sent_later(
        self, cli, spawn, big: Path, lustre: Path
    ) -> None:
        process = spawn("flush", "run", "--to", "lustre", "--json")
        moved = 0
        while moved < 60e6:
            assert process.poll() is None
            moved = sum(one["moved_bytes"] for one in cli.json("flows").json["flows"])
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 143, err
        document = json.loads(out)
        assert document["error"]["kind"] == "interrupted"
        assert [one["state"] for one in document["checkpoints"]] == ["interrupted"]
        assert checkpoints(lustre) == set()
        assert cli.json("latest", lustre / "run").code in (4, 9)
        assert cli.json("flows").json["flows"] == []

        cli.done("tier", "budget", "lustre", "--write", "none")
        again = cli.json("flush", "run", "--to", "lustre")
        assert again.code == 0
        one = told_of(again, "step_1")
        total = sum(size for _, size in self.SIZES)
        assert one["sent_bytes"] + one["resumed_bytes"] == total
        assert one["resumed_bytes"] >= 32 * MIB
        assert cli.json("latest", lustre / "run", "--evidence", "digest").code == 0
        assert files(lustre / "run/step_1") == files(big / "step_1")


class TestWhatHappensMeanwhile:
    @pytest.fixture
    def links(self, cli, run: Path, change: Callable[..., None], tmp_path: Path) -> Path:
        """Two links that hold; a file lies where the second target's run should be."""
        archive = tmp_path / "archive"
        archive.mkdir()
        cli.done("tier", "add", "archive", archive)
        (archive / "run").write_bytes(b"in the way")
        ends = ("lustre", "archive")
        change(links=[{"from": "nvme", "to": to, "last": 1, "hold": True} for to in ends])
        return archive

    def test_a_hold_stays_until_every_link_has_it(
        self, cli, run: Path, lustre: Path, links: Path
    ) -> None:
        answer = cli.json("flush", "run")
        states = {one["target"]: one["state"] for one in answer.json["checkpoints"]}
        assert states == {"lustre": "flushed", "archive": "failed"}
        held = run / ".ckptgov/held"
        assert [path for path in held.rglob("*") if path.is_file()]
        (links / "run").unlink()
        assert cli.json("flush", "run").code == 0
        assert files(links / "run/step_2") == files(run / "step_2")
        assert not [path for path in held.rglob("*") if path.is_file()]

    def test_a_hold_of_what_arrived_by_other_hands_is_let_go(
        self, cli, run: Path, lustre: Path, change: Callable[..., None]
    ) -> None:
        cli.done("flush", "run", "--step", "2", "--to", "lustre")
        (manifest,) = (run / ".ckptgov/manifests").glob("step_2*")
        content_id = json.loads(manifest.read_bytes())["content_id"]
        held = run / ".ckptgov/held" / content_id.removeprefix("sha256:")
        held.mkdir(parents=True)
        (held / SHARD).hardlink_to(run / "step_2" / SHARD)
        change(links=[{"from": "nvme", "to": "lustre", "last": 1, "hold": True}])
        cli.done("flush", "run", "--dry-run")
        assert (held / SHARD).exists()
        assert skipped(cli.json("flush", "run"))["step_2"] == "already-there"
        assert not held.exists()
        assert (run / "step_2" / SHARD).exists()

    def test_a_source_that_was_found_corrupt_is_not_offered_any_more(
        self, cli, run: Path, lustre: Path
    ) -> None:
        assert cli.json("latest", "run").json["step"] == 2
        flip_bit(run / "step_2" / SHARD, -1, 0, keep_times=True)
        answer = cli.json("flush", "run", "--step", "2", "--to", "lustre")
        assert told_of(answer, "step_2")["state"] == "failed"
        assert cli.json("latest", "run").json["step"] == 1
        assert cli.json("latest", run).json["step"] == 1

    def test_a_mark_made_while_bytes_moved_goes_along(
        self, cli, spawn, run: Path, lustre: Path
    ) -> None:
        cli.done("tier", "budget", "lustre", "--write", "5kB/s")
        process = spawn("flush", "run", "--step", "2", "--to", "lustre")
        while not list(lustre.rglob("staging/*/*")):
            assert process.poll() is None, process.communicate()
        cli.done("mark-bad", "run", "--step", "2", "--reason", "loss spike")
        cli.done("tier", "budget", "lustre", "--write", "none")
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (out, err)
        assert checkpoints(lustre) == {"step_2"}
        assert cli.json("latest", lustre / "run").json.get("step") is None
