"""What is said of a run, as the record that the service wrote of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptgov.client.transport import Transport

if TYPE_CHECKING:
    from ckptgov.model.journal import Record
    from ckptgov.wire.documents import Document


def record(
    transport: Transport, path: str, body: Document, *, is_repeatable: bool = False
) -> Record:
    """Say something of a run: the record of it, or (a dry run) the one that would be written.

    Raises:
        Malformed: what came back is none.
        CkptgovError: the service's own error.
    """
    import json

    from ckptgov.manifest.forms.records import decode_record
    from ckptgov.wire.members import Members

    told = transport.send("POST", path, body, is_repeatable=is_repeatable)
    Members(told).member("record")
    text = json.dumps(told["record"], ensure_ascii=True, separators=(",", ":"))
    return decode_record(f"{text}\n".encode(), where="the answer of the service")
