"""Model weights as Hugging Face libraries save them: one file, or shards with an index.

The index (``model.safetensors.index.json``) maps each tensor to its file and is written after
the shards; ``metadata.total_size`` is the sum of all tensors' bytes, the only trace of ranks that
overwrote each other's file. Shards are named ``<stem>-<n>-of-<count>``, which tells the full set
even where the index is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ckptgov.layouts.base import Tree, join
from ckptgov.layouts.content import SpelledNumber, json_object, prove_content, prove_safetensors
from ckptgov.layouts.names import is_staging
from ckptgov.layouts.proof import Proof
from ckptgov.model.facts import Depth, Reason

INDEX = re.compile(r"(?P<stem>.+)\.(?P<kind>safetensors|bin)\.index(?:\.[\w-]+)?\.json")
NUMBERED = re.compile(
    r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.(?P<kind>safetensors|bin)"
)
SINGLES = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
)
CONFIGS = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
"""What a weights loader reads beside the weights; members where they are there."""

_MAX_SHARDS = 99_999


def weight_files(tree: Tree, directory: str) -> tuple[str, ...]:
    """Names in a directory that are weights or their index."""
    return tuple(
        name
        for name in tree.files(directory)
        if (name in SINGLES or INDEX.fullmatch(name) or NUMBERED.fullmatch(name))
        and not is_staging(name)
    )


def prove_weights(proof: Proof, below: str, depth: Depth) -> bool:
    """Prove the weights in a directory of the checkpoint; whether there is any trace of them."""
    names = weight_files(proof.tree, proof.at(below)) if _is_dir(proof, below) else ()
    indexes = [name for name in names if INDEX.fullmatch(name)]
    for name in indexes:
        _prove_index(proof, below, name, depth)
    for name in names:
        if name in SINGLES:
            proof.need(join(below, name))
            prove_content(proof, join(below, name), depth)
    if not indexes:
        _prove_numbered(proof, below, names, depth)
    return bool(names)


def prove_configs(proof: Proof, below: str) -> None:
    """Take the loader's small files that are there; an empty or cut one is refused."""
    for name in CONFIGS:
        path = join(below, name)
        if proof.has(path):
            proof.need(path)
            if name.endswith(".json"):
                json_object(proof, path)


def _is_dir(proof: Proof, below: str) -> bool:
    return proof.tree.is_dir(proof.at(below))


def _prove_index(proof: Proof, below: str, name: str, depth: Depth) -> None:
    path = join(below, name)
    proof.need(path)
    index = json_object(proof, path)
    if index is None:
        return
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) for file in weight_map.values()
    ):
        proof.refuse(Reason.TORN, path, "has no weight_map of tensors to files")
        return
    tensors: dict[str, set[str]] = {}
    for tensor, file in weight_map.items():
        tensors.setdefault(file, set()).add(tensor)
    total_bytes = 0
    for file, wanted in sorted(tensors.items()):
        shard = join(below, file)
        proof.need(shard, because=f"{name} names it")
        held = _held_bytes(proof, shard, wanted, name, depth)
        if held is None:
            return
        total_bytes += held
    _compare_total(proof, path, index.get("metadata"), total_bytes)


def _held_bytes(proof: Proof, shard: str, wanted: set[str], index: str, depth: Depth) -> int | None:
    """Bytes of the tensors in one shard; None (after a finding, or unknowably) when not told."""
    if not shard.endswith(".safetensors"):
        prove_content(proof, shard, depth)
        return None
    header = prove_safetensors(proof, shard)
    if header is None:
        return None
    lost = sorted(wanted - header.tensors)
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        text = f"does not hold tensor {lost[0]!r}{more}, which {index} maps to it"
        proof.refuse(Reason.TORN, shard, text)
        return None
    return header.tensor_bytes


def _compare_total(proof: Proof, path: str, metadata: object, total_bytes: int) -> None:
    """Fewer bytes than announced were lost; more come of writers that count bools as bits."""
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    want = _integer(total)
    if want is None or want == total_bytes:
        return
    if total_bytes < want:
        text = f"says total_size {want}, but its files hold {total_bytes} bytes of tensors"
        proof.refuse(Reason.TORN, path, text)
    else:
        text = f"says total_size {want}; its files hold {total_bytes} bytes of tensors"
        proof.note("total-size", path, text)


def _integer(value: object) -> int | None:
    if isinstance(value, SpelledNumber):
        try:
            return int(float(value))
        except (ValueError, OverflowError):
            return None
    return value if isinstance(value, int) else None


def _prove_numbered(proof: Proof, below: str, names: tuple[str, ...], depth: Depth) -> None:
    """Shards without their index: the index is missing, and the names tell which others are."""
    groups: dict[tuple[str, str, int], set[str]] = {}
    for name in names:
        match = NUMBERED.fullmatch(name)
        if match is not None:
            key = (match["stem"], match["kind"], int(match["count"]))
            groups.setdefault(key, set()).add(name)
    for (stem, kind, count), present in groups.items():
        index = f"{stem}.{kind}.index.json"
        proof.need(join(below, index), because="shards are here that only it maps")
        for number in range(1, min(count, _MAX_SHARDS) + 1):
            name = f"{stem}-{number:05d}-of-{count:05d}.{kind}"
            proof.need(join(below, name), because=f"{len(present)} of {count} are here")
            prove_content(proof, join(below, name), depth)
