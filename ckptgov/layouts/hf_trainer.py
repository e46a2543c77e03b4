"""Hugging Face Trainer: ``checkpoint-N``, or any directory with its state or adapter files.

Rank 0 writes model, optimizer, scheduler, its own random state and ``trainer_state.json`` in this
order, nothing is fsynced and there is no barrier: ``trainer_state.json`` marks that rank 0 is done
and says nothing about the ``rng_state_<r>.pth`` of the others. Their number stands nowhere in JSON;
it comes from DeepSpeed's files where they are inside, else from the other checkpoints of the run
(transformers/trainer.py). The Trainer itself takes the highest name, whole or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptgov.layouts.base import Claim, Tree, split
from ckptgov.layouts.beside import neighbours
from ckptgov.layouts.content import json_object
from ckptgov.layouts.dcp import found_dir
from ckptgov.layouts.dcp_set import is_dcp_dir
from ckptgov.layouts.deepspeed_set import is_tag_dir
from ckptgov.layouts.hf_inside import Inside, is_fsdp_dir, prove_inside, tag_dirs
from ckptgov.layouts.hf_state import STATE, metrics_at, note_best, state_step
from ckptgov.layouts.hf_weights import prove_configs, prove_weights, weight_files
from ckptgov.layouts.names import step_of_name
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.random_states import prove_ranks, ranks_in
from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

_NUMBERED = re.compile(r"checkpoint-([0-9]{1,18})")
_RNG = re.compile(r"rng_state_([0-9]{1,7})\.pth")
_RNG_ALONE = "rng_state.pth"
_ARGUMENTS = "training_args.bin"
_OPTIMIZER = "optimizer.pt"
_OPTIMIZER_FSDP = "optimizer.bin"
_SCHEDULER = "scheduler.pt"
_SCALER = "scaler.pt"
_ADAPTER = "adapter_config.json"
_TRACES = {"config.json", "generation_config.json", _ARGUMENTS, _OPTIMIZER, _SCHEDULER, _RNG_ALONE}
_ACCELERATE = re.compile(r"random_states_[0-9]+\.pkl")


class HfTrainerLayout:
    """A directory that ``transformers.Trainer`` or a trainer built on it saved."""

    name = "hf-trainer"

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """By its name and any trace of the Trainer, or by the state or adapter files in it."""
        if not _is_checkpoint(tree, directory):
            return None
        return Claim((found_dir(directory, self.name),), whole=True)

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """Weights, what resuming needs beside them, the state file, and each file's format."""
        proof = Proof(tree, found)
        beside = [other.name for other in neighbours(found, siblings)]
        inside = prove_inside(proof, depth, beside=beside)
        has_weights = _prove_model(proof, inside, depth)
        ranks = _prove_resume(proof, inside, beside, depth)
        state = _prove_state(proof, is_needed=ranks is not None or _number(found) is not None)
        for name in (_ARGUMENTS, _SCALER):
            _prove_if_there(proof, name, depth)
        proof.written_after(STATE, _by_rank_0(proof))
        step, kind = _step(proof, found, state)
        if state is not None:
            note_best(proof, state, siblings)
        resume = (Purpose.RESUME,) if ranks is not None else ()
        return proof.sighting(
            step=step,
            step_kind=kind,
            purposes=(*resume, Purpose.WEIGHTS) if has_weights or not resume else resume,
            world_size=inside.world_size or ranks or None,
            reshardable=inside.reshardable,
            common_file=STATE,
            metrics=metrics_at(state) if state is not None else (),
        )

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """None: the Trainer takes the highest ``checkpoint-N`` by its name."""
        return ()


def _is_checkpoint(tree: Tree, directory: str) -> bool:
    files = tree.files(directory)
    if any(map(_ACCELERATE.fullmatch, files)):
        return False
    if STATE in files or (_ADAPTER in files and weight_files(tree, directory)):
        return True
    if not _NUMBERED.fullmatch(split(directory)[1]):
        return False
    if is_dcp_dir(tree, directory) or is_tag_dir(tree, directory):
        return False
    return bool(
        _TRACES.intersection(files)
        or any(map(_RNG.fullmatch, files))
        or weight_files(tree, directory)
        or tag_dirs(tree, directory)
        or is_fsdp_dir(tree, directory)
    )


