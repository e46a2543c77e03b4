"""Policies, and what they do to a run, as text or JSON, and the exit codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ckptgov.config.policy_text import policy_text, selector_text
from ckptgov.errors import ConfigError
from ckptgov.model.policy import Policy
from ckptgov.model.retention import Action, CheckpointVerdict, CopyVerdict, RunVerdict
from ckptgov.wire import plans as plan_documents
from ckptgov.wire import policies as documents
from ckptgov_cli import output
from ckptgov_cli.exits import code_of
from ckptgov_cli.output import size

if TYPE_CHECKING:
    from ckptgov.model.policy_check import PolicyCheck

_FOUND = ("POLICY", "SELECTS", "FILE")
_MOST_RUNS = 10


def checked_files(
    policies: Sequence[Policy],
    errors: Sequence[ConfigError],
    *,
    knows_tiers: bool,
    as_json: bool,
) -> int:
    """Files that somebody named, and what is wrong with them."""
    error = documents.mistakes(errors)
    if as_json:
        output.emit(documents.checked(policies, errors, error))
        return code_of(error)
    for one in policies:
        output.line(f"reads well\t{one.name}\t{one.file}")
    if not knows_tiers:
        output.talk("note: no tier is configured here, so the names of tiers were not compared")
    _complain(errors)
    return code_of(error)


def checked(found: PolicyCheck, *, as_json: bool) -> int:
    """The policies in force, and what is wrong with them."""
    error = documents.mistakes(found.errors)
    if as_json:
        output.emit(documents.check(found))
        return code_of(error)
    if not found.policies and not found.errors:
        output.talk(f"no policy is in force: {found.directory} holds no *.yaml; nothing is pruned")
        return 0
    runs_of = Counter(policy for policy, _run in found.runs)
    for one in found.policies:
        number = runs_of[one.name]
        chosen = f"{number} registered {'run' if number == 1 else 'runs'}"
        output.line(f"reads well\t{one.name}\t{one.file}\t{chosen}")
    without = [run for policy, run in found.runs if policy is None]
    if without:
        output.talk(f"without a policy, so that nothing of them is pruned: {_some(without)}")
    _complain(found.errors)
    return code_of(error)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_RUNS
    return ", ".join(names[:_MOST_RUNS]) + (f" and {more} more" if more > 0 else "")


def _complain(errors: Sequence[ConfigError]) -> None:
    for each in errors:
        output.complain(each)


def listed(found: Sequence[Policy], *, as_json: bool) -> int:
    """Every policy in force."""
    if as_json:
        output.emit(documents.policies(found))
        return 0
    if not found:
        output.talk("no policy is in force; nothing is pruned")
    rows = [
        [
            one.name,
            selector_text(one.selector.runs, one.selector.teams, one.selector.tags),
            one.file,
        ]
        for one in found
    ]
    output.table(_FOUND, rows)
    return 0


def shown(one: Policy, *, as_json: bool) -> int:
    """One policy in full: a file that says the same."""
    if as_json:
        output.emit({"policy": documents.policy(one)})
        return 0
    output.line(f"# {one.file} ({one.digest}), with what holds by default")
    output.line(policy_text(one).rstrip("\n"))
    return 0


def shown_of_run(run: str, found: Policy | None, *, as_json: bool) -> int:
    """The policy of a run."""
    if as_json:
        output.emit(documents.policy_of_run(run, found))
        return 0
    if found is None:
        output.talk(f"no policy selects run {run}: it keeps everything")
        return 0
    output.line(f"# run {run} is under policy {found.name}")
    return shown(found, as_json=False)


def explained(one: RunVerdict, *, as_json: bool) -> int:
    """Each checkpoint of a run, newest first: what becomes of it where, and every reason."""
    if as_json:
        output.emit(plan_documents.verdict(one))
        return 0
    for line in _explained(one):
        output.line(line)
    return 0


def _explained(one: RunVerdict) -> Iterator[str]:
    under = "no policy, so nothing of it is pruned" if one.policy is None else one.policy
    yield f"run {one.run} ({one.life.value}), policy: {under}"
    yield _sum(one.checkpoints)
    has_lines = len({each.line for each in one.checkpoints}) > 1
    for each in one.checkpoints:
        yield ""
        step = "no step" if each.step is None else f"step {each.step}"
        yield f"{step}  {each.name}" + (f"  (line {each.line})" if has_lines else "")
        for at in each.tiers:
            yield f"  {_fate(at)}"
            for why in at.why:
                is_overruled = at.action is not None and why.text.startswith(_KEPT)
                text = _OVERRULED + why.text.removeprefix(_KEPT) if is_overruled else why.text
                yield f"    - {text}"
    if one.notes:
        yield ""
    for note in one.notes:
        yield f"note: {note}"


_KEPT, _OVERRULED = "kept: ", "overruled: would be kept by "
"""How reasons to stay begin, and what is said of one that did not prevail."""


def _fate(at: CopyVerdict) -> str:
    held = f"{at.tier} ({size(at.bytes)})"
    if len(at.places) > 1:
        held = f"{at.tier} ({size(at.bytes)} on {len(at.places)} disks)"
    match at.action:
        case None:
            return f"stays on {held}"
        case Action.EVICT:
            return f"would leave {held}; the checkpoint stays on another tier"
        case Action.PRUNE:
            return f"would be removed from {held}; the checkpoint would be gone"


def _sum(checkpoints: Sequence[CheckpointVerdict]) -> str:
    gone = [one for one in checkpoints if any(at.action is Action.PRUNE for at in one.tiers)]
    less = [
        one
        for one in checkpoints
        if one not in gone and any(at.action is Action.EVICT for at in one.tiers)
    ]
    freed = sum(at.bytes for one in checkpoints for at in one.tiers if at.action is not None)
    stay = len(checkpoints) - len(gone) - len(less)
    told = f"{len(checkpoints)} checkpoints: {stay} stay where they are"
    if less:
        told += f", {len(less)} would leave a tier and stay on another"
    if gone:
        told += f", {len(gone)} would be removed"
    return told + (f"; {size(freed)} freed in all" if freed else "")
