"""Reports from the field, as tests of what a user sees: copies between tiers.

Each class is one public report (retold): its input in small, and the behaviour that is right. What
a report says of retention is not tested here; killed uploads have a file of their own
(test_multipart_leftovers.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ckptgov.manifest.digest import ShardCheck
from ckptgov.model.clock import SystemClock
from ckptgov.testing import faultfs, s3_proxy, seaweedfs
from ckptgov.testing.builders import (
    Tensor,
    date_files,
    safetensors_bytes,
    truncate,
    write_dcp,
    write_deepspeed,
    write_hf_trainer,
    write_torch_file,
)
from ckptgov.testing.faultfs import Faults, Rule
from ckptgov.testing.s3_proxy import Fault, S3Proxy, Trouble
from ckptgov.work import abilities

MIB = 2**20


def files(root: Path) -> dict[str, bytes]:
    """Everything below, our own files included."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def add(cli, root: Path, name: str, *words: str) -> Path:
    """A directory of this name below ``root``, as a tier."""
    (root / name).mkdir(exist_ok=True)
    cli.done("tier", "add", name, root / name, *words)
    return root / name


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


@pytest.fixture
def faulty_lustre(cli, tmp_path: Path) -> Iterator[tuple[Path, Faults]]:
    """A tier that fails on demand."""
    if reason := faultfs.reason_to_skip():
        pytest.skip(reason)
    (tmp_path / "below").mkdir()
    with faultfs.faulty_mount(tmp_path / "below", tmp_path / "lustre") as faults:
        yield add(cli, tmp_path, "lustre", "--ingest"), faults


@pytest.fixture(scope="module")
def server() -> Iterator[seaweedfs.WeedServer]:
    """A real S3 server."""
    if reason := seaweedfs.reason_to_skip():
        pytest.skip(reason)
    with seaweedfs.weed_s3() as server:
        yield server


@pytest.fixture(scope="module")
def seen() -> list[abilities.Abilities]:
    """What the server was seen to do when it was first examined."""
    return []


@pytest.fixture
def reached(
    server: seaweedfs.WeedServer,
    seen: list[abilities.Abilities],
    monkeypatch: pytest.MonkeyPatch,
) -> seaweedfs.WeedServer:
    """The server by the usual AWS chain. It is examined once, not for every test."""
    examine = abilities.probe

    def probe_once(place: Any, *given: Any, **named: Any) -> abilities.Abilities:
        if "://" not in place.root:
            return examine(place, *given, **named)
        if not seen:
            seen.append(examine(place, *given, **named))
        return seen[0]

    monkeypatch.setattr(abilities, "probe", probe_once)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


