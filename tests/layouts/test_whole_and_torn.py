"""Every real sample: the whole ones are whole, the torn ones refused with file and evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptgov.layouts.survey import find_run_roots
from ckptgov.model.facts import Depth, Reason
from ckptgov.storage.posix import PosixStorage

WHOLE = (
    "accelerate/ddp2/checkpoints",
    "dcp/async-2rank",
    "dcp/fsdp2-4rank",
    "dcp/multi-file-2rank",
    "dcp/no-collectives-2rank",
    "dcp/single",
    "dcp-hf/consolidated",
    "deepspeed/zero0",
    "deepspeed/zero1-bf16",
    "deepspeed/zero2",
    "deepspeed/zero3",
    "hf-trainer/ddp2",
    "hf-trainer/single",
    "lightning/distributed-dir",
    "lightning/last-symlink",
    "lightning/single-file",
    "megatron/core-torch_dist",
    "orbax/atomic-rename",
    "orbax/commit-file-prefix",
    "safetensors",
    "torchsnapshot/2rank",
)

# run root -> torn candidate -> (reason, file below the candidate, words of the evidence)
TORN: dict[str, dict[str, tuple[Reason, str, str]]] = {
    "dcp-torn/rank2-killed-midshard": {
        "step_2": (Reason.BEING_WRITTEN, ".metadata", "is missing"),
    },
    "dcp-torn/async-rank1-killed": {
        "step_2": (Reason.BEING_WRITTEN, ".metadata", "is missing"),
    },
    "dcp-torn/killed-before-metadata-rename": {
        "step_2": (Reason.BEING_WRITTEN, ".metadata", "only .metadata.tmp is there"),
    },
    "dcp-hf-torn/rank-overwrite-lost-data": {
        "step_1": (Reason.TORN, "model.safetensors.index.json", "total_size 21312"),
    },
    "deepspeed-torn/rank1-killed-latest-lies": {
        "global_step2": (
            Reason.TORN,
            "zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "is empty (0 bytes)",
        ),
    },
    "hf-trainer-torn/killed-in-safetensors": {
        "checkpoint-2": (Reason.BEING_WRITTEN, "trainer_state.json", "marker is missing"),
    },
    "hf-trainer-torn/optimizer-truncated": {
        "checkpoint-2": (Reason.TORN, "optimizer.pt", "21696 bytes"),
    },
    "hf-trainer-torn/rank1-rng-zero-bytes": {
        "checkpoint-2": (Reason.TORN, "rng_state_1.pth", "is empty (0 bytes)"),
    },
    "lightning-torn/cross-filesystem-move": {
        "epoch=0-step=2.ckpt": (Reason.TORN, "", "is empty (0 bytes)"),
    },
    "lightning-torn/distributed-dir-no-meta-pt": {
        "epoch=0-step=2.ckpt": (Reason.BEING_WRITTEN, "meta.pt", "is missing"),
    },
    "megatron-torn/async-worker-killed": {
        "iter_0000200": (Reason.BEING_WRITTEN, ".metadata", "is missing"),
    },
    "megatron-torn/no-metadata-json": {
        "iter_0000200": (Reason.BEING_WRITTEN, "metadata.json", "is missing"),
    },
    "megatron-torn/empty-tracker": {},
    "orbax-torn/async-atomic-rename": {},
    "orbax-torn/commit-file-async-midway": {
        "ckpt_00000002": (Reason.BEING_WRITTEN, "_CHECKPOINT_METADATA", "is null"),
    },
    "orbax-torn/commit-file-missing": {
        "ckpt_00000002": (Reason.BEING_WRITTEN, "commit_success.txt", "is missing"),
    },
    "plain-torch-save-torn/rank2-killed": {
        "step_3": (Reason.TORN, "rank_2.pt", "is empty (0 bytes)"),
    },
    "torchsnapshot-torn/async-no-metadata": {
        "step_2": (Reason.BEING_WRITTEN, ".snapshot_metadata", "is missing"),
    },
    "torchsnapshot-torn/empty-metadata": {
        "step_2": (Reason.TORN, ".snapshot_metadata", "is empty (0 bytes)"),
    },
}

OLDER_AND_WHOLE = {
    "dcp-torn/rank2-killed-midshard": ["step_1"],
    "deepspeed-torn/rank1-killed-latest-lies": ["global_step1"],
    "lightning-torn/cross-filesystem-move": ["epoch=0-step=1.ckpt", "last.ckpt"],
    "lightning-torn/distributed-dir-no-meta-pt": ["last.ckpt"],
    "megatron-torn/async-worker-killed": ["iter_0000100"],
    "megatron-torn/no-metadata-json": ["iter_0000100"],
    "megatron-torn/empty-tracker": ["iter_0000100", "iter_0000200"],
    "orbax-torn/async-atomic-rename": ["1"],
    "orbax-torn/commit-file-async-midway": ["ckpt_00000001"],
    "orbax-torn/commit-file-missing": ["ckpt_00000001"],
}


@pytest.mark.parametrize("depth", Depth)
@pytest.mark.parametrize("run", WHOLE)
def test_a_whole_sample_is_whole(samples: Path, look: Any, run: str, depth: Depth) -> None:
    looked = look(samples / run, depth=depth)
    assert looked.sightings
    for sighting in looked.sightings:
        assert sighting.findings == (), sighting.name
        assert sighting.shards
        assert {s.path for s in sighting.shards} == set(sighting.expected)


@pytest.mark.parametrize("depth", Depth)
@pytest.mark.parametrize("run", TORN)
def test_a_torn_sample_is_refused_by_file_and_evidence(
    samples: Path, look: Any, run: str, depth: Depth
) -> None:
    looked = look(samples / run, depth=depth)
    for name, (reason, file, words) in TORN[run].items():
        path = f"{name}/{file}" if file else name
        told = [f.evidence for f in looked[name].findings if (f.reason, f.path) == (reason, path)]
        assert any(words in evidence for evidence in told), looked.told(name)
    assert looked.whole == OLDER_AND_WHOLE.get(run, [])


@pytest.mark.parametrize(
    ("run", "names"),
    [("plain-torch-save/4rank", ["step_1", "step_2"]), ("dcp-hf/save-distributed", ["step_1"])],
)
def test_what_nothing_on_disk_proves_is_unproven(
    samples: Path, look: Any, run: str, names: list[str]
) -> None:
    looked = look(samples / run)
    assert [s.name for s in looked.sightings] == names
    for sighting in looked.sightings:
        assert {f.reason for f in sighting.findings} == {Reason.UNPROVEN}


def test_every_sample_is_somebodys(samples: Path) -> None:
    storage = PosixStorage(samples)
    roots = {
        root
        for top in sorted(path.name for path in samples.iterdir() if path.is_dir())
        for root in find_run_roots(storage, top)
    }
    storage.close()
    # In dcp-torn one directory is a checkpoint itself, so the folder above is the run root.
    torn = {run for run in TORN if not run.startswith("dcp-torn/")}
    assert roots == {*WHOLE, *torn, "dcp-torn", "plain-torch-save/4rank", "dcp-hf/save-distributed"}
