"""PyTorch Lightning: one ``.ckpt`` file, a ``.ckpt`` directory of shards, and NeMo on top of it.

* A file is a torch zip with ``pytorch-lightning_version`` and ``global_step`` inside; the step in
  its name is only the default format of names. Between file systems it is copied, not renamed,
  so a cut one lies under its final name.
* A directory is a DCP directory plus ``meta.pt``, written last: ``.metadata`` alone is not enough.
* NeMo 2 writes ``<name>/weights/`` (megatron-core) and ``<name>/context/``. NeMo of any age keeps
  a file ``<name>-unfinished`` beside a checkpoint while it writes or deletes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ckptgov.errors import Malformed, StorageError
from ckptgov.layouts.base import Claim, Tree, join, split
from ckptgov.layouts.dcp import found_dir
from ckptgov.layouts.dcp_set import is_dcp_dir, prove_dcp
from ckptgov.layouts.megatron_set import COMMON, has_marker, prove_torch_dist
from ckptgov.layouts.names import NEGATIVE_MARKER, is_staging, step_of_path
from ckptgov.layouts.pickles import Scalar, Stored, TorchPickle
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.told_metrics import Metrics, metrics_in_name, own_name, told
from ckptgov.layouts.torch_zip import stored_number, torch_facts
from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

NAME = "lightning"
SUFFIX = ".ckpt"
META = "meta.pt"

_VERSION = "pytorch-lightning_version"
_KEYS = (_VERSION, "global_step", "epoch")
_OWN_NAME = re.compile(r"(?:\A|[-_/])(?:epoch|step)=[0-9]|(?:\A|/)last(?:-v[0-9]+)?\.ckpt\Z")
_RANK_DIR = re.compile(r"(?:mp|tp)_rank_.*")
_WEIGHTS, _CONTEXT = "weights", "context"


class Lightning:
    """A file or directory that Lightning's Trainer (or NeMo) saved."""

    name = NAME

    def find(self, tree: Tree, directory: str) -> Claim | None:
        if _is_distributed(tree, directory) or _is_nemo(tree, directory):
            return Claim((found_dir(directory, NAME),), whole=True)
        files = [
            _found_file(join(directory, name))
            for name in tree.files(directory)
            if name.endswith(SUFFIX)
            and not is_staging(name)
            and _is_own_file(tree, join(directory, name))
        ]
        return Claim(tuple(files)) if files else None

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        proof = Proof(tree, found)
        _refuse_marked(proof)
        if found.is_file:
            return _examine_file(proof, depth)
        if tree.is_dir(join(found.name, _WEIGHTS)):
            return _examine_nemo(proof, depth)
        return _examine_distributed(proof, depth)

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        return ()


def _is_distributed(tree: Tree, directory: str) -> bool:
    if not is_dcp_dir(tree, directory):
        return False
    return directory.endswith(SUFFIX) or tree.is_file(join(directory, META))


def _is_nemo(tree: Tree, directory: str) -> bool:
    weights = join(directory, _WEIGHTS)
    if not tree.is_dir(weights) or not is_dcp_dir(tree, weights):
        return False
    is_core = has_marker(tree, weights) or tree.is_file(join(weights, COMMON))
    is_marked = bool(directory) and tree.exists(_marker_of(directory))
    return is_core or is_marked or tree.is_dir(join(directory, _CONTEXT))


def _found_file(path: str) -> Found:
    step, kind = step_of_path(path) or (None, StepKind.NONE)
    return Found(name=path, layout=NAME, step=step, step_kind=kind, is_file=True)


def _is_own_file(tree: Tree, path: str) -> bool:
    """By the default names, which are told even when torn; otherwise by content."""
    if _OWN_NAME.search(path):
        return True
    try:
        return _VERSION in torch_facts(tree, path, ()).keys
    except StorageError:
        return True  # may not be read: claimed, so that this is told and not overlooked
    except (Malformed, FileNotFoundError):
        return False  # another layout may still claim it


def _refuse_marked(proof: Proof) -> None:
    """NeMo's negative marker beside the checkpoint forbids it, whatever else is there."""
    name = proof.found.name
    places = [_marker_of(name)]
    parent, file = split(name)
    if _RANK_DIR.fullmatch(split(parent)[1]):
        places.append(_marker_of(join(split(parent)[0], file)))
    for marker in places:
        if proof.tree.exists(marker):
            text = f"{split(marker)[1]} beside it says that it is not finished"
            proof.refuse(Reason.BEING_WRITTEN, "", text)


