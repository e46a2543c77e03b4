"""One bucket through one client: every call retried, every failure of the contract's kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import urlsplit

from ckptgov.errors import SlowDown, StorageError, TransientStorageError
from ckptgov.model.clock import Clock
from ckptgov.storage._s3_body import prepare
from ckptgov.storage._s3_errors import FAILURES, is_answer, translate
from ckptgov.storage.backoff import RetryPolicy, waits

if TYPE_CHECKING:
    from botocore.config import Config
    from botocore.loaders import Loader
    from mypy_boto3_s3.client import S3Client

T = TypeVar("T")

_CONNECT_S = 10.0
_CONNECTIONS = 32
_STRANGER_TRIES = 4


class Bucket:
    """A client, the bucket's name, and how to try again. Threads may share it.

    ``on_push_back`` is called at each answer that asks for less (503 SlowDown, 429).
    """

    def __init__(
        self,
        client: S3Client,
        name: str,
        *,
        clock: Clock,
        random: Callable[[], float],
        policy: RetryPolicy,
    ) -> None:
        self.client = client
        self.name = name
        self.clock = clock
        self.random = random
        self.policy = policy
        self._is_known = False
        self.on_push_back: Callable[[], None] = _nothing
        prepare(client)

    def call(
        self,
        where: str,
        operation: Callable[[], T],
        *,
        lasting: tuple[type[TransientStorageError], ...] = (),
    ) -> T:
        """What ``operation`` returns; tried again after what may pass, except after ``lasting``.

        Raises:
            FileNotFoundError: 404.
            StorageError: anything else; transient where the tries ended.
        """
        pauses = waits(self.policy, self.random)
        begun_s, tries = self.clock.monotonic(), 0
        while True:
            tries += 1
            try:
                result = operation()
            except FAILURES as error:
                told = translate(error, where)
                self._is_known = self._is_known or is_answer(error)
                if isinstance(told, SlowDown):
                    self.on_push_back()
                if not isinstance(told, TransientStorageError) or isinstance(told, lasting):
                    raise told from error
                pause_s = next(pauses, None)
                if pause_s is None or self._is_hopeless(tries, begun_s):
                    raise told from error
            else:
                self._is_known = True
                return result
            self.clock.sleep(pause_s)

    def _is_hopeless(self, tries: int, begun_s: float) -> bool:
        """A store that never answered yet may not exist; one that hangs has had its time."""
        is_stranger = not self._is_known and tries >= _STRANGER_TRIES
        return is_stranger or self.clock.monotonic() - begun_s > self.policy.elapsed_s


def make_client(
    endpoint: str | None, *, read_timeout_s: float, sign_payload: bool | None = None
) -> S3Client:
    """A client by the usual AWS chain; ``endpoint`` goes before all that it says.

    At any endpoint but Amazon's the bucket stands in the path: such stores seldom have a name for
    each bucket. ``sign_payload``: whether the signature covers the payload, which takes a SHA-256
    of all that is sent; by default over plain HTTP only, since TLS guards it as well.

    Raises:
        StorageError: settings or endpoint make no sense, or a profile is missing.
    """
    guess = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    try:
        client = _client(endpoint, _settings(guess, read_timeout_s, sign_payload))
        found = client.meta.endpoint_url
        if guess is None and not is_amazon(found):  # a profile names it
            client = _client(endpoint, _settings(found, read_timeout_s, sign_payload))
    except FAILURES as error:
        told = translate(error, endpoint or "the S3 client")
        raise StorageError(str(told), hint="look at the AWS settings in use") from error
    return client


def _client(endpoint: str | None, settings: Config) -> S3Client:
    from botocore.session import get_session

    session = get_session()
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))
    made = session.create_client("s3", endpoint_url=endpoint, config=settings)
    return cast("S3Client", made)


@cache
def _models(path: str | None) -> Loader:
    """What botocore knows of S3's calls: a megabyte of JSON, read once and not for each client."""
    from botocore.loaders import create_loader

    return create_loader(path)


def _settings(endpoint: str | None, read_timeout_s: float, sign_payload: bool | None) -> Config:
    from botocore.config import Config

    is_plain = endpoint is not None and urlsplit(endpoint).scheme == "http"
    return Config(
        signature_version="s3v4",
        # The time to connect also bounds each step of sending: urllib3 sets no other.
        connect_timeout=_CONNECT_S,
        read_timeout=read_timeout_s,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=_CONNECTIONS,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            "addressing_style": "path" if endpoint else "auto",
            "payload_signing_enabled": is_plain if sign_payload is None else sign_payload,
        },
    )


def is_amazon(url: str) -> bool:
    """Whether an endpoint is one of Amazon's own."""
    host = urlsplit(url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _nothing() -> None:
    """Nobody listens."""
