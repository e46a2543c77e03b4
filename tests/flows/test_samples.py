"""Real checkpoints of real frameworks: whole ones are handed out, torn ones are refused by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

WHOLE = {
    "accelerate/ddp2": ("checkpoint_1", "resume"),
    "dcp-hf/consolidated": ("step_1", "weights"),
    "dcp/async-2rank": ("step_2", "resume"),
    "dcp/fsdp2-4rank": ("step_2", "resume"),
    "dcp/multi-file-2rank": ("step_1", "resume"),
    "dcp/no-collectives-2rank": ("step_1", "resume"),
    "dcp/single": ("step_1", "resume"),
    "deepspeed/zero0": ("global_step1", "resume"),
    "deepspeed/zero1-bf16": ("global_step1", "resume"),
    "deepspeed/zero2": ("global_step2", "resume"),
    "deepspeed/zero3": ("global_step1", "resume"),
    "hf-trainer/ddp2": ("checkpoint-2", "resume"),
    "hf-trainer/single": ("checkpoint-2", "resume"),
    "lightning/distributed-dir": (".ckpt", "resume"),
    "lightning/last-symlink": ("epoch=0-step=2.ckpt", "resume"),
    "lightning/single-file": (".ckpt", "resume"),
    "megatron/core-torch_dist": ("iter_0000200", "resume"),
    "orbax/atomic-rename": ("2", "resume"),
    "orbax/commit-file-prefix": ("ckpt_00000002", "resume"),
    "torchsnapshot/2rank": ("step_1", "resume"),
}
"""Run -> how the name of its newest checkpoint ends (a save under two names has one content)."""

TORN = [
    ("dcp-hf-torn/rank-overwrite-lost-data", "step_1", "model.safetensors.index.json", None),
    ("dcp-torn/async-rank1-killed", "step_2", ".metadata", None),
    ("dcp-torn/killed-before-metadata-rename", "step_2", ".metadata", None),
    ("dcp-torn/rank2-killed-midshard", "step_2", ".metadata", "step_1"),
    (
        "deepspeed-torn/rank1-killed-latest-lies",
        "global_step2",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "global_step1",
    ),
    ("hf-trainer-torn/killed-in-safetensors", "checkpoint-2", "", None),
    ("hf-trainer-torn/optimizer-truncated", "checkpoint-2", "optimizer.pt", None),
    ("hf-trainer-torn/rank1-rng-zero-bytes", "checkpoint-2", "rng_state_1.pth", None),
    ("lightning-torn/cross-filesystem-move", "epoch=0-step=2.ckpt", "", ".ckpt"),
    ("lightning-torn/distributed-dir-no-meta-pt", "epoch=0-step=2.ckpt", "meta.pt", "last.ckpt"),
    ("megatron-torn/async-worker-killed", "iter_0000200", ".metadata", "iter_0000100"),
    ("megatron-torn/no-metadata-json", "iter_0000200", "metadata.json", "iter_0000100"),
    ("orbax-torn/commit-file-async-midway", "ckpt_00000002", "", "ckpt_00000001"),
    ("orbax-torn/commit-file-missing", "ckpt_00000002", "commit_success.txt", "ckpt_00000001"),
    ("plain-torch-save-torn/rank2-killed", "step_3", "rank_2.pt", None),
    ("torchsnapshot-torn/async-no-metadata", "step_2", ".snapshot_metadata", None),
    ("torchsnapshot-torn/empty-metadata", "step_2", ".snapshot_metadata", None),
]
"""Run, its torn checkpoint, the file to be named ("": any of it), what is handed out instead."""


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_one_is_handed_out(cli, sample, name: str) -> None:
    ending, purpose = WHOLE[name]
    answer = cli.json("latest", sample(name), "--purpose", purpose)
    assert answer.code == 0, answer
    assert answer.json["path"].endswith(ending)
    assert answer.json["evidence"] == "structure"


@pytest.mark.parametrize("name", WHOLE)
def test_a_plain_recursive_copy_of_a_whole_one_is_too(cli, samples, tier, name: str) -> None:
    ending, purpose = WHOLE[name]
    subprocess.run(["cp", "-r", samples / name, tier / "copied"], check=True)
    answer = cli.json("latest", tier / "copied", "--purpose", purpose)
    assert answer.code == 0, answer
    assert answer.json["path"].endswith(ending)


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_one_is_sealed_and_then_proven_by_digest(cli, sample, name: str) -> None:
    ending, purpose = WHOLE[name]
    run = sample(name)
    cli.done("scan", run, "--run", "sampled")
    answer = cli.json("latest", "sampled", "--purpose", purpose, "--evidence", "digest")
    assert answer.code == 0, answer
    assert answer.json["path"].endswith(ending)
    assert answer.json["evidence"] == "digest"
    cli.done("verify", "sampled")


@pytest.mark.parametrize(("name", "torn", "file", "instead"), TORN, ids=[row[0] for row in TORN])
def test_a_torn_one_is_refused_naming_file_and_evidence(
    cli, sample, name: str, torn: str, file: str, instead: str | None
) -> None:
    answer = cli.json("latest", sample(name))
    findings = answer.findings(torn)
    assert any(file in finding["path"] + finding["evidence"] for finding in findings), answer
    assert all(finding["reason"] and finding["evidence"] for finding in findings)
    if instead is None:
        assert answer.code == 5
    else:
        assert answer.code == 0
        assert answer.json["path"].endswith(instead)


@pytest.mark.parametrize(("name", "torn", "file", "instead"), TORN, ids=[row[0] for row in TORN])
def test_a_torn_one_is_never_sealed(
    cli, sample, name: str, torn: str, file: str, instead: str | None
) -> None:
    scanned = cli.json("scan", sample(name))
    assert scanned.code == 0, scanned
    sealed = {entry["name"] for run in scanned.json["runs"] for entry in run["sealed"]}
    assert torn not in sealed
    assert scanned.findings(torn)


class TestOverwrittenInPlace:
    """A second save died in a directory that still has the first one's ``.metadata``.

    Every size and every checksum is right; only times tell.
    """

    @pytest.fixture
    def torn(self, sample) -> Path:
        directory = sample("dcp-torn/overwrite-old-metadata-new-shards")
        run = directory.parent / "run"
        run.mkdir()
        return directory.rename(run / "step_7")

    def test_it_is_refused_as_written_after_its_marker(self, cli, torn: Path) -> None:
        answer = cli.json("latest", torn.parent)
        assert answer.code == 5
        findings = answer.findings("step_7")
        assert any(".distcp" in f["path"] and "marker" in f["evidence"] for f in findings), answer

    def test_asking_for_the_directory_itself_does_not_help(self, cli, torn: Path) -> None:
        assert cli("latest", torn).code == 5

    def test_scan_does_not_seal_it(self, cli, torn: Path) -> None:
        assert cli.json("scan", torn.parent).json["runs"][0]["sealed"] == []

    def test_a_person_can_commit_it(self, cli, torn: Path) -> None:
        cli.done("commit", torn)
        assert cli("latest", torn.parent).path == torn


def test_an_empty_tracker_is_reported_and_not_needed(cli, sample) -> None:
    answer = cli.json("latest", sample("megatron-torn/empty-tracker"))
    assert answer.json["path"].endswith("iter_0000200")
    assert "latest_checkpointed_iteration.txt" in answer.notes


def test_an_unfinished_orbax_directory_is_staging(cli, sample) -> None:
    run = sample("orbax-torn/async-atomic-rename")
    assert cli("latest", run).path == run / "1"
    staging = cli.json("scan", run).json["runs"][0]["staging"]
    assert [entry["path"] for entry in staging] == ["2.orbax-checkpoint-tmp"]


def test_a_lone_safetensors_file_is_restorable_and_has_no_step(cli, sample) -> None:
    run = sample("safetensors")
    answer = cli.json("verify", run, "--level", "structure")
    assert answer.code == 0, answer
    assert [entry["step"] for entry in answer.json["checkpoints"]] == [None]


class TestDeclaredRules:
    """Nothing on disk tells the full set of these; a declared rule does."""

    RULES = (
        ("plain-torch-save/4rank", "step_*/rank_*.pt", "4", "step_2", "resume"),
        ("dcp-hf/save-distributed", "step_*/shard-*.safetensors", "2", "step_1", "weights"),
    )

    @pytest.mark.parametrize(("name", "glob", "count", "newest", "purpose"), RULES)
    def test_without_a_rule_it_is_unproven(
        self, cli, sample, name: str, glob: str, count: str, newest: str, purpose: str
    ) -> None:
        answer = cli.json("latest", sample(name), "--purpose", purpose)
        assert answer.code == 5
        assert "unproven" in answer.reasons(newest)

    @pytest.mark.parametrize(("name", "glob", "count", "newest", "purpose"), RULES)
    def test_with_a_rule_it_is_restorable(
        self, cli, sample, name: str, glob: str, count: str, newest: str, purpose: str
    ) -> None:
        run = sample(name)
        create(cli, run, glob, count)
        cli.done("scan", run, "--run", "ours")
        assert cli("latest", "ours", "--purpose", purpose).path == run / newest

    def test_a_rule_does_not_heal_a_torn_one(self, cli, sample) -> None:
        run = sample("plain-torch-save-torn/rank2-killed")
        create(cli, run, "step_*/rank_*.pt", "4")
        cli("scan", run, "--run", "ours")
        answer = cli.json("latest", "ours")
        assert answer.code == 5
        assert any("rank_2.pt" in f["path"] for f in answer.findings("step_3")), answer

    def test_a_person_can_commit_one_without_a_rule(self, cli, sample) -> None:
        run = sample("plain-torch-save/4rank")
        cli.done("commit", run / "step_2")
        assert cli("latest", run).path == run / "step_2"


def create(cli, run: Path, glob: str, count: str) -> None:
    """Declare what the checkpoints of ``run`` consist of, under the name ``ours``."""
    words = ("--root", run, "--expect-glob", glob, "--expect-count", count)
    cli.done("run", "create", "ours", *words)


def test_files_of_a_form_nobody_knows_are_sealed_by_a_commit(cli, tier: Path) -> None:
    for rank in range(2):
        path = tier / f"run/step_7/shard_{rank}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(range(256)) * 8)
    assert cli("latest", tier / "run").code in {4, 5}
    cli.done("commit", tier / "run/step_7")
    answer = cli.json("latest", "run")
    assert (answer.json["step"], answer.json["layout"]) == (7, "declared")
