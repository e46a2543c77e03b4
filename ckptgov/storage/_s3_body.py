"""Bytes to send, from where they lie, and what botocore does with them on their way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, cast

from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from mypy_boto3_s3.client import S3Client

_STEP_BYTES = 2**20
_PLAIN_SIGNER = "ckptgov-s3v4"


class Body:
    """The body of one request. ``sent_bytes`` counts what was handed to the connection.

    Signers read it like a file. On the wire it goes in steps of 1 MiB: urllib3 would take 16 KiB
    of a file, and a buffer in one call, whose time limit then holds for all of it, which a large
    part on a slow line never meets. ``prepare`` is what turns the one into the other.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0
        self.sent_bytes = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, amount: int = -1) -> memoryview:
        end = len(self._view) if amount < 0 else self._position + amount
        taken = self._view[self._position : end]
        self._position += len(taken)
        return taken

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        start = (0, self._position, len(self._view))[whence]
        self._position = start + position
        return self._position

    @property
    def as_boto(self) -> IO[bytes]:
        """Itself, as boto3's types call it."""
        return cast("IO[bytes]", self)


class _Steps:
    def __init__(self, body: Body) -> None:
        self._body = body

    def __len__(self) -> int:
        return len(self._body)

    def __iter__(self) -> Iterator[memoryview]:
        self._body.seek(0)
        while step := self._body.read(_STEP_BYTES):
            self._body.sent_bytes += len(step)
            yield step


def prepare(client: S3Client) -> None:
    """Let the bodies of a client leave as :class:`Body` says; twice does nothing more."""
    events = client.meta.events
    events.register("before-send.s3", _in_steps, unique_id="ckptgov-steps")
    AUTH_TYPE_MAPS.setdefault(_PLAIN_SIGNER, S3SigV4Auth)
    for operation in ("PutObject", "UploadPart"):
        events.register_first(
            f"choose-signer.s3.{operation}", _signer, unique_id=f"ckptgov-signer-{operation}"
        )


def _in_steps(request: AWSPreparedRequest, **_: object) -> None:
    """The request is signed, and about to leave."""
    if isinstance(request.body, Body):
        request.body = _Steps(request.body)


def _signer(signature_version: str, context: dict[str, object], **_: object) -> Any:
    """Where ``awscrt`` is installed it signs, and hashes a payload four times slower than hashlib.

    Only where the payload is part of the signature, which is over plain HTTP.
    """
    settings = getattr(context.get("client_config"), "s3", None) or {}
    is_hashed = signature_version == "s3v4" and settings.get("payload_signing_enabled")
    return _PLAIN_SIGNER if is_hashed else None
