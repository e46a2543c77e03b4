"""A tier over its limit: its trash takes room until it is purged, and goes before its time."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptgov.catalog.samples import TierSample
from ckptgov.errors import StorageError
from ckptgov.governor import Governor, open_governor
from ckptgov.ops import capacity
from ckptgov.ops.plan_fills import fills_now
from ckptgov.storage.open import open_storage
from ckptgov.testing import seaweedfs
from ckptgov.testing.builders import write_dcp, write_hf_trainer

STEPS = (100, 200, 300, 400, 500)
GB = 10**9
POLICY = """\
policy: tight
runs: ["*"]
{keep}
floors: {{min_restorable: 1, min_age: 0s}}
safety: {{max_fraction: 100%, grace: 0s, trash: 7d, adoption_grace: 0s}}
{limit}
"""


@pytest.fixture
def govern(home: Path) -> Callable[..., None]:
    """Puts a policy in force: how many stay (None: no rule), and how full the tier may be."""

    def put(last: int | None, *, high: int = 0, low: int = 0, tier: str = "lustre") -> None:
        (home / "policies").mkdir(exist_ok=True)
        keep = "" if last is None else f"keep: {{{tier}: {{last: {last}}}}}"
        limit = f"capacity: {{{tier}: {{high: {high}%, low: {low}%}}}}" if high else ""
        (home / "policies/tight.yaml").write_text(POLICY.format(keep=keep, limit=limit))

    return put


@pytest.fixture
def lower(cli, govern) -> Callable[..., None]:
    """Lets go of one checkpoint after the other, the oldest first, until so many are left."""

    def until(left: int, *, tier: str = "lustre") -> None:
        for last in range(len(STEPS) - 1, left - 1, -1):
            govern(last, tier=tier)
            cli.done("plan", "--apply")

    return until


@pytest.fixture
def run(cli, tier: Path) -> Path:
    for step in STEPS:
        write_hf_trainer(tier / f"hf/checkpoint-{step}", step)
    cli.done("tier", "add", "lustre", tier, "--ingest")
    cli.done("scan")
    return tier / "hf"


@pytest.fixture
def three(run: Path, lower, disk) -> Path:
    """A run of which 400 and 500 stand, and 100, 200 and 300 lie in the trash, 100 the longest."""
    lower(2)
    assert trash(run) == [100, 200, 300]
    return run


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def trash(run: Path) -> list[int]:
    found = run.glob(".ckptgov/trash/*/*/files/checkpoint-*")
    return sorted({int(one.name.rpartition("-")[2]) for one in found})


def standing(run: Path) -> list[int]:
    return sorted(int(one.name.rpartition("-")[2]) for one in run.glob("checkpoint-*"))


class Disk:
    """A file system that has room for ten checkpoints, and a hundred files."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.unit_bytes = size_of(run / "checkpoint-500")
        self.files = len(list((run / "checkpoint-500").iterdir()))
        self.is_away = False

    def space_of(self, _tier: object) -> capacity.Space:
        if self.is_away:
            raise StorageError("does not tell its free space: Input/output error")
        count = len(standing(self._run)) + len(trash(self._run))
        return capacity.Space(
            used_bytes=count * self.unit_bytes,
            free_bytes=(10 - count) * self.unit_bytes,
            total_bytes=10 * self.unit_bytes,
            size_bytes=10 * self.unit_bytes,
            files=count * self.files,
            free_files=100 - count * self.files,
        )


