"""``trainer_state.json``: what the Hugging Face Trainer remembers of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ckptgov.layouts.base import join, split
from ckptgov.layouts.content import SpelledNumber
from ckptgov.layouts.proof import Proof
from ckptgov.layouts.told_metrics import BEST_SO_FAR, told
from ckptgov.model.facts import Found

STATE = "trainer_state.json"
_BEST = "best_model_checkpoint"


def state_step(state: Mapping[str, object] | None) -> int | None:
    """``global_step``, where it is one."""
    step = state.get("global_step") if state is not None else None
    return step if type(step) is int and step >= 0 else None


def metrics_at(state: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """The ``eval_*`` numbers logged at the state's own step, as spelled there, by name.

    With them the best value so far, which is of this checkpoint or of an older one.
    """
    step = state_step(state)
    found: dict[str, str] = {}
    for entry in _entries(state.get("log_history")):
        if entry.get("step") == step:
            found |= {name: str(v) for name, v in entry.items() if _is_metric(name, v)}
    best = state.get(BEST_SO_FAR)
    if _is_number(best):
        found[BEST_SO_FAR] = str(best)
    return told(found.items())


def _entries(log: object) -> Iterable[Mapping[str, object]]:
    return [e for e in log if isinstance(e, dict)] if isinstance(log, list) else []


def _is_metric(name: str, value: object) -> bool:
    return name.startswith("eval_") and _is_number(value)


def _is_number(value: object) -> bool:
    return type(value) is int or isinstance(value, SpelledNumber)


def note_best(proof: Proof, state: Mapping[str, object], siblings: Sequence[Found]) -> None:
    """Tell of a recorded best checkpoint that is none of this run's.

    It is recorded by its absolute path at save time, which dies when a run is moved. It is never
    followed: only its last name is looked up beside this checkpoint.
    """
    best = state.get(_BEST)
    if not isinstance(best, str) or not best:
        return
    name = split(best.rstrip("/"))[1]
    here = join(split(proof.root)[0], name)
    if here in {sibling.name for sibling in siblings} or proof.tree.is_dir(here):
        return
    text = f"{_BEST} names {best!r}, which is no checkpoint of this run"
    proof.note("foreign-path", STATE, text)