def _marker_of(name: str) -> str:
    stem = name.removesuffix(".nemo").removesuffix(SUFFIX).removesuffix("-EMA")
    return stem + NEGATIVE_MARKER


def _examine_file(proof: Proof, depth: Depth) -> Sighting:
    proof.need("")
    proof.prove_zip("", depth)
    facts = _facts(proof, "")
    if facts is not None and _VERSION not in facts.scalars:
        proof.refuse(Reason.UNPROVEN, "", f"holds no {_VERSION}: not known to be Lightning's")
    return _sighting(
        proof,
        facts.scalars if facts else {},
        _purposes(facts),
        reshardable=True,
        metrics=_metrics(proof, "", facts),
    )


def _examine_distributed(proof: Proof, depth: Depth) -> Sighting:
    proved = prove_dcp(proof, "", depth)
    proof.need(META, is_marker=True, because="is missing: written last, its writer is not done")
    proof.prove_zip(META, depth)
    if proved is not None:
        proof.written_after(META, [path for path in proved.members if path.endswith(".distcp")])
    facts = _facts(proof, META)
    return _sighting(
        proof,
        facts.scalars if facts else {},
        _purposes(None),
        world_size=proved.world_size if proved else None,
        reshardable=proved.reshardable if proved else None,
        metrics=_metrics(proof, META, facts),
    )


def _examine_nemo(proof: Proof, depth: Depth) -> Sighting:
    proved = prove_torch_dist(proof, _WEIGHTS, depth)
    context = join(proof.root, _CONTEXT)
    files = proof.tree.files_below(context) if proof.tree.is_dir(context) else ()
    for path in files:
        proof.need(join(_CONTEXT, path), min_bytes=0)
    if not files:
        text = "is missing: what NeMo needs to set the run up again lies in it"
        proof.refuse(Reason.MISSING_SHARD, _CONTEXT, text)
    return _sighting(
        proof,
        proved.common or {},
        _purposes(None),
        world_size=proved.world_size,
        reshardable=proved.reshardable,
        metrics=metrics_in_name(proof.found.name),
    )


def _facts(proof: Proof, path: str) -> TorchPickle | None:
    if not proof.has(path) or proof.refused(path):
        return None
    try:
        return torch_facts(proof.tree, proof.at(path), _KEYS, scores_of=own_name(proof.found.name))
    except Malformed as error:
        proof.refuse_malformed(path, error)
        return None


def _metrics(proof: Proof, path: str, facts: TorchPickle | None) -> Metrics:
    """What the callbacks keep it for, exactly; and what its name says, rounded as it is there."""
    found: list[tuple[str, str]] = []
    for monitor, score in facts.scores if facts is not None else ():
        value = None if isinstance(score, Stored) else str(score)
        if isinstance(score, Stored):
            with suppress(Malformed):  # of no use for a score; the file was proven elsewhere
                value = stored_number(proof.tree, proof.at(path), score)
        if value is not None:
            found.append((monitor, value))
    return told([*found, *metrics_in_name(proof.found.name)])


def _purposes(facts: TorchPickle | None) -> tuple[Purpose, ...]:
    """``save_weights_only`` leaves out the optimizer states."""
    if facts is not None and "optimizer_states" not in facts.keys:
        return (Purpose.WEIGHTS,)
    return (Purpose.RESUME, Purpose.WEIGHTS)


def _sighting(
    proof: Proof,
    scalars: Mapping[str, Scalar],
    purposes: tuple[Purpose, ...],
    *,
    world_size: int | None = None,
    reshardable: bool | None = None,
    metrics: Metrics = (),
) -> Sighting:
    """With the step that the content says, which is the one that counts."""
    step, kind = proof.found.step, proof.found.step_kind
    saved = scalars.get("global_step")
    if type(saved) is int and saved >= 0:
        if kind is StepKind.STEP and step != saved:
            proof.note("step", "", f"its name says step {step}, its content {saved}")
        step, kind = saved, StepKind.STEP
    return proof.sighting(
        step=step,
        step_kind=kind,
        purposes=purposes,
        world_size=world_size,
        reshardable=reshardable,
        metrics=metrics,
    )


LAYOUT = Lightning()
