"""Orbax (JAX): a step directory of items, of which arrays lie in OCDBT databases.

A directory is whole when no name in it is temporary, ``_CHECKPOINT_METADATA`` carries the time of
its commit, ``commit_success.txt`` is there where this release writes it, every item that the
metadata lists is there, and every byte range that an item's manifest leads to lies within its
file. Releases differ in ``commit_success.txt``: it is demanded when an item of the step or
another step beside it has one. What Orbax's own managers believe is another thing: without the
commit file they go by the directory's name alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ckptgov.layouts.base import Claim, Tree, join, split
from ckptgov.layouts.beside import neighbours
from ckptgov.layouts.content import json_object
from ckptgov.layouts.names import Step, is_staging, step_of_name
from ckptgov.layouts.ocdbt import Node, OcdbtError, Reference, read_manifest, read_node
from ckptgov.layouts.proof import Proof
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

_STEP_METADATA = "_CHECKPOINT_METADATA"
_TREE_METADATA = "_METADATA"
_COMMIT = "commit_success.txt"
_MANIFEST = "manifest.ocdbt"
_JSON_ITEM = "metadata"
_PREFIXED = re.compile(r".+_([0-9]{1,18})\Z")  # CheckpointManagerOptions.step_prefix
_MANIFEST_CAP_BYTES = 64 * 2**20
_NODE_CAP_BYTES = 256 * 2**20
_SHALLOW_BUDGET_BYTES = 8 * 2**20  # of nodes read for structure; a million chunks take about this
_SHALLOW_CRC_BYTES = 64 * 2**10


class OrbaxLayout:
    """Steps written by Orbax's CheckpointManager or by a Checkpointer of its own."""

    name = "orbax"

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """A directory with Orbax's metadata, or a step whose items look like Orbax's."""
        if not self._is_step(tree, directory):
            return None
        step, kind = _step(split(directory)[1]) or (None, StepKind.NONE)
        found = Found(name=directory, layout=self.name, step=step, step_kind=kind)
        return Claim((found,), whole=True)

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """Markers, names, items and what each item's manifest leads to."""
        proof = Proof(tree, found)
        for path in tree.files_below(proof.root):
            proof.take(path)
        _refuse_temporary(proof)
        items = _check_step_metadata(proof)
        _check_commit_file(proof, siblings)
        for item in items:
            _check_item(proof, item, depth)
        return proof.sighting(reshardable=True)

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """Orbax has none: its newest step is the highest name."""
        return ()

    def _is_step(self, tree: Tree, directory: str) -> bool:
        if tree.is_file(join(directory, _STEP_METADATA)):
            return True
        if _is_array_item(tree, directory):
            return True
        if step_of_name(split(directory)[1]) is None:
            return False
        return any(_is_array_item(tree, join(directory, item)) for item in tree.dirs(directory))


def _step(name: str) -> Step | None:
    prefixed = _PREFIXED.match(name)
    return step_of_name(name) or (
        (int(prefixed.group(1)), StepKind.STEP) if prefixed and not is_staging(name) else None
    )


def _is_array_item(tree: Tree, directory: str) -> bool:
    return tree.is_file(join(directory, _TREE_METADATA)) and tree.is_file(
        join(directory, _MANIFEST)
    )


def _refuse_temporary(proof: Proof) -> None:
    """A temporary item was never renamed: its save did not end."""
    for entry in proof.tree.list(proof.root):
        if "orbax-checkpoint-tmp" in entry.name:
            text = "has a temporary name: the save of this item never ended"
            proof.refuse(Reason.BEING_WRITTEN, entry.name, text)


def _check_step_metadata(proof: Proof) -> list[str]:
    """Check that the step was committed; return the names of its items."""
    if not proof.has(_STEP_METADATA):
        if not proof.has(_COMMIT):
            text = f"neither {_STEP_METADATA} nor {_COMMIT} says that the save ended"
            proof.refuse(Reason.UNPROVEN, "", text)
        return _items_by_sight(proof)
    proof.need(_STEP_METADATA, is_marker=True)
    metadata = json_object(proof, _STEP_METADATA)
    if metadata is None:
        return _items_by_sight(proof)
    if not isinstance(metadata.get("commit_timestamp_nsecs"), int):
        text = "commit_timestamp_nsecs is null: the save never ended"
        proof.refuse(Reason.BEING_WRITTEN, _STEP_METADATA, text)
    handlers = metadata.get("item_handlers")
    listed = set(handlers) if isinstance(handlers, dict) else set()
    items = sorted(listed.union(_items_by_sight(proof)))
    if not items:
        proof.refuse(Reason.MISSING_SHARD, "", "holds no item beside its metadata")
    return items


def _items_by_sight(proof: Proof) -> list[str]:
    """The directory itself where it holds arrays, else each directory in it."""
    if proof.has(_MANIFEST) or proof.has(_TREE_METADATA):
        return [""]
    return [name for name in proof.tree.dirs(proof.root) if not is_staging(name)]


