"""In the child that is killed: removals instead of the command line, on a real directory."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ckptgov.errors import CkptgovError
from ckptgov.model.checkpoint import Manifest
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.removals import Stage
from ckptgov.work.remove import put_back


def removals() -> None:
    """Let the next command be one of ``aside ROOT CONTENT_ID``, ``purge`` or ``back`` with a
    trash entry as the third word."""
    import ckptgov_cli.main

    ckptgov_cli.main.main = _run  # type: ignore[assignment]


def _run(words: Sequence[str]) -> int:
    verb, root, content_id, trash, *_ = words
    os.chdir(root)
    with PosixStorage(root) as storage:
        try:
            print(json.dumps(_done(Stage.at(storage), verb, content_id, trash)))
        except CkptgovError as error:
            print(json.dumps({"error": {"kind": error.kind, "message": error.message}}))
            return error.exit_code
    return 0


def _done(stage: Stage, verb: str, content_id: str, trash: str) -> dict[str, object]:
    match verb:
        case "aside":
            moved = stage.move(_named(stage, content_id))
            return {"trash": moved.trash, "left": moved.left}
        case "purge":
            return {"left": stage.purge(_named(stage, content_id), trash).left}
        case _:
            return {"name": put_back(stage.place(), stage.store, trash)}


def _named(stage: Stage, content_id: str) -> Manifest:
    """Only its id is asked for."""
    return Manifest(
        content_id=content_id,
        name="?",
        step=None,
        step_kind="none",  # type: ignore[arg-type]
        layout="?",
        world_size=None,
        purposes=(),
        shards=(),
    )