@pytest.fixture
def disk(run: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    one = Disk(run)
    monkeypatch.setattr(capacity, "space_of", one.space_of)
    return one


def went(answer) -> dict[int, str]:
    return {one["step"]: one["went"] for one in answer.json["steps"]}


def text_of(answer, step: int) -> str:
    return next(one["text"] for one in answer.json["steps"] if one["step"] == step)


def about_tiers(answer) -> dict[str, str]:
    """The notes of a plan about tiers."""
    notes = answer.json["notes"]
    return {one["run"]: one["text"] for one in notes if one["run"].startswith("tier ")}


class TestOnlyTheTrashIsOver:
    def test_what_lay_there_longest_goes_until_it_is_below_the_low_mark(
        self, cli, three: Path, govern
    ) -> None:
        govern(2, high=45, low=35)
        assert cli.json("plan").json["entries"] == []
        answer = cli.json("apply")
        assert answer.code == 0, answer
        assert went(answer) == {100: "purged", 200: "purged", 300: "waiting"}
        assert text_of(answer, 100) == "purged: tier lustre is over its limit"
        assert (trash(three), standing(three)) == ([300], [400, 500])

    def test_no_more_goes_the_next_time(self, cli, three: Path, govern) -> None:
        govern(2, high=45, low=35)
        cli.done("apply")
        assert went(cli.json("apply")) == {300: "waiting"}
        assert trash(three) == [300]

    def test_a_plan_of_nothing_that_is_applied_at_once_does_it_too(
        self, cli, three: Path, govern
    ) -> None:
        govern(2, high=45, low=35)
        cli.done("plan", "--apply")
        assert trash(three) == [300]

    def test_the_plan_says_how_much(self, cli, three: Path, govern, disk: Disk) -> None:
        govern(2, high=45, low=35)
        told = about_tiers(cli.json("plan"))["tier lustre"]
        assert f"{2 * disk.unit_bytes / 1024:.1f} KiB of its trash (2 of 3 checkpoints)" in told
        assert "is purged early by the next apply" in told
        assert "note: tier lustre: is over its limit" in cli("plan").out + cli("plan").err

    def test_below_the_high_mark_nothing_goes(self, cli, three: Path, govern) -> None:
        govern(2, high=50, low=20)  # just as full as it may be
        assert about_tiers(cli.json("plan")) == {}
        assert set(went(cli.json("apply")).values()) == {"waiting"}
        assert trash(three) == [100, 200, 300]

    def test_a_limit_of_a_policy_that_no_run_is_under_is_none(
        self, cli, three: Path, govern, home: Path
    ) -> None:
        govern(2)
        tight = home / "policies/tight.yaml"
        tight.write_text(tight.read_text().replace('["*"]', "[hf]"))
        other = "policy: other\nruns: [others]\ncapacity: {lustre: {high: 20%, low: 10%}}\n"
        (home / "policies/other.yaml").write_text(other)
        assert cli.done("policy", "check")
        assert "no trash" not in cli.done("apply").err
        assert trash(three) == [100, 200, 300]

    def test_too_many_files_are_too_full_as_well(
        self, cli, three: Path, govern, disk: Disk
    ) -> None:
        disk.unit_bytes = 0  # of bytes there is room enough
        govern(2, high=30, low=25)
        answer = cli.json("apply")
        left = 100 // 4 // disk.files
        assert len(trash(three)) == max(0, left - 2)
        assert went(answer)[100] == "purged"

    def test_what_is_due_goes_before_what_is_not(self, cli, three: Path, govern, home) -> None:
        with contextlib.closing(sqlite3.connect(home / "catalog.sqlite")) as catalog:
            newest = "SELECT content_id FROM removals ORDER BY due_at_ns DESC LIMIT 1"
            catalog.execute(
                "UPDATE removals SET due_at_ns = due_at_ns - trash_s * 1000000000, trash_s = 0 "
                f"WHERE content_id = ({newest})"
            )
            catalog.commit()
        govern(2, high=45, low=35)
        answer = cli.json("apply")
        assert went(answer) == {100: "purged", 200: "waiting", 300: "purged"}
        assert "its time in the trash is over" in text_of(answer, 300)

    def test_a_plan_of_something_purges_first_as_well(self, cli, three: Path, govern) -> None:
        govern(1, high=45, low=35)
        answer = cli.json("apply", cli.json("plan").json["plan_id"])
        assert answer.code == 0, answer
        assert went(answer) == {100: "purged", 200: "purged", 300: "waiting", 400: "trashed"}


class TestNothingGoes:
    def test_while_it_cannot_be_looked_at(self, cli, three: Path, govern, disk: Disk) -> None:
        govern(2, high=45, low=35)
        disk.is_away = True
        answer = cli.json("apply")
        assert answer.code == 0, answer
        assert set(went(answer).values()) == {"waiting"}
        assert trash(three) == [100, 200, 300]
        assert "none of its trash is purged before its time" in cli("apply").err
        assert "purged early" not in cli("plan").out

    def test_by_what_was_told_of_it_earlier(self, three: Path, govern, disk: Disk) -> None:
        """A sample stands in for a look where a plan is made; nothing is purged for it."""
        govern(2, high=45, low=35)
        with opened() as governor:
            governor.context.here = frozenset()
            capacity.measure_capacity(governor.context)
            disk.is_away = True
            governor.apply(None)
        assert trash(three) == [100, 200, 300]

    def test_in_a_dry_run_which_tells_what_would(self, cli, three: Path, govern) -> None:
        govern(2, high=45, low=35)
        answer = cli.json("apply", "--dry-run")
        assert answer.code == 0, answer
        assert went(answer) == {100: "would", 200: "would", 300: "waiting"}
        assert text_of(answer, 100) == "would be purged early: tier lustre is over its limit"
        assert trash(three) == [100, 200, 300]

    def test_after_it_was_told_to_stop(self, three: Path, govern) -> None:
        govern(2, high=25, low=20)
        with opened() as governor:
            answer = governor.apply(None, stop=lambda: len(trash(three)) < 3)
        assert trash(three) == [200, 300]
        assert answer.error is not None
        assert answer.error.kind == "interrupted"

    def test_while_a_policy_is_wrong(self, cli, three: Path, home: Path) -> None:
        (home / "policies/tight.yaml").write_text("policy: [")
        told = cli("apply")
        assert told.code == 0, told
        assert "no trash is purged before its time" in told.err
        assert trash(three) == [100, 200, 300]

    def test_of_a_disk_that_this_process_does_not_reach(
        self, cli, tmp_path: Path, govern, lower, disk: Disk
    ) -> None:
        node = tmp_path / "nvme"
        for step in STEPS:
            write_hf_trainer(node / f"own/checkpoint-{step}", step, state={"seed": 3})
        cli.done("tier", "add", "nvme", node, "--scope", "node", "--node", "a", "--ingest")
        cli.done("scan")
        lower(3, tier="nvme")
        assert trash(node / "own") == [100, 200]
        govern(3, high=10, low=5, tier="nvme")
        with opened() as governor:
            governor.context.here = frozenset()
            governor.apply(None)
        assert trash(node / "own") == [100, 200]
        with opened() as governor:
            governor.context.here = frozenset({"a"})
            governor.apply(None)
        assert trash(node / "own") == []


@contextlib.contextmanager
def opened() -> Iterator[Governor]:
    with open_governor() as governor:
        yield governor


@pytest.fixture
def unit_bytes(run: Path) -> int:
    return size_of(run / "checkpoint-500")


@pytest.fixture
def quota(home: Path, run: Path, unit_bytes: int) -> None:
    """The tier may hold ten checkpoints."""
    limit_tier(home, 10 * unit_bytes)


def limit_tier(home: Path, quota_bytes: int) -> None:
    config = home / "ckptgov.yaml"
    text = config.read_text()
    config.write_text(text.replace("ingest: true", f"ingest: true, quota: {quota_bytes}"))


@pytest.mark.usefixtures("quota")
class TestUnderAQuota:
    def test_the_trash_takes_room_of_it_until_it_is_purged(
        self, cli, run: Path, unit_bytes: int, lower, time_is_over
    ) -> None:
        lower(3)
        with opened() as governor:
            (one,) = capacity.tier_facts(governor.context)
            assert (one.used_bytes, one.room_bytes) == (5 * unit_bytes, 5 * unit_bytes)
        time_is_over()
        cli.done("apply")
        with opened() as governor:
            (one,) = capacity.tier_facts(governor.context)
            assert one.used_bytes == 3 * unit_bytes

    def test_a_plan_lets_go_of_as_much_as_without_the_trash(
        self, cli, run: Path, lower, govern
    ) -> None:
        lower(3)
        govern(None, high=25, low=15)
        told = cli.json("plan").json
        assert sorted(one["step"] for one in told["entries"]) == [300, 400]

    def test_what_is_in_the_trash_is_freed_once(self, cli, run: Path, lower, govern) -> None:
        lower(3)
        govern(None, high=30, low=15)  # 50 % with the trash, 30 % without
        assert cli.json("plan").json["entries"] == []

    def test_a_sample_of_a_nodes_disk_counts_it_once_too(
        self, run: Path, unit_bytes: int, lower
    ) -> None:
        lower(3)
        with opened() as governor:
            context = governor.context
            (sample,) = capacity.measure_capacity(context)
            assert isinstance(sample, TierSample)
            (fill,), _ = fills_now(context, frozenset(), now_ns=context.catalog.now_ns())
        assert sample.used_bytes == fill.used_bytes == 5 * unit_bytes
        assert fill.leaving_bytes == 2 * unit_bytes

    def test_over_it_nothing_more_is_taken(
        self, cli, run: Path, tmp_path: Path, lower, govern
    ) -> None:
        write_hf_trainer(tmp_path / "near/other/checkpoint-1", 1)
        cli.done("tier", "add", "near", tmp_path / "near", "--ingest")
        cli.done("scan")
        lower(3)
        govern(3, high=25, low=15)
        (outlook,) = [one for one in cli.json("plan").json["tiers"] if one["tier"] == "lustre"]
        assert outlook["over_bytes"] > 0
        told = cli("flush", "other", "--to", "lustre")
        assert told.code == 10
        assert "above 25%" in told.err

    def test_its_trash_goes_early_by_the_figures_of_the_quota(
        self, cli, run: Path, lower, govern
    ) -> None:
        lower(2)
        (emptied,) = run.glob(".ckptgov/trash/*/*/files/checkpoint-100")
        shutil.rmtree(emptied)  # by hand: its purge frees nothing, and the catalog counted it
        govern(2, high=45, low=35)
        assert about_tiers(cli.json("plan"))
        answer = cli.json("apply")
        assert went(answer) == {100: "purged", 200: "purged", 300: "waiting"}
        assert trash(run) == [300]

    def test_without_a_watermark_the_quota_itself_is_the_limit(
        self, cli, run: Path, unit_bytes: int, lower, home: Path
    ) -> None:
        lower(2)
        config = home / "ckptgov.yaml"
        text = config.read_text()
        config.write_text(text.replace(f"{10 * unit_bytes}", f"{4 * unit_bytes + 1}"))
        cli.done("apply")
        assert trash(run) == [200, 300]


@pytest.fixture(scope="module")
def server() -> Iterator[seaweedfs.WeedServer]:
    if reason := seaweedfs.reason_to_skip():
        pytest.skip(reason)
    with seaweedfs.weed_s3() as running:
        yield running


class TestInAnObjectStore:
    """What is in the trash there lies where it was."""

    @pytest.fixture
    def objects(
        self,
        cli,
        home: Path,
        tmp_path: Path,
        server: seaweedfs.WeedServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> int:
        """A tier that may hold ten checkpoints, and five of them there; the bytes of one."""
        for name, value in server.environment.items():
            if name != "AWS_ENDPOINT_URL_S3":
                monkeypatch.setenv(name, value)
        url = f"s3://{server.bucket}/{tmp_path.name}"
        for step in STEPS:
            write_dcp(tmp_path / str(step), seed=str(step))
            put(tmp_path / str(step), url, f"run/step_{step}", server.endpoint)
        (unit_bytes,) = {size_of(tmp_path / str(step)) for step in STEPS}
        words = ("--endpoint", server.endpoint, "--ingest", "--quota", str(10 * unit_bytes))
        cli.done("tier", "add", "s3", url, *words)
        cli.done("scan")
        return unit_bytes

    def test_it_takes_room_and_goes_early_and_a_plan_counts_it_once(
        self, cli, objects: int, lower, govern
    ) -> None:
        lower(3, tier="s3")
        with opened() as governor:
            (one,) = capacity.tier_facts(governor.context)
        assert one.used_bytes == 5 * objects
        govern(None, high=25, low=15, tier="s3")
        going = cli.json("plan").json["entries"]
        assert sorted(one["step"] for one in going) == [300, 400]
        govern(3, high=45, low=40, tier="s3")
        assert cli.json("plan").json["entries"] == []
        assert went(cli.json("apply")) == {100: "purged", 200: "waiting"}
        with opened() as governor:
            (one,) = capacity.tier_facts(governor.context)
        assert one.used_bytes == 4 * objects


def put(local: Path, url: str, name: str, endpoint: str) -> None:
    """Upload a checkpoint as a trainer would, its metadata last."""
    storage = open_storage(url, endpoint=endpoint)
    for path in sorted(local.rglob("*"), key=lambda one: one.name == ".metadata"):
        if path.is_file():
            storage.publish(f"{name}/{path.relative_to(local)}", [path.read_bytes()])
    storage.close()