class TestEachNodeKeptItsOwnRanks:
    """Two nodes with local disks each wrote half of a checkpoint under one name."""

    @pytest.fixture
    def nodes(self, cli, tmp_path: Path) -> Path:
        """Both halves are scanned as parts of one run; checkpoint-1 lies on one node only."""
        root = tmp_path / "nvme"
        for node, ranks in (("node0", [0, 1]), ("node1", [2, 3])):
            for step in (1, 2) if node == "node1" else (2,):
                directory = root / node / f"run/checkpoint-{step}"
                write_hf_trainer(directory, step, world_size=4, optimizer=False, rng_ranks=ranks)
                write_deepspeed(directory, step, world_size=4, ranks=ranks)
                date_files(directory, "latest", "trainer_state.json")
            cli.done(
                *("tier", "add", "nvme", root / node),
                *("--scope", "node", "--node", node, "--ingest"),
            )
        cli.done("scan")
        add(cli, tmp_path, "lustre")
        return root

    def test_every_node_gets_one_answer_that_says_where_each_shard_is(
        self, cli, nodes: Path
    ) -> None:
        for node in ("node0", "node1"):
            assert cli.json("latest", "run", "--node", node).json["step"] == 2
        held = {c["node"]: set(c["shards"]) for c in cli.json("latest", "run").json["copies"]}
        assert "rng_state_0.pth" in held["node0"] - held["node1"]
        assert "rng_state_3.pth" in held["node1"] - held["node0"]

    def test_both_halves_become_one_whole_copy_on_a_shared_tier(
        self, cli, nodes: Path, tmp_path: Path
    ) -> None:
        answer = cli.json("flush", "run", "--to", "lustre")
        assert answer.code == 0, answer
        assert [(c["name"], c["state"]) for c in answer.json["checkpoints"]] == [
            ("checkpoint-2", "flushed")
        ]
        there = tmp_path / "lustre/run/checkpoint-2"
        for node in ("node0", "node1"):
            half = files(nodes / node / "run/checkpoint-2")
            assert half.items() <= files(there).items()
        answer = cli.json("latest", there.parent, "--evidence", "digest")
        assert answer.chosen == there

    @pytest.mark.parametrize("order", [("node0", "node1"), ("node1", "node0")])
    def test_each_node_may_bring_its_half_when_it_can(
        self, cli, nodes: Path, tmp_path: Path, order: tuple[str, str]
    ) -> None:
        first, second = order
        lustre = tmp_path / "lustre"
        (nodes / second).rename(nodes / "off")
        answer = cli.json("flush", "run", "--to", "lustre")
        assert answer.code == 3, answer
        (one,) = answer.json["checkpoints"]
        assert one["state"] == "partial"
        rank = {"node0": 3, "node1": 0}[first]
        assert f"rng_state_{rank}.pth" in one["missing"]
        assert not (lustre / "run/checkpoint-2").exists()
        assert cli.json("latest", lustre / "run").code in (4, 5, 9)

        (nodes / "off").rename(nodes / second)
        (nodes / first).rename(nodes / "off")
        again = cli.json("flush", "run", "--to", "lustre")
        assert again.code == 0, again
        assert again.json["checkpoints"][0]["state"] == "flushed"
        answer = cli.json("latest", lustre / "run", "--evidence", "digest")
        assert answer.chosen == lustre / "run/checkpoint-2"


