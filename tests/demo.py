"""The main job on real checkpoints, start to end: what ``make demo`` runs.

Unpacks checkpoints that real frameworks wrote (some of them killed while writing), lets ckptgov
find, refuse, seal, verify and hand them out, flips a bit, deletes the catalog, and compares; then
flushes them to object storage, loses a shard, and stages and restores from what is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ckptgov.testing import seaweedfs

SAMPLES = Path(__file__).parent / "data" / "samples.tar.gz"

RUNS = {
    "dcp": "dcp-torn/rank2-killed-midshard",
    "megatron": "megatron-torn/no-metadata-json",
    "deepspeed": "deepspeed-torn/rank1-killed-latest-lies",
    "hf": "hf-trainer/ddp2",
    "hf-torn": "hf-trainer-torn/rank1-rng-zero-bytes",
    "orbax": "orbax-torn/commit-file-missing",
}


class Demo:
    """A scratch directory with the runs, and a ckptgov of its own home."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.tier = scratch / "shared"
        self.home = scratch / "home"
        self.environ = {**os.environ, "CKPTGOV_HOME": str(self.home)}
        self.environ.pop("PYTHONDONTWRITEBYTECODE", None)

    def say(self, text: str) -> None:
        print(f"\n== {text}", flush=True)

    def run(self, *words: str, expect: int = 0) -> str:
        """Run one command as a user would, show it and what it prints."""
        shown = " ".join(words).replace(str(self.scratch), "")
        print(f"$ ckptgov {shown}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "ckptgov_cli.main", *words],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        text = (done.stdout + done.stderr).replace(str(self.scratch), "")
        for line in text.splitlines():
            print(f"  {line}")
        if done.returncode != expect:
            raise SystemExit(f"expected exit {expect}, got {done.returncode}")
        if expect:
            print(f"  (exit {done.returncode})")
        return done.stdout

    def answers(self) -> dict[str, object]:
        """What ``latest`` says of every run."""
        told: dict[str, object] = {}
        for run in RUNS:
            done = subprocess.run(
                [sys.executable, "-m", "ckptgov_cli.main", "latest", run, "--json"],
                env=self.environ,
                capture_output=True,
                text=True,
                check=False,
            )
            document = json.loads(done.stdout)
            told[run] = (
                done.returncode,
                document.get("path"),
                document.get("content_id"),
                document.get("evidence"),
            )
        return told

    def step_of(self, run: str) -> str:
        """The directory of a run's oldest checkpoint."""
        return min(self.tier.joinpath(run).glob("iter_*")).name

    def unpack(self) -> None:
        unpacked = self.scratch / "unpacked"
        unpacked.mkdir()
        subprocess.run(["tar", "xpzf", str(SAMPLES), "-C", str(unpacked)], check=True)
        self.tier.mkdir()
        for run, sample in RUNS.items():
            (unpacked / sample).rename(self.tier / run)
        shutil.rmtree(unpacked)


@contextlib.contextmanager
def second_tier(demo: Demo) -> Iterator[str]:
    """The address of an empty tier: a bucket of a real S3 server, or a directory."""
    if seaweedfs.reason_to_skip() is not None:
        (demo.scratch / "durable").mkdir()
        yield str(demo.scratch / "durable")
        return
    with seaweedfs.weed_s3() as server:
        demo.environ |= server.environment
        yield f"s3://{server.bucket}/ckpt"


def flip_a_bit(path: Path) -> None:
    """Change one bit and put the times back: what a failing disk does."""
    stat = path.stat()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0x10
    with path.open("r+b") as file:
        file.write(raw)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ckptgov-demo-") as scratch:
        demo = Demo(Path(scratch))
        demo.unpack()
        play(demo)


def play(demo: Demo) -> None:
    demo.say("A directory that nobody registered: answered by the layout's own proof")
    demo.run("latest", str(demo.tier / "dcp"), "--explain")

    demo.say("Discover and seal every run of a tier; torn checkpoints are refused with reasons")
    demo.run("tier", "add", "shared", str(demo.tier), "--ingest")
    demo.run("scan")

    demo.say("The newest checkpoint that restores, of each run (hf-torn has none)")
    for run in RUNS:
        demo.run("latest", run, expect=5 if run == "hf-torn" else 0)

    demo.say("One bit flips in a sealed shard, size and times unchanged")
    flip_a_bit(demo.tier / "orbax" / "ckpt_00000001" / "default" / "manifest.ocdbt")
    demo.run("verify", "orbax", expect=5)
    demo.run("latest", "orbax", expect=5)

    demo.say("A rollback: steps above it are not offered again")
    demo.run("rollback", "deepspeed", "--to", "1", "--reason", "loss spike")
    demo.run("latest", "deepspeed")

    demo.say("The catalog is lost, and rebuilt from what lies on storage")
    before = demo.answers()
    for file in demo.home.glob("catalog.sqlite*"):
        file.unlink()
    demo.run("catalog", "rebuild")
    demo.run("catalog", "check")
    after = demo.answers()
    if before != after:
        raise SystemExit(f"answers differ after the rebuild:\n{before}\n{after}")
    demo.say("The same answers as before, for every run; the rollback stands:")
    demo.run("list", "deepspeed")

    demo.say("Every run flows to a second tier, an S3 server where there is one; then shards go")
    with second_tier(demo) as url:
        demo.run("tier", "add", "durable", url)
        demo.run("tier", "link", "shared", "durable", "--every", "1")
        demo.run("flush", "--all")
        demo.run("du")
        (demo.tier / "megatron" / demo.step_of("megatron") / "common.pt").unlink()
        demo.run("latest", "megatron", "--stage", str(demo.scratch / "nvme"), "--explain")
        demo.run("restore", f"{url}/dcp", "--to", str(demo.scratch / "other-node"))


if __name__ == "__main__":
    main()
