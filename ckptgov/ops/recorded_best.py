"""Which checkpoint a trainer's own state calls its best: a name, never a place to go to.

The Hugging Face Trainer writes ``best_model_checkpoint`` into ``trainer_state.json`` of every
save, as an absolute path on the machine of that save. Only its last name is read off.
"""

from __future__ import annotations

import json
from typing import Final

from ckptgov.errors import Malformed
from ckptgov.storage.contract import Storage

STATE: Final = "trainer_state.json"
CAP_BYTES: Final = 256 * 2**20
"""A log history stays far below this."""


def recorded_best(storage: Storage, directory: str) -> str | None:
    """The name that the state in a checkpoint's ``directory`` gives; None where it gives none.

    Raises:
        Malformed: there is a state, and it cannot be understood.
        StorageError: it cannot be read, or a symlink stands in its place.
    """
    where = f"{directory}/{STATE}"
    try:
        with storage.open(where) as file:
            size = file.stat().bytes
            if size > CAP_BYTES:
                raise Malformed(f"{where}: {size} bytes, more than the {CAP_BYTES} allowed")
            raw = file.read_at(0, size)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        state = json.loads(raw)  # takes the bare words NaN and Infinity, as trainers write them
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{where}: does not parse as JSON") from error
    best = state.get("best_model_checkpoint") if isinstance(state, dict) else None
    if not isinstance(best, str):
        return None
    name = best.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return name if name not in ("", ".", "..") else None
