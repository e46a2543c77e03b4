"""A run's declared rule: a person says which files make a checkpoint, and how many.

For checkpoints that no layout can prove. Files that match the glob are one checkpoint per name
that carries a step: the nearest directory above them that does, else what the files' own names
have in common up to the step; files without any step are one checkpoint per directory. The count
is exact, the marker must lie in the checkpoint's directory, and each file must still be whole as
far as its format tells. A rule with neither count nor marker proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from ckptgov.layouts.base import Claim, Tree, join, split
from ckptgov.layouts.content import TORCH_SUFFIXES, prove_content, refuse_whole
from ckptgov.layouts.names import Step, is_staging, last_integer, step_of_name
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.torch_zip import ZipState, check_torch_zip, finding_of
from ckptgov.model.checkpoint import Expect, StepKind
from ckptgov.model.facts import Depth, Found, Pointer, Reason, Sighting

NAME = "declared"
_AMBIGUOUS_SUFFIXES = (".bin", ".ckpt")  # also written by other tools than torch


class DeclaredLayout(Struct, frozen=True):
    """Checkpoints by declared rules; with none given, by those of the look's settings.

    The first rule that matches a file decides about it.
    """

    rules: tuple[Expect, ...] = ()

    @property
    def name(self) -> str:
        """The layout's word."""
        return NAME

    def find(self, tree: Tree, directory: str) -> Claim | None:
        """The directory itself as a checkpoint, and those made of files in it."""
        found: list[Found] = []
        taken: set[str] = set()
        for rule in self._rules(tree):
            paths = [p for p in _matching(tree, directory, rule) if p not in taken]
            groups = _groups(paths, rule)
            here = {n: g for n, g in groups.items() if n == directory or _is_in(g, directory)}
            if directory in here and len(groups) == 1 and directory and not found:
                return Claim((_found(directory, here[directory], files=False),), whole=True)
            found += [_found(name, group, files=True) for name, group in here.items()]
            taken.update(path for group in here.values() for path in group.paths)
        return Claim(tuple(found)) if found else None

    def examine(
        self, tree: Tree, found: Found, depth: Depth, *, siblings: Sequence[Found] = ()
    ) -> Sighting:
        """The count, the marker, and each file as far as its suffix tells."""
        proof = Proof(tree, found)
        for rule in self._rules(tree):
            paths = found.files or tuple(_matching(tree, found.name, rule))
            if paths and all(path_pattern(rule.glob).fullmatch(path) for path in paths):
                _prove(proof, rule, paths, depth)
                return proof.sighting()
        refuse_whole(proof, Reason.MISSING_SHARD, "no file matches a declared rule any more")
        return proof.sighting()

    def pointers(self, tree: Tree) -> tuple[Pointer, ...]:
        """A rule declares none."""
        return ()

    def _rules(self, tree: Tree) -> tuple[Expect, ...]:
        return self.rules or tree.settings.rules


class _Group(Struct, frozen=True):
    step: Step | None
    is_dir: bool
    paths: tuple[str, ...]


def _found(name: str, group: _Group, *, files: bool) -> Found:
    step, kind = group.step or (None, StepKind.NONE)
    paths = group.paths if files else ()
    return Found(name=name or "declared", layout=NAME, step=step, step_kind=kind, files=paths)


def _is_in(group: _Group, directory: str) -> bool:
    """Whether a group of files in one directory lies in this one."""
    return not group.is_dir and split(group.paths[0])[0] == directory


def _matching(tree: Tree, directory: str, rule: Expect) -> Iterator[str]:
    """Files beneath a directory that the glob matches, as paths below the run root."""
    if not tree.is_dir(directory) or not _leads_to(rule.glob, directory):
        return
    pattern = path_pattern(rule.glob)
    for below in tree.files_below(directory):
        path = join(directory, below)
        if pattern.fullmatch(path) and not any(map(is_staging, path.split("/"))):
            yield path


def _groups(paths: Iterable[str], rule: Expect) -> dict[str, _Group]:
    """Checkpoint name -> its files."""
    members: dict[str, tuple[Step | None, bool, list[str]]] = {}
    for path in paths:
        name, step, is_dir = _placed(path, rule)
        members.setdefault(name, (step, is_dir, []))[2].append(path)
    return {n: _Group(step, is_dir, tuple(of)) for n, (step, is_dir, of) in members.items()}


