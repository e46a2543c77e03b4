"""torch.save files that no framework's directory holds. Which of them are one checkpoint?

Only names tell, so only what a name says outright is proven:

* ``<stem>_world_size_<W>_rank_<R>.pt`` (FSDP helpers, verl): W says how many ranks there are. All
  stems of one W beneath a step-named directory are one checkpoint, called by that directory; a
  group of another W there is another candidate of the same name.
* ``<stem>-shard<N>.pt`` (fairseq): whole when contiguous from 0 and no group beside it has more;
  with no group beside it, unproven.
* Other files numbered by rank, and several files under one step name: one candidate, unproven.
* A single ``.pt``, ``.pth`` or ``.ckpt`` file whose own name carries a step (its last integer as
  an ordinal unless a word says ``step``), or which lies alone in a directory that carries one.
* A file without any step is a checkpoint only if its name says so (``ckpt``, ``model``, ``last``,
  ``best``, ...); whatever else torch.save wrote there may be data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptgov.layouts.base import Claim, Tree, join, split
from ckptgov.layouts.beside import MAX_RANKS
from ckptgov.layouts.content import refuse_whole
from ckptgov.layouts.names import Step, is_staging, last_integer, step_of_name, step_of_path
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.torch_ranks import anchor_of, claim_sized, examine_sized, world_size_of
from ckptgov.layouts.torch_zip import LEGACY_HEAD
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

NAME = "torch"
SUFFIXES = (".pt", ".pth", ".ckpt")
_SHARD = re.compile(r"(?P<stem>.+)-shard(?P<number>[0-9]{1,7})\.(?:pt|pth|ckpt|bin)")
_RANKED = re.compile(
    r"(?P<stem>|.*?[-_.])(?:(?:global|local|mp|dp|tp|pp)?_?rank|shard|part)[-_]?"
    r"(?P<number>[0-9]{1,7})\.(?:pt|pth|ckpt|bin)",
    re.IGNORECASE,
)
_SAYS_SO = re.compile(r"ckpt|checkpoint|model|weights|state|last|latest|best|final", re.IGNORECASE)
_TRACKER = "latest_checkpointed_iteration.txt"
_UNPROVEN = "nothing on disk tells its full set: declare a rule or commit it"
_MAX_TOLD = 16


class TorchFilesLayout:
    """Files of torch.save, one by one or in groups."""

    name = NAME

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """The groups and files of one directory; with a world size, of all beneath it."""
        sized = claim_sized(tree, directory, NAME)
        if sized is not None:
            return sized
        names = _torch_names(tree, directory)
        if not names or anchor_of(tree, directory) is not None:
            return None  # ranks' files are told by the step-named directory above
        found = _candidates(directory, names)
        if len(found) == 1 and found[0].name == directory and not tree.dirs(directory):
            one = found[0]
            whole = Found(name=directory, layout=NAME, step=one.step, step_kind=one.step_kind)
            return Claim((whole,), whole=True)
        return Claim(tuple(found)) if found else None

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """Each file's zip, the numbering, and what the groups beside it have."""
        if world_size_of(found) is not None:
            return examine_sized(tree, found, depth, siblings=siblings)
        proof = Proof(tree, found)
        if found.is_file:
            proof.need("")
            proof.prove_zip("", depth)
            _compare_beside(proof)
            return proof.sighting()
        names = _members(proof)
        for name in names:
            proof.need(name)
            proof.prove_zip(name, depth)
        stems = {match["stem"] if match else None for match in map(_SHARD.fullmatch, names)}
        if found.files and len(stems) == 1 and None not in stems:
            _prove_shards(proof, names)
        else:
            _tell_gaps(proof, names)
            refuse_whole(proof, Reason.UNPROVEN, _UNPROVEN)
        return proof.sighting()

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """verl's tracker: the number of the newest ``global_step_<N>``."""
        if not tree.is_file(_TRACKER):
            return ()
        with tree.open(_TRACKER) as file:
            text = file.read_at(0, 64).decode("utf-8", "replace").strip()
        name = f"global_step_{text}"
        is_there = text.isascii() and text.isdigit() and tree.is_dir(name)
        return (Pointer(_TRACKER, text, name),) if is_there else ()


def _torch_names(tree: Tree, directory: str) -> list[str]:
    """Names in a directory that may be checkpoints or shards of one.

    ``.bin`` is anybody's suffix: such files count when one of them looks like torch's.
    """
    names = [name for name in tree.files(directory) if not is_staging(name)]
    bins = [name for name in names if name.endswith(".bin") and _numbered(name) is not None]
    if bins and not any(_looks_like_torch(tree, join(directory, one)) for one in bins[:_MAX_TOLD]):
        bins = []
    ours = {name for name in names if name.endswith(SUFFIXES)} | set(bins)
    return [name for name in names if name in ours]


def _looks_like_torch(tree: Tree, path: str) -> bool:
    with tree.open(path) as file:
        return file.read_at(0, len(LEGACY_HEAD)).startswith((b"PK\x03\x04", LEGACY_HEAD))


def _numbered(name: str) -> re.Match[str] | None:
    return _SHARD.fullmatch(name) or _RANKED.fullmatch(name)


