"""A run whose trainer's files stay, while everything of ckptgov's can be put back to a state."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_process import Answer, Forkery, Words

_OURS = ".ckptgov*"
_PASSING = frozenset({"place", "run_id", "verified_at_ns", "decided_here"})
"""What an answer says about this place and moment, not about the checkpoint."""

_STAMPED = frozenset({"id", "run_id", "at_ns", "by", "self", "place"})


class Stage:
    """``home`` and a tier with one run ``run``. Checkpoints keep their inodes over all trials."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.home = base / "home"
        self.tier = base / "tier"
        self.run = self.tier / "run"
        self._kept = base.with_name(base.name + ".kept")
        self.run.mkdir(parents=True)

    def keep(self) -> None:
        """Remember what lies there of ckptgov's now."""
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        for path in self._ours():
            self._copy(path, self._kept / path.relative_to(self.base).as_posix().replace("/", "@"))

    def reset(self) -> None:
        """Put back what was remembered."""
        for path in self._ours():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self._kept.iterdir():
            self._copy(path, self.base / path.name.replace("@", "/"))

    def forget(self) -> None:
        """Free the disk."""
        shutil.rmtree(self.base)
        shutil.rmtree(self._kept, ignore_errors=True)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        # Links, where files are never written again: one that was born later tells of a copied
        # tree. The catalog's files are written in place.
        copy = shutil.copy2 if "home" in (source.name, target.name) else os.link
        if source.is_dir():
            shutil.copytree(source, target, copy_function=copy)
        else:
            copy(source, target)

    def _ours(self) -> list[Path]:
        homes = [self.home] if self.home.exists() else []
        return [*homes, *self.tier.glob(_OURS), *self.run.glob(_OURS)]

    @property
    def _sidecar(self) -> Path:
        """Where a run's records lie: beside it, or under the tier's root if that is refused."""
        beside, apart = self.run / ".ckptgov", self.tier / ".ckptgov/foreign/run"
        homes = [path for path in (beside, apart) if (path / "run.json").exists()]
        assert len(homes) < 2, "the run's records lie at two places"
        return homes[0] if homes else beside

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The journal's records of one kind, read without ckptgov."""
        return [one for one in self.journal() if one["kind"] == kind]

    def journal(self) -> list[dict[str, Any]]:
        """Every record that carries a name of ours."""
        files = sorted((self._sidecar / "journal").glob("*.json"))
        return [json.loads(file.read_bytes()) for file in files if file.name[0] != "."]

    def receipts(self, name: str) -> list[Path]:
        """The receipts of one checkpoint."""
        return sorted((self._sidecar / "receipts").glob(f"{name}.*.json"))

    def temporary(self) -> list[Path]:
        """Names that a command makes and does not leave behind."""
        found = [*self.tier.rglob(".ckptgov-tmp-*"), *self.home.rglob("*.new-*")]
        return sorted(found)

    def manifests(self) -> dict[str, bytes]:
        """Every manifest by its file's name."""
        files = (self._sidecar / "manifests").glob("*.json")
        return {file.name: file.read_bytes() for file in files if file.name[0] != "."}


def trainers_files(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything beneath ``root`` that is not ours: kind, inode, size, times, bytes."""
    seen: dict[str, tuple[object, ...]] = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".ckptgov")]
        for name in (*names, *files):
            if name.startswith(".ckptgov"):
                continue
            path = Path(folder, name)
            at = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if name in files else ""
            seen[str(path.relative_to(root))] = (
                at.st_mode,
                at.st_ino,
                at.st_nlink,
                at.st_size if name in files else 0,
                at.st_mtime_ns,
                at.st_ctime_ns,
                content,
            )
    return seen


@dataclass(frozen=True)
class Outcome:
    """How a run stands, without what differs from one execution to the next."""

    manifests: dict[str, bytes]
    journal: list[str]
    answers: dict[str, object]

    def require(self, wanted: Outcome) -> None:
        """Fail, telling only what differs."""
        assert self.manifests == wanted.manifests
        assert self.journal == wanted.journal
        for question, answer in wanted.answers.items():
            assert self.answers[question] == answer, question


def outcome(stage: Stage, forkery: Forkery, *, said_once: bool = True) -> Outcome:
    """What a user and another program see of a run in the end.

    Without ``said_once`` a person may have given a command twice: then the journal may say it
    twice, on two lines, and the catalog lag behind it.
    """
    questions: dict[str, Words] = {
        "latest of the directory": ("latest", stage.run),
        "latest of the run": ("latest", "run"),
        "list": ("list", stage.run),
    }
    passing = _PASSING | {"line", "active_line", "evidence"}
    if said_once:
        questions["catalog check"] = ("catalog", "check")
        passing = _PASSING
    answers = forkery(stage.home, *questions.values())
    require_clear(answers)
    told = {
        question: [one.code, _without(one.json, passing)]
        for question, one in zip(questions, answers, strict=True)
    }
    said = [_without(record, passing | _STAMPED) for record in stage.journal()]
    texts = [json.dumps(record, sort_keys=True) for record in said]
    return Outcome(stage.manifests(), sorted(texts if said_once else set(texts)), told)


def _without(document: Any, names: frozenset[str]) -> Any:
    if isinstance(document, dict):
        return {key: _without(value, names) for key, value in document.items() if key not in names}
    if isinstance(document, list):
        return [_without(one, names) for one in document]
    return document


def require_sound(stage: Stage, manifests: dict[str, bytes]) -> None:
    """No half record, no half manifest, nothing said twice under one id.

    ``manifests`` are all that may lie there.
    """
    ids = [one["id"] for one in stage.journal()]
    assert len(ids) == len(set(ids)), "one record id stands twice in the journal"
    for name, content in stage.manifests().items():
        assert content == manifests.get(name), f"{name} is not what an undisturbed run writes"


def require_clear(answers: list[Answer]) -> None:
    """Every answer is one document, and no error is a surprise."""
    for one in answers:
        assert "Traceback" not in one.err, one
        error = one.json.get("error")
        if error is not None:
            assert error["message"], one
            assert error["kind"] != "unexpected", one
            assert error["exit_code"] == one.code, one
