"""All layouts, in the order in which they are asked: who claims first, owns the files.

Declared rules come first, since a person said so. Then the layouts that wrap others (NeMo holds
Megatron's directory, a Trainer's holds DeepSpeed's or accelerate's, and these hold DCP's), then
the ones with an unmistakable marker, then those that only know file formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptgov.errors import Malformed, StorageError
from ckptgov.layouts import (
    accelerate,
    dcp,
    dcp_hf,
    declared,
    deepspeed,
    hf_trainer,
    lightning,
    megatron,
    orbax,
    safetensors_dir,
    torch_files,
    torchsnapshot,
)
from ckptgov.layouts.base import Claim, Layout, Tree, join, split
from ckptgov.layouts.names import is_staging, step_of_name
from ckptgov.layouts.proof import Proof
from ckptgov.model.facts import Depth, Finding, Found, Pointer, Reason, Sighting

LAYOUTS: tuple[Layout, ...] = (
    declared.LAYOUT,
    lightning.LAYOUT,
    megatron.LAYOUT,
    hf_trainer.LAYOUT,
    accelerate.LAYOUT,
    deepspeed.LAYOUT,
    orbax.LAYOUT,
    torchsnapshot.LAYOUT,
    dcp_hf.LAYOUT,
    dcp.LAYOUT,
    safetensors_dir.LAYOUT,
    torch_files.LAYOUT,
)

_BY_NAME = {layout.name: layout for layout in LAYOUTS}
_FORMAT_ONLY = frozenset({safetensors_dir.LAYOUT.name, torch_files.LAYOUT.name})


def find_all(tree: Tree, directory: str) -> Claim:
    """Which checkpoints ``directory`` is or holds as files, over all layouts.

    Declared rules are those of the tree's settings. The run root itself (``""``) is never one
    checkpoint: it has no name to be called by; neither is a stepless directory that holds whole
    checkpoints of its own (a Trainer's output directory with the final weights in it).
    """
    found: list[Found] = []
    taken: set[str] = set()
    for layout in LAYOUTS:
        claim = layout.find(tree, directory)
        if claim is None:
            continue
        if claim.whole:
            if found and not _outweighs(layout, found):
                continue
            is_run = directory == "" or _is_run(tree, directory, claim)
            return Claim(()) if is_run else claim
        for candidate in claim.found:
            files = set(candidate.files or (candidate.name,))
            if not files & taken:
                taken |= files
                found.append(candidate)
    return Claim(tuple(found))


def _outweighs(layout: Layout, found: Sequence[Found]) -> bool:
    """Whether a whole directory hides the files in it that others claimed before.

    An index or marker does: what else lies there is an extra. File formats alone do not, and
    nothing does where a person declared the files to be checkpoints.
    """
    is_declared = any(candidate.layout == declared.LAYOUT.name for candidate in found)
    return layout.name not in _FORMAT_ONLY and not is_declared


def examine(tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()) -> Sighting:
    """Prove one candidate with the layout that claimed it.

    Bytes that do not decode, files that went away and files that may not be read become findings:
    one bad checkpoint never hides the others. Never raises for what the candidate holds.
    """
    try:
        return _BY_NAME[found.layout].examine(tree, found, depth, siblings=siblings)
    except Malformed as error:
        return _refused(tree, found, Reason.TORN, error.message)
    except FileNotFoundError as error:
        text = f"went away while it was looked at: {error.filename or error}"
        return _refused(tree, found, Reason.BEING_WRITTEN, text)
    except (StorageError, NotADirectoryError, IsADirectoryError) as error:
        return _refused(tree, found, Reason.UNREADABLE, str(error))


def pointers(tree: Tree) -> tuple[Pointer, ...]:
    """What every framework's own "latest" in the run root says."""
    return tuple(pointer for layout in LAYOUTS for pointer in layout.pointers(tree))


def _refused(tree: Tree, found: Found, reason: Reason, text: str) -> Sighting:
    proof = Proof(tree, found)
    path, colon, evidence = text.partition(": ")
    is_below = colon and (path == found.name or path.startswith(found.name + "/"))
    proof.findings.append(
        Finding(reason, path, evidence) if is_below else Finding(reason, found.name, text)
    )
    return proof.sighting_without_files()


def _is_run(tree: Tree, directory: str, claim: Claim) -> bool:
    """Whether a directory claimed as one checkpoint rather is a run that holds some.

    So it is when its own name carries no step and a step-named directory in it is a checkpoint of
    the same layout, or of any layout where only the file format spoke for the claim. A
    framework's checkpoint may well hold another framework's (DeepSpeed's tag in a Trainer's).
    """
    if step_of_name(split(directory)[1]) is not None:
        return False
    layout = claim.found[0].layout
    asked: Iterable[Layout] = LAYOUTS if layout in _FORMAT_ONLY else (_BY_NAME[layout],)
    for name in tree.dirs(directory):
        if step_of_name(name) is None or is_staging(name):
            continue
        inner = (other.find(tree, join(directory, name)) for other in asked)
        if any(claimed is not None and claimed.whole for claimed in inner):
            return True
    return False