def _candidates(directory: str, names: Sequence[str]) -> list[Found]:
    """Group what differs in the number of its shard or rank only; the rest by step.

    In a directory whose path carries a step, whatever carries none of its own is one candidate.
    """
    is_step = step_of_path(directory) is not None
    groups: dict[str, list[str]] = {}
    together: list[str] = []
    found: list[Found] = []
    for name in names:
        match = _numbered(name)
        stem = match["stem"].rstrip("-_.") if match else name
        if is_step and step_of_name(stem) is None:
            together.append(name)
        elif match:
            groups.setdefault(stem, []).append(name)
        elif (single := _single(directory, name)) is not None:
            found.append(single)
    found += [_group(directory, stem, group) for stem, group in groups.items()]
    return [*found, *_together(directory, together)]


def _single(directory: str, name: str) -> Found | None:
    step = last_integer(name)
    if step is None and not _SAYS_SO.search(name):
        return None
    return _found(join(directory, name), step, is_file=True)


def _group(directory: str, stem: str, names: Sequence[str]) -> Found:
    """Called by what the names have in common, else by their directory."""
    name = join(directory, stem) or "ranks"
    paths = tuple(join(directory, name) for name in names)
    return _found(name, last_integer(stem) if stem else None, files=paths)


def _together(directory: str, names: Sequence[str]) -> list[Found]:
    step = step_of_path(directory)
    if len(names) == 1 and _numbered(names[0]) is None:
        return [_found(join(directory, names[0]), step, is_file=True)]
    paths = tuple(join(directory, name) for name in names)
    return [_found(directory, step, files=paths)] if names else []


def _found(
    name: str, step: Step | None, *, is_file: bool = False, files: tuple[str, ...] = ()
) -> Found:
    number, kind = step or (None, StepKind.NONE)
    return Found(name=name, layout=NAME, step=number, step_kind=kind, is_file=is_file, files=files)


def _members(proof: Proof) -> list[str]:
    """Names in the directory that all of them lie in."""
    if proof.found.files:
        return [split(path)[1] for path in proof.found.files]
    return _torch_names(proof.tree, proof.root)


def _compare_beside(proof: Proof) -> None:
    """A file alone in its step's directory, where another step has the same and more."""
    directory, name = split(proof.found.name)
    above, step_name = split(directory)
    if step_of_name(name) is not None or step_of_name(step_name) is None:
        return
    for other in proof.tree.dirs(above):
        if other == step_name or step_of_name(other) is None:
            continue
        names = _torch_names(proof.tree, join(above, other))
        if name in names and len(names) > 1:
            more = ", ".join(sorted(set(names) - {name})[:3])
            proof.refuse(Reason.MISSING_SHARD, "", f"is alone; {other} also has {more}")
            return


def _prove_shards(proof: Proof, names: Sequence[str]) -> None:
    """Contiguous from 0, and no group in the directory has more; alone, it proves nothing."""
    counts: dict[str, int] = {}
    unfinished: list[str] = []
    own = _SHARD.fullmatch(names[0])
    assert own is not None
    for name in proof.tree.files(proof.root):
        match = _SHARD.fullmatch(name)
        if match:
            counts[match["stem"]] = max(counts.get(match["stem"], 0), int(match["number"]) + 1)
        elif is_staging(name) and name.startswith(f"{own['stem']}-shard"):
            unfinished.append(name)
    have = counts.pop(own["stem"])
    most = max(counts, key=lambda stem: counts[stem], default=None)
    want = max(have, counts[most] if most is not None else 0)
    because = f"{most} has {want}" if most is not None and want > have else "a gap"
    suffix = names[0][own.end("number") :]
    if want > MAX_RANKS:
        refuse_whole(proof, Reason.TORN, f"{want} shards by the highest number: not believable")
        return
    for number in range(want):
        name = f"{own['stem']}-shard{number}{suffix}"
        if not proof.is_member(name):
            proof.need(name, because=because)
    for name in unfinished:
        proof.refuse(Reason.BEING_WRITTEN, name, "has a temporary name: never a shard")
    if most is None:
        text = "no other group beside it tells how many shards there are"
        refuse_whole(proof, Reason.UNPROVEN, f"{text}; declare a rule or commit it")


def _tell_gaps(proof: Proof, names: Sequence[str]) -> None:
    """Ranks below the highest one that have no file."""
    ranks: dict[tuple[str, str], set[int]] = {}
    for name, match in ((name, _numbered(name)) for name in names):
        if match:
            ends = (name[: match.start("number")], name[match.end("number") :])
            ranks.setdefault(ends, set()).add(int(match["number"]))
    for (start, end), seen in ranks.items():
        first = 1 if min(seen) == 1 else 0
        lost = sorted(set(range(first, min(max(seen), MAX_RANKS))) - seen)
        for number in lost[:_MAX_TOLD]:
            text = f"is missing: {len(seen)} of at least {max(seen) + 1 - first} are here"
            proof.refuse(Reason.MISSING_SHARD, f"{start}{number}{end}", text)


LAYOUT = TorchFilesLayout()
