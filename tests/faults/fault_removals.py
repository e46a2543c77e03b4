"""One removal on a real directory, undisturbed once, and then with one call tampered with."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import fault_trace
from fault_process import Answer, Defect, Ended, Forkery

from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.removals import Files, Trial

_DEFECT = Defect(str(Path(__file__).with_name("fault_removal_child.py")), "removals")


class RemovalCampaign:
    """``verb`` is ``aside``, ``purge`` or ``back``; what comes before it was done undisturbed."""

    def __init__(self, base: Path, form: str, files: Files, forkery: Forkery, verb: str) -> None:
        self.root, self._kept, self.verb = base / "tier", base / "kept", verb
        self._base, self._forkery = base, forkery
        self.root.mkdir(parents=True)
        self._storage = PosixStorage(self.root)
        self.trial = Trial(form, files, self._storage)
        if verb != "aside":
            self.trial.trash = self.trial.stage.move(self.trial.manifest).trash
        shutil.copytree(self.root, self._kept, copy_function=_link)
        self._storage.close()

    @property
    def _words(self) -> Sequence[str | Path]:
        content_id = self.trial.manifest.content_id
        return (self.verb, self.root, content_id, self.trial.trash or "-")

    def calls(self) -> list[fault_trace.Call]:
        """Every call that changes something."""
        found, ended = fault_trace.calls(
            self._forkery, self._base, self._words, beneath=self._base, defect=_DEFECT
        )
        assert [one.code for one in ended.answers] == [0], ended
        return found

    def disturbed(self, options: Sequence[str]) -> Ended:
        """From the start, with strace's ``options``."""
        self.reset()
        log = self._base / "strace.log"
        return fault_trace.run_tampered(
            self._forkery, self._base, self._words, options, log=log, defect=_DEFECT
        )

    def run(self) -> Answer:
        """As it stands, undisturbed."""
        (answer,) = self._forkery(self._base, self._words, defect=_DEFECT)
        return answer

    def reset(self) -> None:
        """Back to before the command: the same inodes under the same names."""
        shutil.rmtree(self.root)
        shutil.copytree(self._kept, self.root, copy_function=_link)

    def require_nothing_half(self, *, may_be_sealed_again: bool = False) -> None:
        """Whatever is offered is whole; a scan seals nothing of it (but see ``Trial``)."""
        with PosixStorage(self.root) as storage:
            self.trial.stage.tree = storage
            self.trial.require_nothing_half(may_be_sealed_again=may_be_sealed_again)

    def require_convergence(self, *, strange_may_stay: bool = False) -> None:
        """The command again, undisturbed: all is as it should be.

        ``strange_may_stay``: where every shard had to make room, files beside them are left.
        """
        again = self.run()
        assert again.code == 0, again
        with PosixStorage(self.root) as storage:
            trial = self.trial
            trial.stage.tree = storage
            match self.verb:
                case "aside":
                    if strange_may_stay:
                        with suppress(FileNotFoundError):
                            storage.remove(f"run/{trial.strange}")
                    assert trial.stage.files() == trial.rest
                    trash = again.json["trash"]
                    assert trial.stage.purge(trial.manifest, trash).left == ()
                    trial.require_gone()
                case "purge":
                    trial.require_gone()
                case _:
                    trial.require_back()


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)
