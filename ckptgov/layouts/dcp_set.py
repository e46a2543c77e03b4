"""The set of files of one PyTorch DCP directory, wherever it lies inside a checkpoint.

DCP opens every ``__<rank>_<n>.distcp`` under its final name, fsyncs it, and renames
``.metadata.tmp`` to ``.metadata`` last (torch/distributed/checkpoint/filesystem.py). The index in
``.metadata`` names every file with the offset and length of each entry in it. Saved without
collectives each rank has an index of its own, ``__<rank>.metadata``, and none names another's.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence

from msgspec import Struct

from ckptgov.errors import Malformed
from ckptgov.layouts.base import Tree, join
from ckptgov.layouts.pickles import DcpIndex
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.torch_zip import ZipState, check_torch_zip, finding_of
from ckptgov.model.facts import Depth, Reason
from ckptgov.model.files import OpenFile

MARKER = ".metadata"
SHARD = re.compile(r"__(?P<rank>[0-9]{1,9})_[0-9]{1,9}\.distcp")
RANK_INDEX = re.compile(r"__(?P<rank>[0-9]{1,9})\.metadata")

_MAX_TOLD = 8


class DcpSet(Struct, frozen=True):
    """What was proved about one DCP directory.

    ``world_size`` counts the ranks that wrote. Only a set with one common index loads on another
    number of ranks: without collectives each rank reads its own.
    """

    members: tuple[str, ...]
    world_size: int | None
    reshardable: bool
    has_common_state: bool = False
    is_planned_by_mcore: bool = False


def is_dcp_dir(tree: Tree, directory: str) -> bool:
    """Whether a directory holds an index or a shard of DCP, whole or not."""
    return any(
        name in (MARKER, ".metadata.tmp") or SHARD.fullmatch(name) or RANK_INDEX.fullmatch(name)
        for name in tree.files(directory)
    )


def prove_dcp(proof: Proof, below: str, depth: Depth) -> DcpSet | None:
    """Prove the DCP directory ``below`` the checkpoint (``""``: the checkpoint itself).

    Findings and members go to ``proof``. None when no index tells the set.
    """
    tree, directory = proof.tree, proof.at(below)
    names = tree.files(directory) if tree.is_dir(directory) else ()
    if MARKER in names:
        return _prove_indexed(proof, below, depth)
    indexes = [name for name in names if RANK_INDEX.fullmatch(name)]
    if indexes:
        return _prove_ranks(proof, below, indexes, depth)
    _tell_unfinished(proof, below, names)
    return None


def _prove_indexed(proof: Proof, below: str, depth: Depth) -> DcpSet | None:
    marker = join(below, MARKER)
    proof.need(marker, is_marker=True)
    index = _read_index(proof, marker, depth, with_chunks=False)
    if proof.has(join(below, ".metadata.tmp")):
        text = "is there beside .metadata: a second save into this directory did not finish"
        proof.refuse(Reason.BEING_WRITTEN, join(below, ".metadata.tmp"), text)
    if index is None:
        return None
    members = _prove_files(proof, below, index, because=".metadata names it", depth=depth)
    proof.written_after(marker, members)
    for name in index.gaps[:_MAX_TOLD]:
        # How Megatron cuts its flattened tensors is not for this sum to judge.
        if index.is_planned_by_mcore:
            proof.note("coverage", marker, f"fewer elements of {name} were saved than it has")
        else:
            text = f"fewer elements of {name} were saved than it has"
            proof.refuse(Reason.MISSING_SHARD, marker, text)
    return DcpSet(
        members=(marker, *members),
        world_size=_ranks(index.files),
        reshardable=True,
        has_common_state=index.has_common_state,
        is_planned_by_mcore=index.is_planned_by_mcore,
    )


def _prove_ranks(proof: Proof, below: str, indexes: Sequence[str], depth: Depth) -> DcpSet | None:
    """Without collectives: every rank's index, its files, and together every element."""
    present = {_rank(name) for name in indexes}
    named = {_rank(name) for name in proof.tree.files(proof.at(below)) if SHARD.fullmatch(name)}
    members: list[str] = []
    saved: dict[str, tuple[int, dict[str, int]]] = {}
    missing = 0
    for rank in range(max(present | named) + 1):
        marker = join(below, f"__{rank}.metadata")
        if proof.need(marker, is_marker=True, because=_RANK_MISSING) is None:
            missing += 1
            if missing == _MAX_TOLD:
                break
            continue
        index = _read_index(proof, marker, depth, with_chunks=True)
        if index is None:
            continue
        because = f"__{rank}.metadata names it"
        files = _prove_files(proof, below, index, because=because, depth=depth)
        proof.written_after(marker, files)
        members += [marker, *files]
        for name, (elements, chunks) in index.chunks.items():
            saved.setdefault(name, (elements, {}))[1].update(chunks)
    _tell_gaps(proof, below, saved)
    return DcpSet(tuple(members), world_size=max(present) + 1, reshardable=False)


