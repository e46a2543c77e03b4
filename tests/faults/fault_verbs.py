"""The commands under test: from what they start, and what may be answered once they stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import fault_trace
from fault_process import Answer, Ended, Forkery, Words
from fault_trees import Outcome, Stage, outcome, require_clear, require_sound, trainers_files

from ckptgov.testing.builders import flip_bit, write_dcp


@dataclass(frozen=True)
class Verb:
    """A command under the knife."""

    words: Callable[[Stage], Words]
    prepare: Callable[[Stage, Forkery], None]
    offered: Callable[[Stage], set[str]]
    """What ``latest DIR`` may say when the command was killed, judged by what lies on disk."""
    compared: Callable[[Stage], set[str]]
    """The same for those that accept only compared bytes; empty where nothing may be offered."""
    broken: Callable[[Stage], set[str]]
    """What ``verify`` must complain about then."""
    may_repeat: bool = False
    """Whether giving the command again says the same thing a second time."""


def _unsealed(stage: Stage, forkery: Forkery) -> None:
    del forkery
    for step in (1, 2, 9):
        write_dcp(stage.run / f"step_{step}")
    (stage.run / "step_9/__1_0.distcp").unlink()


def _sealed(stage: Stage, forkery: Forkery) -> None:
    _unsealed(stage, forkery)
    _scan(stage, forkery)


def _one_new(stage: Stage, forkery: Forkery) -> None:
    _unsealed(stage, forkery)
    shutil.move(stage.run / "step_2", stage.base / "later")
    _scan(stage, forkery)
    shutil.move(stage.base / "later", stage.run / "step_2")


def _one_new_one_gone(stage: Stage, forkery: Forkery) -> None:
    write_dcp(stage.run / "step_0")
    _one_new(stage, forkery)
    shutil.rmtree(stage.run / "step_0")


def _one_rotten(stage: Stage, forkery: Forkery) -> None:
    _sealed(stage, forkery)
    flip_bit(stage.run / "step_2/__0_0.distcp", 1000, 3)


def _scan(stage: Stage, forkery: Forkery) -> None:
    (done,) = forkery(stage.home, ("scan", stage.tier))
    assert done.code == 0, done


def _only(*names: str) -> Callable[[Stage], set[str]]:
    return lambda stage: set(names)


def _newest_with_receipt(stage: Stage) -> set[str]:
    """A checkpoint is offered as compared from the moment its receipt has its name."""
    received = [name for name in ("step_2", "step_1") if stage.receipts(name)]
    return set(received[:1])


def _unless(kind: str) -> Callable[[Stage], set[str]]:
    """A record counts from the moment it has its name."""
    return lambda stage: {"step_1"} if stage.records(kind) else {"step_2"}


def _torn_and_not_yet_lost(stage: Stage) -> set[str]:
    return {"step_9"} if stage.records("lost") else {"step_9", "step_0"}


VERBS = {
    "scan": Verb(
        words=lambda stage: ("scan", stage.tier),
        prepare=_unsealed,
        offered=_only("step_2"),
        compared=_newest_with_receipt,
        broken=_only("step_9"),
    ),
    "scan-again": Verb(
        words=lambda stage: ("scan", stage.tier),
        prepare=_one_new_one_gone,
        offered=_only("step_2"),
        compared=_newest_with_receipt,
        broken=_torn_and_not_yet_lost,
    ),
    "commit": Verb(
        words=lambda stage: ("commit", stage.run / "step_2", "--metric", "loss=1.5"),
        prepare=_one_new,
        offered=_only("step_2"),
        compared=_newest_with_receipt,
        broken=_only("step_9"),
    ),
    "rollback": Verb(
        words=lambda stage: ("rollback", "run", "--to", "1", "--reason", "spike"),
        prepare=_sealed,
        offered=_unless("rollback"),
        compared=_unless("rollback"),
        broken=_only("step_9"),
        may_repeat=True,
    ),
    "mark-bad": Verb(
        words=lambda stage: ("mark-bad", "run", "--step", "2", "--reason", "nan"),
        prepare=_sealed,
        offered=_unless("mark-bad"),
        compared=_unless("mark-bad"),
        broken=_only("step_9"),
        may_repeat=True,
    ),
    "restart": Verb(
        words=lambda stage: ("latest", "run", "--restart-id", "a.0"),
        prepare=_sealed,
        offered=_only("step_2"),
        compared=_only("step_2"),
        broken=_only("step_9"),
    ),
    "restart-unsealed": Verb(
        words=lambda stage: ("latest", stage.run, "--restart-id", "a.0"),
        prepare=_unsealed,
        offered=_only("step_2"),
        compared=_only(),
        broken=_only("step_9"),
    ),
    "verify": Verb(
        words=lambda stage: ("verify", "run"),
        prepare=_one_rotten,
        # Rot that nobody has read yet cannot be known.
        offered=_only("step_1", "step_2"),
        compared=_only("step_1", "step_2"),
        broken=_only("step_2", "step_9"),
    ),
}


class Campaign:
    """One command, its undisturbed outcome, and the same with one call tampered with."""

    def __init__(
        self,
        verb: Verb,
        stage: Stage,
        forkery: Forkery,
        *,
        names: Sequence[str] = fault_trace.CHANGING,
    ) -> None:
        self.verb, self.stage = verb, stage
        self._forkery, self._names = forkery, names
        verb.prepare(stage, forkery)
        stage.keep()
        self.words = verb.words(stage)
        self.calls, ended = fault_trace.calls(
            forkery, stage.home, self.words, beneath=stage.base, names=names
        )
        require_clear(list(ended.answers))
        self._code = ended.answers[0].code
        self._wanted = self._outcome()
        self._files = trainers_files(stage.run)

    def _outcome(self) -> Outcome:
        return outcome(self.stage, self._forkery, said_once=not self.verb.may_repeat)

    def disturbed(self, options: Sequence[str]) -> Ended:
        """Run the command from the start with strace's ``options``."""
        self.stage.reset()
        return fault_trace.run_tampered(
            self._forkery,
            self.stage.home,
            self.words,
            options,
            log=self.stage.base / "strace.log",
            names=self._names,
        )

    def require_right_answers(self) -> None:
        """What is offered now is whole, and what there is is not denied."""
        stage = self.stage
        self._require_nothing_hurt()
        answers = self._forkery(
            stage.home,
            ("latest", stage.run),
            ("latest", stage.run, "--evidence", "digest"),
            ("latest", "run"),
            ("verify", stage.run, "--dry-run"),
        )
        require_clear(answers)
        of_directory, of_digest, of_run, verified = answers
        assert of_directory.code == 0, of_directory
        assert of_directory.json["name"] in self.verb.offered(stage), of_directory
        compared = self.verb.compared(stage)
        _require_compared(of_digest, compared, none_codes=(5,))
        if of_run.json.get("error", {}).get("kind") != "unknown-run":
            # 9 while the catalog knows the run and not yet its place.
            _require_compared(of_run, compared, none_codes=(5, 9))
        complained = {one["name"] for one in verified.json["checkpoints"] if one["findings"]}
        assert complained == self.verb.broken(stage), verified

    def require_convergence(self) -> None:
        """The command again, undisturbed: everything is as if nothing had ever happened."""
        (again,) = self._forkery(self.stage.home, self.words)
        assert again.code == self._code, again
        self.require_done()
        self._require_nothing_hurt()

    def require_done(self) -> None:
        """Everything is as after an undisturbed run."""
        self._outcome().require(self._wanted)

    def _require_nothing_hurt(self) -> None:
        assert trainers_files(self.stage.run) == self._files
        require_sound(self.stage, self._wanted.manifests)


def _require_compared(answer: Answer, names: set[str], *, none_codes: tuple[int, ...]) -> None:
    if not names:
        assert answer.code in none_codes, answer
        return
    assert answer.code == 0, answer
    assert answer.json["name"] in names, answer
    assert answer.json["evidence"] == "digest", answer