def _check_commit_file(proof: Proof, siblings: Sequence[Found]) -> None:
    if proof.has(_COMMIT):
        proof.take(_COMMIT, is_marker=True)
        return
    beside = [other.name for other in neighbours(proof.found, siblings)]
    inside = [proof.at(item) for item in proof.tree.dirs(proof.root)]
    for where in (*inside, *beside):
        if proof.tree.is_file(join(where, _COMMIT)):
            text = f"is missing and {where} has one: it was never committed"
            proof.need(_COMMIT, because=text, is_marker=True)
            return


def _check_item(proof: Proof, item: str, depth: Depth) -> None:
    if not proof.tree.is_dir(proof.at(item)):
        text = f"is missing: {_STEP_METADATA} lists the item"
        proof.refuse(Reason.MISSING_SHARD, item, text)
        return
    has_manifest = proof.has(join(item, _MANIFEST))
    if has_manifest or proof.has(join(item, _TREE_METADATA)):
        _check_arrays(proof, item, depth)
    elif proof.has(join(item, _JSON_ITEM)):
        proof.need(join(item, _JSON_ITEM))
        json_object(proof, join(item, _JSON_ITEM))
    elif any(proof.is_member(path) and path.startswith(f"{item}/") for path in _files(proof)):
        proof.note("not-checked", item, "an item of an unknown kind: only its presence is known")
    else:
        proof.refuse(Reason.MISSING_SHARD, item, "the item's directory holds no file")


def _files(proof: Proof) -> tuple[str, ...]:
    return proof.tree.files_below(proof.root)


def _check_arrays(proof: Proof, item: str, depth: Depth) -> None:
    tree_metadata = join(item, _TREE_METADATA)
    if proof.need(tree_metadata, because="nothing is restored without it"):
        stored = json_object(proof, tree_metadata)
        if stored is not None and stored.get("use_ocdbt") is False:
            text = "its arrays lie in plain zarr files: nothing tells their full set"
            proof.refuse(Reason.UNPROVEN, item, f"{text}; declare a rule or commit it")
            return
    manifest = join(item, _MANIFEST)
    # The manifest is written last of an item, after the merge of all processes.
    if proof.need(manifest, because="the arrays cannot be found without it") and not (
        proof.refused(manifest)
    ):
        _follow(proof, item, depth)


def _follow(proof: Proof, item: str, depth: Depth) -> None:
    """Walk from the manifest to every byte range a restore would read."""
    manifest = join(item, _MANIFEST)
    try:
        read = read_manifest(proof.tree.read_whole(proof.at(manifest), _MANIFEST_CAP_BYTES))
    except OcdbtError as error:
        proof.refuse(Reason.TORN, manifest, str(error))
        return
    if read.is_numbered:
        text = "its versions lie in numbered manifests, which are not followed"
        proof.refuse(Reason.UNPROVEN, manifest, text)
    walk = _Walk(proof, item, depth)
    if read.root is not None:
        walk.run(read.root)


class _Walk:
    """One descent from a root node; each file is judged once, by the furthest byte needed."""

    def __init__(self, proof: Proof, item: str, depth: Depth) -> None:
        self._proof = proof
        self._item = item
        self._depth = depth
        self._ends: dict[str, int] = {}
        self._read_bytes = 0
        self._is_cut_short = False

    def run(self, root: Reference) -> None:
        todo = [root]
        seen = {root}
        while todo:
            node = self._node(todo.pop())
            for value in node.values:
                self._reach(value)
            fresh = [child for child in node.children if child not in seen]
            seen.update(fresh)
            todo.extend(fresh)
        for path, end in sorted(self._ends.items()):
            self._proof.need(path, min_bytes=end, because="the manifest leads to it")
        if self._is_cut_short:
            text = "its index is too large for a look at structure: followed in part only"
            self._proof.note("not-checked", self._item, text)

    def _reach(self, place: Reference) -> str:
        path = join(self._item, place.path)
        self._ends[path] = max(self._ends.get(path, 1), place.end)
        return path

    def _node(self, place: Reference) -> Node:
        path = self._reach(place)
        if not self._may_read(path, place):
            return Node((), ())
        with self._proof.tree.open(self._proof.at(path)) as file:
            encoded = file.read_at(place.offset, place.length)
        deep = self._depth is Depth.DEEP or place.length <= _SHALLOW_CRC_BYTES
        try:
            return read_node(encoded, place, check_crc=deep)
        except OcdbtError as error:
            where = f"index node at byte {place.offset}"
            self._proof.refuse(Reason.TORN, path, f"{where} {error}")
            return Node((), ())

    def _may_read(self, path: str, place: Reference) -> bool:
        if ".." in path.split("/") or not self._proof.has(path):
            return False
        if place.end > self._proof.tree.stat(self._proof.at(path)).bytes:
            return False  # judged at the end of the walk, with numbers
        self._read_bytes += place.length
        is_shallow = self._depth is Depth.STRUCTURE
        budget_bytes = _SHALLOW_BUDGET_BYTES if is_shallow else _NODE_CAP_BYTES
        if max(place.length, self._read_bytes if is_shallow else 0) > budget_bytes:
            self._is_cut_short = True
            return False
        return True


LAYOUT = OrbaxLayout()