def _number(found: Found) -> int | None:
    match = _NUMBERED.fullmatch(split(found.name)[1])
    return int(match[1]) if match else None


def _prove_model(proof: Proof, inside: Inside, depth: Depth) -> bool:
    """Whether there are weights that load without the training framework's own state."""
    has_files = prove_weights(proof, "", depth)
    prove_configs(proof, "")
    names = proof.tree.files(proof.root)
    if any(name.startswith("adapter_model") for name in names) and not proof.has(_ADAPTER):
        proof.need(_ADAPTER, because="an adapter is not loaded without it")
    if not has_files and not inside.holds_weights and not inside.is_deepspeed:
        text = "no model weights are here (model.safetensors, its index, an adapter, ...)"
        proof.refuse(Reason.MISSING_SHARD, "", text)
    return has_files or inside.holds_weights


def _prove_resume(proof: Proof, inside: Inside, beside: Sequence[str], depth: Depth) -> int | None:
    """What resuming needs beside the model; the number of ranks, None for weights alone.

    A save with ``save_only_model`` leaves no trace of it. Without optimizer or scheduler the
    Trainer starts both anew and says nothing, so either alone demands the other.
    """
    seen = ranks_in(proof.tree, proof.root, _RNG)
    names = (_OPTIMIZER, _OPTIMIZER_FSDP, _SCHEDULER, _RNG_ALONE)
    if not (seen or inside.holds_optimizer or any(map(proof.has, names))):
        return None
    if not inside.holds_optimizer:
        is_full = inside.is_fsdp or not proof.has(_OPTIMIZER)
        name = _OPTIMIZER_FSDP if is_full and proof.has(_OPTIMIZER_FSDP) else _OPTIMIZER
        proof.need(name, because="resuming would start the optimizer anew")
        proof.prove_zip(name, depth)
    if not inside.is_deepspeed or proof.has(_SCHEDULER):
        proof.need(_SCHEDULER, because="resuming would start the schedule anew")
        proof.prove_zip(_SCHEDULER, depth)
    return _prove_random(proof, inside, beside, depth, has_numbered=bool(seen))


def _prove_random(
    proof: Proof, inside: Inside, beside: Sequence[str], depth: Depth, *, has_numbered: bool
) -> int:
    """One process writes ``rng_state.pth``, several one each with their rank."""
    exact = inside.world_size if inside.is_deepspeed else None
    if exact == 1 or (exact is None and proof.has(_RNG_ALONE) and not has_numbered):
        proof.need(_RNG_ALONE, because="one rank saved")
        proof.prove_zip(_RNG_ALONE, depth)
        return 1
    name_of = "rng_state_{}.pth"
    count = prove_ranks(proof, _RNG, name_of, depth, world_size=exact, beside=beside)
    if not count:
        proof.need(_RNG_ALONE, because="no rank's random state is here")
    return count


def _prove_state(proof: Proof, *, is_needed: bool) -> dict[str, object] | None:
    if not is_needed and not proof.has(STATE):
        return None
    proof.need(STATE, is_marker=True)
    return json_object(proof, STATE)


def _prove_if_there(proof: Proof, name: str, depth: Depth) -> None:
    if proof.has(name):
        proof.need(name)
        proof.prove_zip(name, depth)


def _by_rank_0(proof: Proof) -> list[str]:
    """Members that were whole before the state file was begun: all but other ranks' random state.

    Small text is left out: people edit it.
    """
    return [
        path
        for path in proof.tree.files_below(proof.root)
        if proof.is_member(path)
        and not _RNG.fullmatch(path)
        and not path.endswith((".json", ".jinja", ".txt", "/latest"))
    ]


def _step(
    proof: Proof, found: Found, state: dict[str, object] | None
) -> tuple[int | None, StepKind]:
    """The name's step, which the Trainer goes by; the state's where the name carries none."""
    step, number = state_step(state), _number(found)
    if state is not None and step is None:
        proof.refuse(Reason.TORN, STATE, "says no global_step")
    if step is not None and number is not None and step != number:
        text = f"says global_step {step}, the directory's name says {number}"
        proof.refuse(Reason.TORN, STATE, text)
    if step is not None and step_of_name(split(found.name)[1]) is None:
        return step, StepKind.STEP
    return found.step, found.step_kind


LAYOUT = HfTrainerLayout()
