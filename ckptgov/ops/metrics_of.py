"""What is known of how good checkpoints are.

Values are decimal strings as the trainer spelled them; ``nan`` and ``inf`` are values like others
here: who ranks them leaves them out. A metric told later outweighs the one that was sealed.
"""

from __future__ import annotations

from collections.abc import Iterable

from ckptgov.model.journal import Metric, NumberedRecord, Sealed
from ckptgov.planning.lines import ordered


def metrics_of(records: Iterable[NumberedRecord]) -> dict[str, dict[str, str]]:
    """Content id to its metrics by name, by all ``sealed`` and ``metric`` records of a run.

    Checkpoints without any are left out. What a person or a script told (``ckptgov metric``)
    outweighs what was recorded at the seal, whichever of the two records came first: a rebuild, or
    a copy of the journal, may number them anew.
    """
    sealed: dict[str, dict[str, str]] = {}
    told: dict[str, dict[str, str]] = {}
    for item in ordered(records):
        record = item.record
        if isinstance(record, Sealed) and record.metrics:
            sealed.setdefault(record.content_id, {}).update(record.metrics)
        elif isinstance(record, Metric):
            told.setdefault(record.content_id, {})[record.name] = record.value
    return {key: sealed.get(key, {}) | told.get(key, {}) for key in (*sealed, *told)}
