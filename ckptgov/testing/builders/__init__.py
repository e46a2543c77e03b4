"""Builders: small checkpoints in their real writers' exact forms, and ways to hurt them.

Promised: the same arguments give the same bytes; every file is what the framework's own loader
reads (torch zips with aligned records, real CRCs and the zip64 trailer; pickles that name the
framework's own classes; exact offsets in every index); files are dated so that a marker is newer
than everything it vouches for, and all are dated in the past unless told otherwise. Nothing but
the standard library is needed, no framework is imported.

Not known here: how ckptgov reads any of it. Orbax and torchsnapshot have no builder, since their
bodies come from libraries of their own; real samples stand in for them.
"""

from ckptgov.testing.builders.damage import (
    TICK_NS,
    WRITTEN_AT_NS,
    date_files,
    flip_bit,
    shift_times,
    truncate,
)
from ckptgov.testing.builders.dcp import dcp_files, write_dcp, write_megatron
from ckptgov.testing.builders.deepspeed import write_deepspeed
from ckptgov.testing.builders.generic import write_torch_shards, write_world_size_set
from ckptgov.testing.builders.hugging_face import write_hf_trainer
from ckptgov.testing.builders.lightning import lightning_state, write_lightning
from ckptgov.testing.builders.pickles import Global, Instance, Reduced, Tensor, pickle_bytes
from ckptgov.testing.builders.safetensors import safetensors_bytes, write_safetensors
from ckptgov.testing.builders.torch_zip import torch_file_bytes, write_torch_file

__all__ = [
    "TICK_NS",
    "WRITTEN_AT_NS",
    "Global",
    "Instance",
    "Reduced",
    "Tensor",
    "date_files",
    "dcp_files",
    "flip_bit",
    "lightning_state",
    "pickle_bytes",
    "safetensors_bytes",
    "shift_times",
    "torch_file_bytes",
    "truncate",
    "write_dcp",
    "write_deepspeed",
    "write_hf_trainer",
    "write_lightning",
    "write_megatron",
    "write_safetensors",
    "write_torch_file",
    "write_torch_shards",
    "write_world_size_set",
]
