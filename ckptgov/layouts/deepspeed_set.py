"""The set of files of one DeepSpeed tag directory, wherever it lies inside a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from msgspec import Struct

from ckptgov.errors import Malformed
from ckptgov.layouts.base import Tree, join
from ckptgov.layouts.beside import MAX_RANKS
from ckptgov.layouts.pickles import Scalar
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.torch_zip import torch_facts
from ckptgov.model.facts import Depth, Reason

_MODEL = re.compile(
    r"(?:zero_pp_rank_(?P<dp>[0-9]{1,7})_)?mp_rank_(?P<mp>[0-9]{2,7})_model_states\.pt"
)
_OPTIM = re.compile(
    r"(?P<prefix>(?:bf16_|fp16_)?)zero_pp_rank_(?P<dp>[0-9]{1,7})_mp_rank_(?P<mp>[0-9]{2,7})"
    r"_optim_states\.pt"
)
# Families whose extent no file tells. The pattern's pieces around the numbers make the names.
_LAYER = re.compile(r"(layer_)([0-9]{2,5})(-model_)([0-9]{2,5})(-model_states\.pt)")
_EXPERT = re.compile(
    r"(layer_)([0-9]{1,5})(_expert_)([0-9]{1,6})(_mp_rank_)([0-9]{2,5})(_model_states\.pt)"
)
_EXPERT_OPTIM = re.compile(r"(expp_rank_)([0-9]{1,7})(_mp_rank_)([0-9]{2,5})(_optim_states\.pt)")
_FAMILIES = (
    (_LAYER, "pipeline layers"),
    (_EXPERT, "experts"),
    (_EXPERT_OPTIM, "expert optimizer parts"),
)
_OFFLOADED = "offloaded_tensors"

_KEYS = (
    "global_steps",
    "dp_world_size",
    "mp_world_size",
    "checkpoint_parallel_dimensions.pp_degree",
    "checkpoint_parallel_dimensions.tp_degree",
    "ds_config.zero_optimization.stage",
    "ds_config.bf16.enabled",
    "ds_config.bfloat16.enabled",
)


class Tag(Struct, frozen=True, kw_only=True):
    """What was proved about one tag.

    ``common_file`` is one that every node of a run without a shared file system writes alike.
    """

    step: int | None = None
    world_size: int | None = None
    common_file: str | None = None


class _Facts(Struct, frozen=True, kw_only=True):
    """What a model states file says: data-parallel ranks, model-parallel ranks, ZeRO stage."""

    step: int | None
    dp: int
    mp: int
    stage: int | None
    is_bf16: bool


def is_tag_dir(tree: Tree, directory: str) -> bool:
    """Whether a directory holds a file that only DeepSpeed names so."""
    patterns = (_MODEL, _OPTIM, _LAYER, _EXPERT, _EXPERT_OPTIM)
    return any(any(p.fullmatch(name) for p in patterns) for name in tree.files(directory))


def prove_tag(proof: Proof, below: str, depth: Depth, *, beside: Iterable[str] = ()) -> Tag:
    """Prove the tag directory ``below`` the checkpoint (``""``: the checkpoint itself).

    ``beside`` are other tags of the run (paths below the run root): with pipeline layers or
    experts, which no file counts, theirs tell whether some are missing here.
    """
    names = proof.tree.files(proof.at(below))
    models = [name for name in names if _MODEL.fullmatch(name)]
    facts = _read_facts(proof, below, models, depth)
    if facts is None:
        _tell_unknown_set(proof, below, names, depth)
        return Tag()
    wanted = _model_names(names, facts)
    _prove_parts(proof, below, wanted, names, facts, depth)
    if depth is Depth.DEEP:
        _compare_steps(proof, below, wanted, facts)
    parts = _optimizer_names(proof, below, names, facts)
    _prove_parts(proof, below, parts, names, facts, depth)
    for pattern, word in _FAMILIES:
        _prove_family(proof, below, names, pattern, word, beside, depth)
    _take_offloaded(proof, below)
    common = next((name for name in models if name.startswith("mp_rank_")), None)
    return Tag(
        step=facts.step,
        world_size=facts.dp * facts.mp,
        common_file=None if common is None else join(below, common),
    )


def _read_facts(proof: Proof, below: str, models: Sequence[str], depth: Depth) -> _Facts | None:
    """What the first model states file that can be read says."""
    for name in models:
        path = join(below, name)
        proof.need(path)
        proof.prove_zip(path, depth)
        facts = None if proof.refused(path) else _facts_in(proof, path)
        if facts is not None:
            return facts
    return None


def _facts_in(proof: Proof, path: str) -> _Facts | None:
    try:
        scalars = torch_facts(proof.tree, proof.at(path), _KEYS).scalars
    except Malformed as error:
        proof.refuse_malformed(path, error)
        return None
    dp = _count(scalars, "dp_world_size")
    if dp is None:
        proof.refuse(Reason.TORN, path, "says no dp_world_size")
        return None
    pipeline = _count(scalars, "checkpoint_parallel_dimensions.pp_degree") or 1
    tensor = _count(scalars, "checkpoint_parallel_dimensions.tp_degree") or 1
    # A pipeline's mp_world_size is pp x tp, one of Megatron's is tp alone.
    mp = max(_count(scalars, "mp_world_size") or 1, pipeline * tensor)
    if dp * mp > MAX_RANKS:
        proof.refuse(Reason.TORN, path, f"says {dp} x {mp} ranks: not believable")
        return None
    stage = scalars.get("ds_config.zero_optimization.stage")
    bf16 = (scalars.get("ds_config.bf16.enabled"), scalars.get("ds_config.bfloat16.enabled"))
    return _Facts(
        step=_count(scalars, "global_steps", least=0),
        dp=dp,
        mp=mp,
        stage=stage if isinstance(stage, int) else None,
        is_bf16=True in bf16,
    )


def _count(scalars: Mapping[str, Scalar], key: str, *, least: int = 1) -> int | None:
    value = scalars.get(key)
    return value if type(value) is int and value >= least else None


def _model_names(names: Sequence[str], facts: _Facts) -> list[str]:
    partitioned = any(name.startswith("zero_pp_rank_") and _MODEL.fullmatch(name) for name in names)
    ranks = range(facts.mp)
    if partitioned or facts.stage == 3:
        return [
            f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_model_states.pt"
            for mp, dp in product(ranks, range(facts.dp))
        ]
    return [f"mp_rank_{mp:02d}_model_states.pt" for mp in ranks]


def _optimizer_names(proof: Proof, below: str, names: Sequence[str], facts: _Facts) -> list[str]:
    """One part per rank with ZeRO; the prefix from those seen, else from the configuration."""
    prefixes = sorted({m["prefix"] for m in map(_OPTIM.fullmatch, names) if m})
    if len(prefixes) > 1:
        text = f"optimizer parts under two names ({', '.join(prefixes)}): of two saves"
        proof.refuse(Reason.TORN, below, text)
    if not prefixes and not facts.stage:
        if facts.stage is None or facts.is_bf16:
            text = "no optimizer part is here, and nothing tells whether there should be any"
            proof.refuse(Reason.UNPROVEN, below, f"{text}; declare a rule or commit it")
        return []
    if not prefixes:
        prefixes = ["bf16_" if facts.is_bf16 else ""]
    return [
        f"{prefixes[0]}zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt"
        for mp, dp in product(range(facts.mp), range(facts.dp))
    ]


def _prove_parts(
    proof: Proof,
    below: str,
    wanted: Sequence[str],
    names: Sequence[str],
    facts: _Facts,
    depth: Depth,
) -> None:
    because = _ranks_here(names, facts.dp * facts.mp)
    for name in wanted:
        path = join(below, name)
        if proof.is_member(path):
            continue
        proof.need(path, because=because)
        proof.prove_zip(path, depth)


def _compare_steps(proof: Proof, below: str, models: Sequence[str], facts: _Facts) -> None:
    """All model states must be of one step: a tag saved again in place can mix two."""
    for name in models:
        path = join(below, name)
        other = _facts_in(proof, path) if proof.has(path) and not proof.refused(path) else None
        if other is not None and other.step != facts.step:
            text = f"says global_steps {other.step} where another says {facts.step}"
            proof.refuse(Reason.TORN, path, f"{text}: parts of two saves")


def _ranks_here(names: Sequence[str], world_size: int | None) -> str:
    """``ranks 0,1 of 4 are here``, counted by optimizer parts where there are any."""
    parts = [m for m in map(_OPTIM.fullmatch, names) if m]
    parts = parts or [m for m in map(_MODEL.fullmatch, names) if m]
    of = "?" if world_size is None else world_size
    if not parts:
        return f"none of {of} ranks is here"
    if len({(m["mp"], m["dp"] is None) for m in parts}) > 1:
        return f"{len(parts)} of {of} ranks are here"
    ranks = sorted(int(m["dp"] or m["mp"]) for m in parts)
    told = ",".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if ranks[8:] else "")
    several = len(ranks) > 1
    return f"rank{'s' * several} {told} of {of} {'are' if several else 'is'} here"


def _tell_unknown_set(proof: Proof, below: str, names: Sequence[str], depth: Depth) -> None:
    """No model states file says how many ranks wrote: whatever is there cannot be the proof."""
    for name in names:
        if _OPTIM.fullmatch(name):
            proof.need(join(below, name))
            proof.prove_zip(join(below, name), depth)
    text = f"no model states file that tells the full set: {_ranks_here(names, None)}"
    proof.refuse(Reason.MISSING_SHARD, below, text)


def _prove_family(
    proof: Proof,
    below: str,
    names: Sequence[str],
    pattern: re.Pattern[str],
    word: str,
    beside: Iterable[str],
    depth: Depth,
) -> None:
    """Files of which only other saves tell how many there are: no holes, none that they have."""
    present = {name for name in names if pattern.fullmatch(name)}
    others: dict[str, str] = {}
    for directory in beside:
        others |= {n: directory for n in proof.tree.files(directory) if pattern.fullmatch(n)}
    if not present and not others:
        return
    for name in sorted(_filled(present, pattern) | others.keys()):
        path = join(below, name)
        proof.need(path, because=f"{others[name]} has it" if name in others else "a gap")
        proof.prove_zip(path, depth)
    if not others:
        text = f"nothing on disk tells how many {word} there are, and no other save to compare"
        proof.refuse(Reason.UNPROVEN, below, f"{text}; declare a rule or commit it")


def _filled(present: Iterable[str], pattern: re.Pattern[str]) -> set[str]:
    """Every name whose numbers each occur in some name that is present."""
    rows = [match.groups() for match in map(pattern.fullmatch, present) if match]
    columns = [sorted(set(column)) for column in zip(*rows, strict=True)]
    size = 1
    for column in columns:
        size *= len(column)
    if size > MAX_RANKS:
        return set(present)
    return {"".join(pieces) for pieces in product(*columns)} if columns else set()


def _take_offloaded(proof: Proof, below: str) -> None:
    """Tensors that lay on NVMe are copied beside the parts; no file lists them."""
    where = join(below, _OFFLOADED)
    if not proof.tree.is_dir(proof.at(where)):
        return
    for path in proof.tree.files_below(proof.at(where)):
        proof.need(join(where, path), min_bytes=0)
    text = "nothing on disk tells which offloaded tensors there are; declare a rule or commit it"
    proof.refuse(Reason.UNPROVEN, where, text)