_RANK_MISSING = "this rank's index is missing: still being written, or its writer died"


def _tell_gaps(proof: Proof, below: str, saved: dict[str, tuple[int, dict[str, int]]]) -> None:
    gaps = [(k, n, sum(chunks.values())) for k, (n, chunks) in saved.items()]
    for name, elements, have in [gap for gap in gaps if gap[2] < gap[1]][:_MAX_TOLD]:
        text = f"{have} of {elements} elements of {name} were saved: a rank's files are missing"
        proof.refuse(Reason.MISSING_SHARD, below, text)


def _read_index(proof: Proof, marker: str, depth: Depth, *, with_chunks: bool) -> DcpIndex | None:
    if not proof.has(marker) or proof.refused(marker):
        return None
    path = proof.at(marker)
    try:
        with proof.tree.open(path) as file:
            return proof.tree.pickles.dcp_metadata(
                file, name=path, with_entries=depth is Depth.DEEP, with_chunks=with_chunks
            )
    except Malformed as error:
        proof.refuse_malformed(marker, error)
        return None


def _prove_files(
    proof: Proof, below: str, index: DcpIndex, *, because: str, depth: Depth
) -> tuple[str, ...]:
    members: list[str] = []
    for name, (end, _) in index.files.items():
        path = join(below, name)
        members.append(path)
        there = proof.need(path, bytes=end, because=because)
        if there is not None and depth is Depth.DEEP and not proof.refused(path):
            with proof.tree.open(proof.at(path)) as file:
                _prove_entries(proof, path, file, index.entries[name])
    return tuple(members)


def _prove_entries(proof: Proof, path: str, file: OpenFile, entries: array[int]) -> None:
    """Each entry is a torch.save file of its own; the first damaged one refuses the shard."""
    unverifiable = 0
    for at in range(0, len(entries), 2):
        offset, length = entries[at], entries[at + 1]
        report = check_torch_zip(file, offset, length, Depth.DEEP)
        if report.state is ZipState.FOREIGN and not _ends_as_zip(file, offset + length):
            unverifiable += 1  # another serialization or a compressed stream: carries no CRC
            continue
        unverifiable += report.state in (ZipState.UNVERIFIABLE, ZipState.LEGACY)
        finding = finding_of(report, proof.at(path))
        if finding is not None and finding.reason is not Reason.UNPROVEN:
            evidence = f"entry at byte {offset}: {report.evidence}"
            proof.refuse(Reason.CORRUPT, path, evidence)
            return
    if unverifiable:
        proof.note("unverifiable", path, f"{unverifiable} entries carry no CRC")


def _ends_as_zip(file: OpenFile, end: int) -> bool:
    return file.read_at(max(0, end - 22), 4) == b"PK\x05\x06"


def _tell_unfinished(proof: Proof, below: str, names: Sequence[str]) -> None:
    """No index: whatever is there was never committed; say which shards are plainly cut."""
    died = "still being written, or its writer died"
    if ".metadata.tmp" in names:
        died = "only .metadata.tmp is there: died before its rename, or is just there"
    proof.need(join(below, MARKER), is_marker=True, because=f"is missing: {died}")
    for name in names:
        if SHARD.fullmatch(name):
            path = join(below, name)
            proof.need(path)
            if proof.has(path) and not proof.refused(path):
                _tell_cut(proof, path)


def _tell_cut(proof: Proof, path: str) -> None:
    with proof.tree.open(proof.at(path)) as file:
        size = file.stat().bytes
        if file.read_at(0, 4) == b"PK\x03\x04" and not _ends_as_zip(file, size):
            proof.refuse(Reason.TORN, path, f"ends inside an entry ({size} bytes)")


def _rank(name: str) -> int:
    match = SHARD.fullmatch(name) or RANK_INDEX.fullmatch(name)
    assert match is not None
    return int(match["rank"])


def _ranks(files: Iterable[str]) -> int | None:
    ranks = [_rank(name) for name in files if SHARD.fullmatch(name)]
    return max(ranks) + 1 if ranks else None