def _placed(path: str, rule: Expect) -> tuple[str, Step | None, bool]:
    """Name and step of the checkpoint that a file belongs to; whether the name is a directory."""
    directory, name = split(path)
    if rule.step is not None:
        return _placed_by(rule.step, path)
    above = directory
    while above:
        step = step_of_name(split(above)[1])
        if step is not None:
            return above, step, True
        above = split(above)[0]
    step = last_integer(name) if step_of_name(name) is None else step_of_name(name)
    if step is None or step_of_name(name) is None:
        return directory, None, True
    number = next(m for m in re.finditer(r"[0-9]+", name) if int(m[0]) == step[0])
    return join(directory, name[: number.end()]), step, False


def _placed_by(pattern: str, path: str) -> tuple[str, Step | None, bool]:
    """By the rule's own expression, whose first group is the step."""
    match = _expression(pattern).search(path)
    digits = match[1] if match and match.re.groups else None
    if match is None or digits is None or not (digits.isascii() and digits.isdigit()):
        return split(path)[0], None, True
    step = (int(digits[-18:]), StepKind.STEP)
    end = path.find("/", match.end(1))
    if end >= 0:
        return path[:end], step, True
    return path[: match.end(1)], step, False


def _prove(proof: Proof, rule: Expect, paths: Sequence[str], depth: Depth) -> None:
    lead = f"{proof.root}/" if proof.root else ""
    names = [path.removeprefix(lead) for path in paths]
    for name in names:
        proof.need(name)
        _prove_format(proof, name, depth)
    if rule.count is not None and len(names) < rule.count:
        text = f"{len(names)} of {rule.count} files that match {rule.glob} are here"
        refuse_whole(proof, Reason.MISSING_SHARD, text)
    if rule.count is not None and len(names) > rule.count:
        text = f"{len(names)} files match {rule.glob}, and the rule says {rule.count}"
        refuse_whole(proof, Reason.TORN, text)
    if rule.marker is not None:
        proof.need(rule.marker, min_bytes=0, is_marker=True)
        proof.written_after(rule.marker, names)
    if rule.count is None and rule.marker is None:
        text = "the declared rule has neither count nor marker: it does not tell the full set"
        refuse_whole(proof, Reason.UNPROVEN, text)


def _prove_format(proof: Proof, name: str, depth: Depth) -> None:
    """Formats that nobody can check are noted: the person who declared the rule knows them."""
    if not name.endswith(TORCH_SUFFIXES):
        prove_content(proof, name, depth)
        return
    if proof.refused(name):
        return
    with proof.tree.open(proof.at(name)) as file:
        report = check_torch_zip(file, depth=depth)
        head = file.read_at(0, 64)
    is_foreign = report.state is ZipState.FOREIGN and name.endswith(_AMBIGUOUS_SUFFIXES)
    finding = finding_of(report, proof.at(name))
    if report.state is ZipState.LEGACY or (is_foreign and any(head)):
        proof.note("unverifiable", name, report.evidence)
    elif finding is not None:
        proof.findings.append(finding)


@lru_cache(maxsize=256)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@lru_cache(maxsize=256)
def path_pattern(glob: str) -> re.Pattern[str]:
    """``*`` and ``?`` do not cross ``/``, a component ``**`` stands for any directories."""
    parts = glob.strip("/").split("/")
    text = ""
    for part in parts[:-1]:
        text += "(?:[^/]+/)*" if part == "**" else f"{_component(part)}/"
    return re.compile(text + (".+" if parts[-1] == "**" else _component(parts[-1])), re.DOTALL)


@lru_cache(maxsize=1024)
def _component(glob: str) -> str:
    """One component as an expression: ``*``, ``?`` and ``[...]``, the rest literally."""
    text = ""
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        close = glob.find("]", at + 1) if char == "[" else -1
        if char == "*":
            text += "[^/]*"
        elif char == "?":
            text += "[^/]"
        elif close >= 0:
            inside = glob[at:close].replace("\\", "\\\\").replace("[", "\\[")
            text += f"[^/{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]"
            at = close + 1
        else:
            text += re.escape(char)
    return text


def _leads_to(glob: str, directory: str) -> bool:
    """Whether files beneath a directory can match at all: spares the walk where they cannot."""
    parts = glob.strip("/").split("/")
    names = directory.split("/") if directory else []
    for part, name in zip(parts[:-1], names, strict=False):
        if part == "**":
            return True
        if not re.fullmatch(_component(part), name, re.DOTALL):
            return False
    return len(names) < len(parts) or "**" in parts


LAYOUT = DeclaredLayout()
