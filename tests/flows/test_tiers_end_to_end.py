"""NVMe to a shared file system to object storage and back, with real parts: JuiceFS, SeaweedFS."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptgov.testing import juicefs, seaweedfs

WHOLE = [
    "accelerate/ddp2",
    "dcp-hf/consolidated",
    "dcp/async-2rank",
    "dcp/fsdp2-4rank",
    "dcp/multi-file-2rank",
    "deepspeed/zero3",
    "hf-trainer/ddp2",
    "lightning/distributed-dir",
    "lightning/last-symlink",
    "lightning/single-file",
    "megatron/core-torch_dist",
    "orbax/atomic-rename",
    "orbax/commit-file-prefix",
    "torchsnapshot/2rank",
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ...]]:
    """Two nodes' mounts of one shared file system."""
    if reason := juicefs.reason_to_skip():
        pytest.skip(reason)
    with juicefs.juice_nodes(tmp_path_factory.mktemp("juice"), nodes=2) as points:
        yield points


@pytest.fixture(scope="module")
def store() -> Iterator[seaweedfs.WeedServer]:
    """A real S3 server."""
    if reason := seaweedfs.reason_to_skip():
        pytest.skip(reason)
    with seaweedfs.weed_s3() as server:
        yield server


@pytest.fixture
def url(store: seaweedfs.WeedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A prefix of this test's own, reachable by the usual environment."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{store.bucket}/{tmp_path.name}"


@pytest.fixture
def three_tiers(cli, tmp_path: Path, nodes: tuple[Path, ...], url: str) -> Path:
    """nvme (node a) -> lustre -> s3; gives the root of nvme."""
    nvme = tmp_path / "nvme-a"
    nvme.mkdir()
    shared = nodes[0] / tmp_path.name
    shared.mkdir()
    cli.done("tier", "add", "nvme", nvme, "--scope", "node", "--node", "a", "--ingest")
    cli.done("tier", "add", "lustre", shared)
    cli.done("tier", "add", "s3", url)
    cli.done("tier", "link", "nvme", "lustre", "--every", "1")
    cli.done("tier", "link", "lustre", "s3", "--every", "1")
    return nvme


def files_of(root: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file below: bytes, permission bits, mtime in ns. Nothing of ours."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and ".ckptgov" not in str(path):
            stat = path.stat()
            found[str(path.relative_to(root))] = (
                path.read_bytes(),
                stat.st_mode & 0o777,
                stat.st_mtime_ns,
            )
    return found


def shards_of(run: Path, name: str, entry: dict) -> dict[str, tuple[bytes, int, int]]:
    """The members of one checkpoint, by the manifest."""
    base = run / name
    if base.is_file():
        return {"": (base.read_bytes(), base.stat().st_mode & 0o777, base.stat().st_mtime_ns)}
    return {path: value for path, value in files_of(base).items() if path in entry}


def test_real_samples_survive_every_tier(
    cli,
    samples: Path,
    three_tiers: Path,
    nodes: tuple[Path, ...],
    tmp_path: Path,
    url: str,
    pytestconfig: pytest.Config,
    forget_catalog: Callable[[], None],
) -> None:
    """A seeded sample of the samples; all of them in the sweep."""
    drawn = random.Random(pytestconfig.getoption("--seed")).sample(WHOLE, 4)
    moved = [
        Moved(cli, samples / name, three_tiers / name.replace("/", "-"))
        for name in (WHOLE if pytestconfig.getoption("--full-sweep") else drawn)
    ]
    for one in moved:
        for place in (nodes[1] / tmp_path.name / one.run.name, f"{url}/{one.run.name}"):
            told = cli.json("latest", place, "--evidence", "digest", *one.options)
            assert told.code == 0, told
            assert told.json["content_id"] == one.content_id

    shutil.rmtree(three_tiers)
    shutil.rmtree(nodes[0] / tmp_path.name)
    for one in moved:
        other = tmp_path / f"nvme-b-{one.run.parent.name}-{one.run.name}"
        source = f"{url}/{one.run.name}"
        restored = cli.done("restore", source, "--to", other, *one.options).path
        assert shards_of(restored.parent, restored.name, set(one.wanted)) == one.wanted

    forget_catalog()
    (tmp_path / "home" / "ckptgov.yaml").unlink()
    for one in moved:
        again = cli.json("latest", f"{url}/{one.run.name}", *one.options)
        assert again.json["content_id"] == one.content_id


class Moved:
    """A real sample that was scanned on nvme and flushed to lustre and s3."""

    def __init__(self, cli, sample: Path, directory: Path) -> None:
        shutil.copytree(sample, directory, symlinks=True)
        scanned = cli.json("scan", directory, "--node", "a").json["runs"][0]
        self.run = Path(scanned["root"])  # the run root may lie deeper
        first = cli.json("latest", self.run.name, "--node", "a")
        self.options = [] if first.code == 0 else ["--purpose", "weights"]
        first = cli.json("latest", self.run.name, "--node", "a", *self.options)
        self.content_id = first.json["content_id"]
        cli.done("flush", self.run.name)
        cli.done("flush", self.run.name)  # what arrived at lustre goes on to s3
        name = first.json["name"]
        manifest = cli.json("manifest", f"{self.run}/{name}").json
        self.wanted = shards_of(self.run, name, {one["path"] for one in manifest["shards"]})
        assert self.wanted


def test_one_restore_takes_its_shards_from_three_tiers(
    cli,
    samples: Path,
    three_tiers: Path,
    store: seaweedfs.WeedServer,
    nodes: tuple[Path, ...],
    tmp_path: Path,
    url: str,
) -> None:
    """No tier has it whole any more; each still has something that the others lack."""
    run = three_tiers / "llm"
    shutil.copytree(samples / "dcp/fsdp2-4rank", run, symlinks=True)
    cli.done("scan", run, "--node", "a")
    cli.done("flush", "llm")
    cli.done("flush", "llm")
    wanted = files_of(run / "step_2")
    first, second, third, *rest = sorted(wanted)
    for name in (first, second):
        (run / "step_2" / name).unlink()
    for name in (first, third):
        (nodes[0] / tmp_path.name / "llm/step_2" / name).unlink()
    for name in (second, third, *rest):
        key = f"{url.removeprefix('s3://').partition('/')[2]}/llm/step_2/{name}"
        store.client().delete_object(Bucket=store.bucket, Key=key)

    assert cli.json("latest", "llm", "--node", "a").code == 5  # no path would hold all of it
    other = tmp_path / "nvme-b"
    told = cli("latest", "llm", "--node", "a", "--stage", other, "--explain")
    assert told.code == 0, told
    assert files_of(Path(told.out.strip())) == wanted
    for tier in ("(nvme, a)", "(lustre, shared)", "(s3, shared)"):
        assert tier in told.err

    again = cli.json("restore", "llm", "--node", "a", "--to", tmp_path / "nvme-c")
    assert {one["tier"]: one["shards"] for one in again.json["sources"]} == {
        "nvme": len(wanted) - 2,
        "lustre": 1,
        "s3": 1,
    }