class TestCopiedWhileItWasWritten:
    """A sync took files before their writer had closed them, and then removed the source."""

    BODY = safetensors_bytes({"a": (32, 16), "b": (32, 16)}, seed="10")

    @pytest.fixture
    def nvme(self, cli, tmp_path: Path) -> Path:
        root = add(cli, tmp_path, "nvme", "--scope", "node", "--node", "a", "--ingest")
        self.put(root, self.BODY[: len(self.BODY) // 2])
        return root

    @staticmethod
    def put(root: Path, body: bytes) -> Path:
        directory = root / "run/step-10"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "model.safetensors").write_bytes(body)
        return directory

    def complete(self, cli, nvme: Path) -> Path:
        """Phase 2: the writer is done."""
        directory = self.put(nvme, self.BODY)
        (directory / "config.json").write_text("{}")
        date_files(directory)
        cli.done("scan", nvme / "run")
        return directory

    def test_what_is_still_written_is_not_flushed(self, cli, nvme: Path, tmp_path: Path) -> None:
        lustre = add(cli, tmp_path, "lustre", "--ingest")
        self.put(lustre, self.BODY[: len(self.BODY) // 2])
        before = files(lustre)
        cli("scan", nvme / "run")
        answer = cli.json("flush", "run", "--to", "lustre", "--step", "10")
        assert answer.code == 5, answer
        assert files(lustre) == before

    def test_the_short_copy_is_no_replica_and_a_whole_one_is_made(
        self, cli, nvme: Path, tmp_path: Path
    ) -> None:
        lustre = add(cli, tmp_path, "lustre", "--ingest")
        short = self.put(lustre, self.BODY[: len(self.BODY) // 2])
        source = self.complete(cli, nvme)
        cli("scan", lustre / "run", "--run", "run")
        told = cli.json("latest", "run", "--purpose", "weights", "--node", "a")
        assert [copy["tier"] for copy in told.json["copies"]] == ["nvme"]

        cli.done("flush", "run", "--to", "lustre")
        told = cli.json("latest", lustre / "run", "--purpose", "weights", "--evidence", "digest")
        assert told.chosen == lustre / "run/attempt-1/step-10"
        assert files(told.chosen) == files(source)
        assert len(files(short)["model.safetensors"]) == len(self.BODY) // 2

    def test_a_target_that_gives_other_bytes_back_is_not_believed(
        self, cli, nvme: Path, faulty_lustre: tuple[Path, Faults]
    ) -> None:
        lustre, faults = faulty_lustre
        source = self.complete(cli, nvme)
        faults.inject([Rule(op="write", match="*/staging/*", flip=True)])
        answer = cli.json("flush", "run", "--to", "lustre")
        assert answer.code == 9, answer
        assert "other bytes came back" in answer.json["error"]["message"]
        assert not (lustre / "run/step-10").exists()
        assert set(files(source)) == {"model.safetensors", "config.json"}
        assert sum(faults.fired) == 1
        cli.done("flush", "run", "--to", "lustre")
        assert files(lustre / "run/step-10") == files(source)

    def test_a_source_that_changes_meanwhile_makes_the_copy_worthless(
        self, cli, nvme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lustre = add(cli, tmp_path, "lustre")
        shard = self.complete(cli, nvme) / "model.safetensors"
        finish, size = ShardCheck.finish, shard.stat().st_size

        def finish_and_grow(check: ShardCheck) -> None:
            """Every byte of it was read and is right; then the writer goes on."""
            finish(check)
            if check._length == size:  # not where the other shard was first
                with shard.open("ab") as file:
                    file.write(b"more")

        monkeypatch.setattr(ShardCheck, "finish", finish_and_grow)
        answer = cli.json("flush", "run", "--to", "lustre")
        assert answer.code == 9, answer
        (one,) = answer.json["checkpoints"]
        assert [fault["reason"] for fault in one["faults"]] == ["re-opened"]
        assert not (lustre / "run/step-10").exists()
        left = {name for name in files(lustre) if "model" in name}
        assert left == set()
        assert cli.json("latest", lustre / "run").code in (4, 5, 9)


class TestQuotaIsNotFreeSpace:
    """A save failed with EDQUOT though the file system had room; its debris stayed behind."""

    @pytest.fixture
    def nvme(self, cli, tmp_path: Path) -> Path:
        root = add(cli, tmp_path, "nvme", "--scope", "node", "--node", "a", "--ingest")
        write_dcp(root / "run/step-300", seed="300")
        return root

    @staticmethod
    def fill(cli, lustre: Path) -> int:
        """step-100 and step-200 whole, step-250 torn; gives the bytes they take."""
        for step in (100, 200):
            write_dcp(lustre / f"run/step-{step}", seed=f"{step}")
        torn = write_torch_file(lustre / "run/step-250/epoch_14.pth", {"w": Tensor((750,))})
        truncate(torn, to_bytes=2500)
        cli.done("scan", lustre / "run")
        return sum(p.stat().st_size for p in lustre.glob("run/step-*/*"))

    def test_a_flush_over_the_quota_is_refused_before_the_first_byte(
        self, cli, nvme: Path, tmp_path: Path, change: Callable[..., None]
    ) -> None:
        lustre = add(cli, tmp_path, "lustre", "--ingest")
        used = self.fill(cli, lustre)
        need = sum(p.stat().st_size for p in (nvme / "run/step-300").iterdir())
        cli.done("scan", nvme / "run", "--run", "run")
        change("lustre", quota=f"{used + need - 1000}B")
        before = files(lustre)
        answer = cli.json("flush", "run", "--to", "lustre")
        assert answer.code == 10, answer
        error = answer.json["error"]
        assert "quota" in error["message"]
        assert "step-250" in error["hint"]
        assert "enough" in error["hint"]
        assert files(lustre) == before
        assert cli.json("latest", "run", "--node", "a").chosen == nvme / "run/step-300"

        shutil.rmtree(lustre / "run/step-250")  # what the hint named
        cli.done("scan", lustre / "run")
        cli.done("flush", "run", "--to", "lustre")
        assert (lustre / "run/step-300").is_dir()

    def test_a_quota_met_in_the_middle_leaves_everything_as_it_was(
        self, cli, nvme: Path, faulty_lustre: tuple[Path, Faults]
    ) -> None:
        lustre, faults = faulty_lustre
        self.fill(cli, lustre)
        cli.done("scan", nvme / "run", "--run", "run")
        shared, own = files(lustre), files(nvme / "run/step-300")
        listed = cli.json("list", "run").json["checkpoints"]
        faults.inject([Rule(op="write", match="*/staging/*", errno="EDQUOT", times=-1)])
        answer = cli.json("flush", "run", "--to", "lustre")
        assert answer.code == 10, answer
        assert answer.json["error"]["kind"] == "over-capacity"
        assert "lustre" in answer.json["error"]["message"]
        faults.clear()
        kept = {name: body for name, body in files(lustre).items() if name in shared}
        assert kept == shared
        added = set(files(lustre)) - set(shared)
        assert not [name for name in added if "300" in name or "distcp" in name], added
        assert files(nvme / "run/step-300") == own
        assert cli.json("list", "run").json["checkpoints"] == listed


class TestCompositeEtag:
    """A multipart object's ETag was taken for the MD5 of its bytes."""

    PARTS = (random.Random(18).randbytes(5 * MIB), b"the second part")

    @staticmethod
    def small(step: int) -> bytes:
        """What is put in one piece."""
        return b"s%d" % step * 48

    @pytest.fixture
    def url(self, reached: seaweedfs.WeedServer, tmp_path: Path) -> str:
        return f"s3://{reached.bucket}/{tmp_path.name}"

    @pytest.fixture
    def upload(
        self, reached: seaweedfs.WeedServer, tmp_path: Path
    ) -> Iterator[Callable[[int, int], str]]:
        """Another program's multipart upload of a shard; gives the ETag."""
        client = reached.client()

        def put(step: int, altered: int) -> str:
            at = {"Bucket": reached.bucket, "Key": f"{tmp_path.name}/run/step-{step}/shard-1"}
            last = self.PARTS[1][: len(self.PARTS[1]) - altered] + b"!" * altered
            upload_id = client.create_multipart_upload(**at)["UploadId"]
            parts = [
                {
                    "PartNumber": number,
                    "ETag": client.upload_part(
                        **at, UploadId=upload_id, PartNumber=number, Body=body
                    )["ETag"],
                }
                for number, body in enumerate((self.PARTS[0], last), 1)
            ]
            told = client.complete_multipart_upload(
                **at, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
            client.put_object(
                Bucket=reached.bucket, Key=f"{at['Key'][:-1]}0", Body=self.small(step)
            )
            return told["ETag"]

        yield put
        client.close()

    @pytest.fixture
    def good(self, cli, url: str, tmp_path: Path, change: Callable[..., None]) -> Path:
        """What was meant to be uploaded, sealed on the tier ``local``; s3 is a tier too."""
        expect = {"glob": "step-*/shard-*", "count": 2, "step": r"step-(\d+)"}
        change(runs=[{"run": "run", "expect": expect}], settle="0s")
        root = add(cli, tmp_path, "local", "--ingest")
        for step in (5, 6):
            (root / f"run/step-{step}").mkdir(parents=True)
            (root / f"run/step-{step}/shard-0").write_bytes(self.small(step))
            (root / f"run/step-{step}/shard-1").write_bytes(b"".join(self.PARTS))
        cli.done("tier", "add", "s3", url, "--ingest")
        return root / "run"

    def test_sealed_in_the_store_the_good_one_verifies_and_the_altered_one_does_not(
        self, cli, good: Path, url: str, upload: Callable[[int, int], str]
    ) -> None:
        assert upload(5, 0).strip('"').endswith("-2")
        upload(6, 0)
        cli.done("scan", f"{url}/run")
        told = cli.json("verify", f"{url}/run")
        assert told.code == 0, told
        upload(6, 1)
        told = cli.json("verify", f"{url}/run")
        assert told.code == 5, told
        (bad,) = [one for one in told.json["checkpoints"] if one["state"] != "restorable"]
        assert bad["name"] == "step-6"
        assert any("shard-1" in finding["path"] for finding in bad["findings"])
        answer = cli.json("latest", f"{url}/run", "--evidence", "digest")
        assert answer.json["name"] == "step-5"

    def test_a_flush_takes_what_stands_for_arrived_only_if_its_bytes_are_right(
        self, cli, good: Path, url: str, upload: Callable[[int, int], str]
    ) -> None:
        cli.done("scan", good)
        upload(5, 0)
        upload(6, 1)
        answer = cli.json("flush", "run", "--to", "s3")
        assert answer.code == 0, answer
        told = {one["name"]: one for one in answer.json["checkpoints"]}
        assert (told["step-5"]["state"], told["step-5"]["sent_bytes"]) == ("stood", 0)
        assert told["attempt-1/step-6"]["state"] == "flushed", answer
        assert cli.json("verify", f"{url}/run").code == 0
        answer = cli.json("latest", f"{url}/run", "--evidence", "digest")
        assert answer.json["name"] == "attempt-1/step-6"


class TestSlowDownStorm:
    """All ranks uploaded together, the store said 503, and some gave up."""

    SHARDS = tuple(f"shard-{number}" for number in range(8))
    NEXT_ROUND = "the arbiter's next round"

    @pytest.fixture
    def proxy(
        self, reached: seaweedfs.WeedServer, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[S3Proxy]:
        if reason := s3_proxy.reason_to_skip():
            pytest.skip(reason)
        store = reached
        with s3_proxy.s3_proxy(store.endpoint, store.access_key, store.secret_key) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
            yield proxy

    @pytest.fixture
    def nvme(
        self,
        cli,
        proxy: S3Proxy,
        reached: seaweedfs.WeedServer,
        tmp_path: Path,
        change: Callable[..., None],
    ) -> Path:
        """Three runs with eight shards each at step-40, and s3 behind the proxy."""
        expect = {"glob": "step-*/shard-*", "count": 8, "step": r"step-(\d+)"}
        change(runs=[{"run": "run*", "expect": expect}], settle="0s")
        root = add(cli, tmp_path, "nvme", "--scope", "node", "--node", "a", "--ingest")
        for run in ("run", "run2", "run3"):
            (root / run / "step-40").mkdir(parents=True)
            for name in self.SHARDS:
                body = random.Random(run + name).randbytes(1024)
                (root / run / "step-40" / name).write_bytes(body)
        cli.done("tier", "add", "s3", self.url(reached, tmp_path))
        cli.done("scan")
        proxy.forget_calls()
        return root

    @staticmethod
    def url(server: seaweedfs.WeedServer, tmp_path: Path) -> str:
        return f"s3://{server.bucket}/{tmp_path.name}"

    @pytest.fixture
    def waits(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Waits between tries; those longer than a second are not sat through."""
        waits: list[float] = []
        real = SystemClock.sleep

        def sleep(clock: SystemClock, wait_s: float) -> None:
            waits.append(wait_s)
            real(clock, min(wait_s, 0.02) if wait_s > 1 else wait_s)

        monkeypatch.setattr(SystemClock, "sleep", sleep)
        return waits

    def test_refused_uploads_are_tried_again_after_growing_uneven_pauses(
        self,
        cli,
        nvme: Path,
        proxy: S3Proxy,
        waits: list[float],
        reached: seaweedfs.WeedServer,
        tmp_path: Path,
    ) -> None:
        refused = [
            proxy.inject(Fault(Trouble.SLOW_DOWN, f"*/run/step-40/{name}", "PUT", times=1))
            for name in self.SHARDS
        ]
        three = proxy.inject(
            Fault(Trouble.SLOW_DOWN, "*/run/step-40/shard-3", "PUT", skip=1, times=3)
        )
        answer = cli.json("flush", "run", "--to", "s3")
        assert answer.code == 0, answer
        assert [one.fired for one in [*refused, three]] == [1] * 8 + [3]
        assert answer.json["checkpoints"][0]["faults"] == []
        pauses = [wait for wait in waits if wait > 0.03]
        assert len(pauses) >= 8 + 3
        assert len(set(pauses)) == len(pauses)
        assert max(pauses) >= 4 * min(pauses)
        for where in ("run", f"{self.url(reached, tmp_path)}/run"):
            told = cli.json("latest", where, "--evidence", "digest")
            assert told.json["name"] == "step-40"

    def test_a_shard_that_fails_for_good_is_named_and_the_others_are_not_sent_again(
        self,
        cli,
        nvme: Path,
        proxy: S3Proxy,
        waits: list[float],
        reached: seaweedfs.WeedServer,
        tmp_path: Path,
    ) -> None:
        proxy.inject(Fault(Trouble.SLOW_DOWN, "*/run/step-40/shard-3", "PUT"))
        answer = cli.json("flush", "run", "--to", "s3")
        assert answer.code == 9, answer
        assert "shard-3" in answer.json["error"]["message"]
        assert [one["state"] for one in answer.json["checkpoints"]] == ["failed"]
        assert answer.json["checkpoints"][0]["faults"] == []
        assert sum(waits) < 150
        url = f"{self.url(reached, tmp_path)}/run"
        assert cli.json("latest", url).code in (4, 5, 9)
        assert cli.json("latest", "run", "--node", "a").chosen == nvme / "run/step-40"
        assert proxy.count("PUT", "*/.ckptgov/manifests/*") == 0

        arrived = {call.key for call in proxy.calls if call.method == "PUT" and call.status == 200}
        arrived = {key for key in arrived if "/step-40/" in key}
        assert arrived
        proxy.clear()
        proxy.forget_calls()
        cli.done("flush", "run", "--to", "s3")
        again = {call.key for call in proxy.calls if call.method == "PUT"}
        assert not arrived & again
        assert cli.json("latest", url, "--evidence", "digest").code == 0

    def test_no_more_than_two_move_at_a_time_over_all_runs_and_processes(
        self, cli, nvme: Path, spawn, proxy: S3Proxy, change: Callable[..., None]
    ) -> None:
        change("s3", budget={"flows": 2})
        proxy.inject(Fault(Trouble.STALL, "*/step-40/*", "PUT"))
        with contextlib.ExitStack() as stack:
            processes = []
            for run in ("run", "run2", "run3"):
                processes.append(stack.enter_context(spawn("flush", run, "--to", "s3", "--json")))
                stack.callback(processes[-1].kill)
            moving: list[dict] = []
            waiting: list[dict] = []
            while len(moving) < 2 or not waiting or waiting[0]["waits_for"] == self.NEXT_ROUND:
                assert [process.poll() for process in processes] == [None] * 3
                flows = cli.json("flows").json["flows"]
                to_store = [flow for flow in flows if flow["target"] == "s3"]
                moving = [flow for flow in to_store if flow["state"] == "moving"]
                waiting = [flow for flow in to_store if flow["state"] == "waiting"]
                assert len(moving) <= 2
            assert waiting[0]["waits_for"] in (
                "flows of tier s3: 2 of 2",
                "an earlier checkpoint of this class goes first",
            )
            uploads = [call.key for call in proxy.calls if call.method == "PUT"]
            uploading = {key.split("/")[1] for key in uploads if "/step-40/" in key}
            assert uploading <= {flow["what"].split()[0] for flow in moving}
            proxy.clear()
            outcomes = [process.communicate()[0] for process in processes]
        assert [json.loads(out)["checkpoints"][0]["state"] for out in outcomes] == ["flushed"] * 3
