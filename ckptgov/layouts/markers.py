"""Which files of a checkpoint its framework writes last, to say that the others are there."""

from __future__ import annotations

_MARKERS = frozenset(
    {
        ".metadata",  # torch DCP; Megatron's torch_dist beside metadata.json
        "metadata.json",  # Megatron
        ".snapshot_metadata",  # torchsnapshot
        "_CHECKPOINT_METADATA",  # Orbax
        "commit_success.txt",  # Orbax where renames are not atomic
        "trainer_state.json",  # Hugging Face Trainer
        "meta.pt",  # Lightning, sharded
        "model.safetensors.index.json",  # an index names the files it needs
        "latest",
    }
)


def is_marker(path: str) -> bool:
    """Whether a shard of this path vouches for others, so that it must arrive after them.

    By name only, for every layout alike: a file taken for a marker in vain merely arrives later.
    """
    name = path.rpartition("/")[2]
    return name in _MARKERS or (name.startswith("__") and name.endswith(".metadata"))
