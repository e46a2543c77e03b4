"""Files that name the number of ranks: ``<stem>_world_size_<W>_rank_<R>.pt`` (FSDP, verl)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ckptgov.layouts.base import Claim, Tree, join, split
from ckptgov.layouts.beside import MAX_RANKS, neighbours
from ckptgov.layouts.names import is_staging, step_of_name, step_of_path
from ckptgov.layouts.proof import Proof
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Depth, Found, Reason, Sighting

SIZED = re.compile(
    r"(?P<stem>.*?)_?world_size_(?P<size>[0-9]{1,6})_rank_(?P<rank>[0-9]{1,6})(?P<end>\.(?:pt|pth|bin))"
)
_VARIANT = re.compile(r"world_size_([0-9]{1,6})")
_TORCH = (".pt", ".pth", ".ckpt")


def anchor_of(tree: Tree, directory: str) -> str | None:
    """The step-named directory, here or nearest above, beneath which ranks name their number."""
    step_dir = _step_dir(directory)
    return step_dir if step_dir is not None and _sized_below(tree, step_dir) else None


def claim_sized(tree: Tree, directory: str, layout: str) -> Claim | None:
    """One candidate per number of ranks, called by the step-named directory (or this one)."""
    step_dir = _step_dir(directory)
    if step_dir not in (None, directory):
        return None
    is_step = step_dir is not None
    paths = _sized_below(tree, directory) if is_step else _sized_here(tree, directory)
    if not paths:
        return None
    by_size: dict[int, list[str]] = {}
    for path in paths:
        by_size.setdefault(_size(path), []).append(path)
    if len(by_size) == 1 and (is_step or not tree.dirs(directory)) and directory:
        return Claim((_found(directory, layout, next(iter(by_size)), ()),), whole=True)
    # What lies beside the ranks' files (verl's data.pt) belongs to the newest whole set, if to any.
    whole = [size for size, group in by_size.items() if _is_full(size, group)]
    owner = max(whole, key=lambda size: (_newest_ns(tree, by_size[size]), size), default=None)
    beside = _beside(tree, directory) if is_step else []
    return Claim(
        tuple(
            _found(directory, layout, size, [*group, *(beside if size == owner else ())])
            for size, group in sorted(by_size.items())
        )
    )


def world_size_of(found: Found) -> int | None:
    """The number of ranks of a candidate made here; None for any other."""
    match = _VARIANT.fullmatch(found.variant)
    return int(match[1]) if match else None


def examine_sized(tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found]) -> Sighting:
    """Every rank of every stem; and every stem that all other steps have."""
    proof = Proof(tree, found)
    size = world_size_of(found) or 0
    names = _member_names(proof, size)
    stems = _stems(names)
    for stem, ranks in sorted(stems.items()):
        where, _, end = stem
        because = f"{len(ranks)} of {size} ranks are here"
        if size > MAX_RANKS:
            proof.refuse(Reason.TORN, where, f"{because}: not believable")
            continue
        for rank in range(size):
            path = join(where, f"{_start(stem)}world_size_{size}_rank_{rank}{end}")
            proof.need(path, because=because)
            proof.prove_zip(path, depth)
    for name in names:
        if not proof.is_member(name):
            proof.need(name)
            proof.prove_zip(name, depth)
    _compare_stems(proof, set(stems), siblings)
    return proof.sighting(world_size=size, reshardable=False)


_Stem = tuple[str, str, str]  # directory, text before the number of ranks, suffix


def _start(stem: _Stem) -> str:
    return f"{stem[1]}_" if stem[1] else ""


def _step_dir(directory: str) -> str | None:
    while directory and step_of_name(split(directory)[1]) is None:
        directory = split(directory)[0]
    return directory or None


def _sized_here(tree: Tree, directory: str) -> list[str]:
    return [join(directory, n) for n in tree.files(directory) if SIZED.fullmatch(n)]


def _sized_below(tree: Tree, directory: str) -> list[str]:
    """Paths below the run root of those that have no nearer step-named directory."""
    paths = (join(directory, below) for below in tree.files_below(directory))
    return [p for p in paths if SIZED.fullmatch(split(p)[1]) and _is_own(p, directory)]


def _is_own(path: str, directory: str) -> bool:
    above = split(path)[0]
    return _step_dir(above) in (directory, None) and not any(map(is_staging, above.split("/")))


def _beside(tree: Tree, directory: str) -> list[str]:
    paths = (join(directory, below) for below in tree.files_below(directory))
    return [
        path
        for path in paths
        if path.endswith(_TORCH)
        and _is_own(path, directory)
        and not SIZED.fullmatch(split(path)[1])
        and not is_staging(split(path)[1])
    ]


def _size(path: str) -> int:
    match = SIZED.fullmatch(split(path)[1])
    return int(match["size"]) if match else 0


def _is_full(size: int, paths: Sequence[str]) -> bool:
    return all(len(ranks) >= size for ranks in _stems(paths).values())


def _newest_ns(tree: Tree, paths: Iterable[str]) -> int:
    found = [0]
    for path in paths:
        with suppress(FileNotFoundError):  # it went away meanwhile
            found.append(tree.stat(path).mtime_ns)
    return max(found)


def _found(directory: str, layout: str, size: int, files: Sequence[str]) -> Found:
    step, kind = step_of_path(directory) or (None, StepKind.NONE)
    variant = f"world_size_{size}"
    name = directory or variant
    files = tuple(files)
    return Found(name=name, layout=layout, step=step, step_kind=kind, files=files, variant=variant)


def _member_names(proof: Proof, size: int) -> list[str]:
    """Paths below the checkpoint; those of another number of ranks are none."""
    if proof.found.files:
        lead = f"{proof.root}/" if proof.root else ""
        return [path.removeprefix(lead) for path in proof.found.files]
    root = proof.root
    paths = [*_sized_below(proof.tree, root), *_sized_here(proof.tree, root)]
    own = {path for path in paths if _size(path) == size}
    if step_of_name(split(root)[1]) is not None:
        own.update(_beside(proof.tree, root))
    return sorted(path.removeprefix(f"{root}/") for path in own)


def _stems(names: Iterable[str]) -> dict[_Stem, set[int]]:
    stems: dict[_Stem, set[int]] = {}
    for path in names:
        where, name = split(path)
        match = SIZED.fullmatch(name)
        if match:
            stems.setdefault((where, match["stem"], match["end"]), set()).add(int(match["rank"]))
    return stems


def _compare_stems(proof: Proof, stems: set[_Stem], siblings: Sequence[Found]) -> None:
    """A stem that every other step has and this one lacks (all its optimizer parts) is missing."""
    others: dict[str, set[_Stem]] = {}
    for sibling in neighbours(proof.found, siblings):
        if world_size_of(sibling) is not None:
            files = sibling.files or _sized_below(proof.tree, sibling.name)
            names = (path.removeprefix(f"{sibling.name}/") for path in files)
            others.setdefault(sibling.name, set()).update(_stems(names))
    if not others or any(other <= stems for other in others.values()):
        return
    for where, text, _ in sorted(set.intersection(*others.values()) - stems):
        evidence = f"no {text}_* part is here, and every other step has them"
        proof.refuse(Reason.MISSING_SHARD, where, evidence)
