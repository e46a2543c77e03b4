"""Files made to harm: refused quickly and in little memory, nothing run, nothing outside read."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import xxhash

from ckptgov.testing.builders import (
    WRITTEN_AT_NS,
    Global,
    Instance,
    Reduced,
    date_files,
    lightning_state,
    pickle_bytes,
    write_dcp,
    write_hf_trainer,
    write_torch_file,
)

MEMORY_BYTES = 200 * 10**6
CPU_S = 1.0


@dataclass(frozen=True)
class Cost:
    """What one process took, and what it said."""

    code: int
    out: bytes
    err: bytes
    cpu_s: float
    peak_bytes: int


WEIGH = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, done.stdout.hex(), done.stderr.hex(),
                  used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""
"""A small parent: a child's peak counts from its fork on, and this process may be a large one."""


@pytest.fixture
def measured(home: Path) -> Callable[..., Cost]:
    """Runs a command as a process of its own, and weighs it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def run(*words: str | Path) -> Cost:
        command = [sys.executable, "-m", "ckptgov_cli.main", *map(str, words)]
        weighed = subprocess.run(
            [sys.executable, "-c", WEIGH, *command],
            env=environment,
            capture_output=True,
            check=True,
        )
        code, out, err, cpu_s, peak_bytes = json.loads(weighed.stdout)
        return Cost(code, bytes.fromhex(out), bytes.fromhex(err), cpu_s, peak_bytes)

    return run


@pytest.fixture(scope="module")
def harmless_cpu_s() -> dict[str, float]:
    """What each command takes for a harmless run, once measured."""
    return {}


@pytest.fixture
def refused(
    measured: Callable[..., Cost], harmless_cpu_s: dict[str, float], tier: Path
) -> Callable[..., Cost]:
    """Asserts that a command refuses, in memory and in time beyond what a harmless run takes."""

    def ask(*words: str | Path) -> Cost:
        command = str(words[0])
        if command not in harmless_cpu_s:
            write_dcp(tier / "harmless/step_1")
            harmless_cpu_s[command] = measured(command, tier / "harmless").cpu_s
        cost = measured(*words)
        assert cost.code == 5, cost
        assert b"Traceback" not in cost.err, cost
        assert cost.cpu_s - harmless_cpu_s[command] < CPU_S, cost
        assert cost.peak_bytes < MEMORY_BYTES, cost
        return cost

    return ask


@pytest.fixture
def step(tier: Path) -> Path:
    """A whole DCP checkpoint, to be spoiled."""
    return write_dcp(tier / "run/step_1")


def runs_a_command(marker: Path) -> Reduced:
    """A value that runs a shell command when it is unpickled for real."""
    return Reduced(Global("posix", "system"), (f"touch '{marker}'",))


class TestPickles:
    """``.metadata`` and ``data.pkl``."""

    def metadata(self, step: Path, pickled: bytes) -> None:
        (step / ".metadata").write_bytes(pickled)
        date_files(step, ".metadata")

    def test_the_builders_attack_is_real(self, tmp_path: Path) -> None:
        import pickle

        pickle.loads(pickle_bytes(runs_a_command(tmp_path / "ran"), protocol=4))
        assert (tmp_path / "ran").exists()

    def test_metadata_that_is_a_call_runs_nothing(self, refused, step: Path, tmp_path) -> None:
        self.metadata(step, pickle_bytes(runs_a_command(tmp_path / "ran"), protocol=4))
        refused("latest", step.parent)
        assert not (tmp_path / "ran").exists()

    def test_a_call_as_a_state_runs_nothing(self, refused, step: Path, tmp_path: Path) -> None:
        cls = Global("torch.distributed.checkpoint.metadata", "Metadata")
        value = Instance(cls, runs_a_command(tmp_path / "ran"))
        self.metadata(step, pickle_bytes(value, protocol=4))
        refused("latest", step.parent)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("command", ["latest", "scan"])
    def test_a_call_inside_a_trainers_state_runs_nothing(
        self, measured, tier: Path, tmp_path: Path, command: str
    ) -> None:
        state = lightning_state(100, callbacks={"evil": runs_a_command(tmp_path / "ran")})
        write_torch_file(tier / "run/epoch=1-step=100.ckpt", state, root="archive")
        measured(command, tier / "run")
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        "pickled",
        [
            b"\x80\x04r\xff\xff\xff\x7f.",  # a memo index of 2**31: CPython would allocate 16 GiB
            b"\x80\x04N" + b"r" + struct.pack("<I", 2**31 - 1) + b".",
            b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x.",  # BINBYTES8 of 1 EiB
            b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.",
            b"\x80\x04" + b"(" * 10**6 + b".",
            b"\x80\x04" + b"]" + b"]" * 10**6 + b"a" * 10**6 + b".",  # nested a million deep
            b"\x80\x04}" + b")" + b"2\x86" * 64 + b"Ns.",  # a key whose hash takes 2**64 steps
            b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b".",
            b"\x80\x04cbuiltins\neval\n(X\x04\x00\x00\x001+41tR.",
            b"\x80\x04.",
            b"",
        ],
        ids=lambda pickled: repr(pickled[:12]),
    )
    def test_a_pickle_made_to_exhaust_is_refused(self, refused, step: Path, pickled) -> None:
        self.metadata(step, pickled)
        refused("latest", step.parent)

    def test_a_shard_outside_is_not_read(self, refused, step: Path) -> None:
        victim = (step / "__0_0.distcp").rename(step.parent.parent / "victim")
        self.metadata(
            step, (step / ".metadata").read_bytes().replace(b"__0_0.distcp", b"../../victim")
        )
        cost = refused("latest", step.parent)
        assert victim.exists()
        assert b"victim" in cost.err


class TestArchives:
    """Torch files that are zips of another kind."""

    def write(self, tier: Path, body: bytes) -> Path:
        path = tier / "run/epoch=1-step=100.ckpt"
        path.parent.mkdir()
        path.write_bytes(body)
        date_files(path)
        return path.parent

    def test_a_zip_bomb_is_not_unpacked(self, refused, tier: Path) -> None:
        buffer = io.BytesIO()
        with (
            zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open("archive/data.pkl", "w") as record,
        ):
            for _ in range(400):
                record.write(bytes(10**6))
        refused("latest", self.write(tier, buffer.getvalue()))

    def test_a_record_that_claims_more_than_the_file_is_refused(self, refused, tier: Path) -> None:
        body = bytearray(write_torch_file(tier / "whole.pt").read_bytes())
        at = body.index(b"PK\1\2")
        body[at + 20 : at + 28] = struct.pack("<2I", 2**31, 2**31)
        refused("latest", self.write(tier, bytes(body)))

    def test_a_directory_of_many_records_is_refused(self, refused, tier: Path) -> None:
        body = bytearray(write_torch_file(tier / "whole.pt").read_bytes())
        for offset in (-98 + 24, -98 + 32):
            body[len(body) + offset : len(body) + offset + 8] = struct.pack("<Q", 2**40)
        refused("latest", self.write(tier, bytes(body)))


class TestHeaders:
    """JSON headers and indexes."""

    @pytest.fixture
    def trainer(self, tier: Path) -> Path:
        return write_hf_trainer(tier / "hf/checkpoint-5", 5)

    @pytest.mark.parametrize("sparse_bytes", [64, 3 * 2**30])
    def test_a_safetensors_header_of_2_gib_is_refused(
        self, refused, trainer: Path, sparse_bytes: int
    ) -> None:
        model = trainer / "model.safetensors"
        model.write_bytes(struct.pack("<Q", 2**31) + b"{}")
        os.truncate(model, sparse_bytes)
        date_files(trainer, "trainer_state.json")
        cost = refused("latest", trainer.parent)
        assert b"model.safetensors" in cost.err

    @pytest.mark.parametrize(
        "text",
        ["[" * 10**6, '{"a":' * 10**5, "{" + "9" * 10**6, '{"global_step": ' + "9" * 10**5 + "}"],
        ids=["deep-list", "deep-object", "cut", "long-number"],
    )
    def test_json_made_to_exhaust_is_refused(self, refused, trainer: Path, text: str) -> None:
        (trainer / "trainer_state.json").write_text(text)
        date_files(trainer, "trainer_state.json")
        cost = refused("latest", trainer.parent)
        assert b"trainer_state.json" in cost.err

    @pytest.mark.parametrize("name", ["../victim.safetensors", "/etc/hostname", "a\0b"])
    def test_an_index_that_names_a_file_outside_is_refused(
        self, refused, trainer: Path, name: str
    ) -> None:
        (trainer / "model.safetensors").rename(trainer.parent / "victim.safetensors")
        index = {"metadata": {"total_size": 288}, "weight_map": {"model.weight": name}}
        (trainer / "model.safetensors.index.json").write_text(json.dumps(index))
        date_files(trainer, "trainer_state.json")
        refused("latest", trainer.parent)


class TestNamesThatAreNotFiles:
    """Links, pipes and devices where shards should be."""

    def test_a_pipe_in_the_place_of_a_shard_does_not_block(self, refused, step: Path) -> None:
        (step / "__1_0.distcp").unlink()
        os.mkfifo(step / "__1_0.distcp")
        refused("latest", step.parent)

    def test_a_shard_linked_to_a_file_outside_is_refused(self, refused, step: Path) -> None:
        outside = (step / "__1_0.distcp").rename(step.parent.parent / "outside")
        (step / "__1_0.distcp").symlink_to(outside)
        refused("latest", step.parent)
        assert outside.exists()

    @pytest.mark.parametrize("command", ["scan", "rollback"])
    def test_nothing_is_written_through_a_link_in_our_place(
        self, measured, step: Path, tmp_path: Path, command: str
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (step.parent / ".ckptgov").symlink_to(outside)
        more = ("--to", "1") if command == "rollback" else ()
        assert measured(command, step.parent, *more).code != 0
        assert list(outside.iterdir()) == []


class TestManifests:
    """Manifests with a right ``self`` whose names lead elsewhere."""

    @pytest.fixture
    def victim(self, step: Path) -> Path:
        path = step.parent.parent / "victim"
        path.write_bytes(b"not part of any run")
        return path

    @pytest.mark.parametrize("kind", ["parent", "absolute", "dot", "empty-part", "nul"])
    def test_names_that_leave_the_checkpoint_are_refused(
        self, cli, step: Path, victim: Path, kind: str
    ) -> None:
        name = {
            "parent": "../../victim",
            "absolute": str(victim),
            "dot": "./__0_0.distcp",
            "empty-part": "a//b",
            "nul": "a\0b",
        }[kind]
        path = write_manifest(step.parent, "step_1", {name: victim.read_bytes()})
        before = victim.stat()
        answer = cli.json("verify", step.parent)
        assert answer.code == 5
        assert path.name in answer.out
        assert victim.stat() == before

    @pytest.mark.parametrize("name", ["../other/step_1", "/step_1", "step_1/.."])
    def test_a_checkpoint_name_outside_the_run_is_refused(self, cli, step: Path, name: str) -> None:
        path = write_manifest(step.parent, name, {"__0_0.distcp": b"x"}, file_name="step_1")
        answer = cli.json("verify", step.parent)
        assert answer.code == 5
        assert path.name in answer.out

    def test_refusing_one_takes_neither_time_nor_memory(self, refused, step: Path, victim) -> None:
        write_manifest(step.parent, "step_1", {"../../victim": victim.read_bytes()})
        refused("verify", step.parent, "--json")

    def test_one_over_the_cap_is_not_read(self, refused, step: Path) -> None:
        path = write_manifest(step.parent, "step_1", {"__0_0.distcp": b"x"})
        os.truncate(path, 300 * 2**20)
        cost = refused("verify", step.parent, "--json")
        assert path.name.encode() in cost.out

    def test_a_sealed_one_beside_it_is_still_handed_out(self, cli, step: Path, victim) -> None:
        cli.done("scan", step.parent)
        write_manifest(step.parent, "step_2", {"../../victim": victim.read_bytes()})
        assert cli.json("latest", step.parent).json["path"] == str(step)


def write_manifest(
    run: Path, name: str, shards: dict[str, bytes], *, file_name: str | None = None
) -> Path:
    """Put a manifest of these shards into ``run`` as the form demands, digests and self right."""
    digests = {path: f"xxh3_128:{xxhash.xxh3_128_hexdigest(body)}" for path, body in shards.items()}
    identity = hashlib.sha256(b"ckptgov-content-1\n")
    lines = []
    for path, body in sorted(shards.items()):
        raw = path.encode()
        identity.update(b"%d:%s\0%d%s\n" % (len(raw), raw, len(body), digests[path].encode()))
        lines.append(
            f'{{"path":{json.dumps(path)},"bytes":{len(body)},"digest":"{digests[path]}"}}'
        )
    text = (
        '{"format":"ckptgov.manifest","version":1,'
        f'"content_id":"sha256:{identity.hexdigest()}","name":{json.dumps(name)},"step":1,'
        '"layout":"dcp","purpose":["resume","weights"],"shards":[\n' + ",\n".join(lines) + "\n]"
    )
    text += f',"self":"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}}\n'
    directory = run / ".ckptgov/manifests"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{file_name or name}.{identity.hexdigest()[:16]}.json"
    path.write_text(text)
    os.utime(path, ns=(WRITTEN_AT_NS, WRITTEN_AT_NS))
    return path
