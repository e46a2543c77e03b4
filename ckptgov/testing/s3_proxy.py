"""A reverse proxy in front of an S3 store that makes it misbehave, as told, while it runs.

``with s3_proxy(store_url, access_key, secret_key) as proxy`` gives ``proxy.url``, an endpoint with
the same buckets and credentials. ``proxy.inject(Fault(Trouble.SLOW_DOWN, for_s=20))`` changes the
answers, ``proxy.calls`` tells what was asked and how many bytes went either way. Requests are
signed again on their way (needs botocore), since a changed request would not match its signature.
Path-style addresses only.
"""

from __future__ import annotations

import contextlib
import fnmatch
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec


class Trouble(StrEnum):
    """What can go wrong with a request."""

    SLOW_DOWN = "slow-down"  # 503 SlowDown; the store never sees the request
    INTERNAL_ERROR = "internal-error"  # 500 InternalError, likewise
    DROP_BEFORE = "drop-before"  # connection closed; the store never sees the request
    DROP_AFTER = "drop-after"  # the store did it; connection closed before its answer
    STALL = "stall"  # the request is taken, no answer ever comes; the store never sees it
    STALL_BODY = "stall-body"  # half of the answer's body, then nothing ever
    DELAY = "delay"  # everything happens, `delay_s` late
    IGNORE_CONDITIONS = "ignore-conditions"  # If-Match, If-None-Match are lost on their way
    ACCEPT_WRONG_CHECKSUMS = "accept-wrong-checksums"  # checksums are lost, and echoed as if taken
    SHUFFLE_LIST = "shuffle-list"  # a listing's page in another order
    SHORT_LIST = "short-list"  # a listing without its last entries that says it is complete
    TRUNCATE_BODY = "truncate-body"  # half of the answer's body, then connection closed
    SHORT_BODY = "short-body"  # half of the answer's body, and a Content-Length that agrees
    FLIP_BYTE = "flip-byte"  # one bit in the middle of the answer's body is wrong


class Fault(msgspec.Struct, frozen=True):
    """One trouble, and which requests have it.

    ``key``: a glob on the key within its bucket, decoded (``*`` matches ``/`` too); that of a
    listing is its prefix. ``method``: GET, PUT ...; ``*`` any. ``query``: names that must all
    stand in the query (``uploadId``, ``list-type``). ``skip``: how many matching requests pass
    first. ``times`` and ``for_s``: how many requests then have it, and for how long, counted from
    ``inject``; without them for ever.
    """

    trouble: Trouble
    key: str = "*"
    method: str = "*"
    query: tuple[str, ...] = ()
    skip: int = 0
    times: int | None = None
    for_s: float | None = None
    delay_s: float = 0.0

    def concerns(self, call: Call) -> bool:
        """Whether the request is one of those meant."""
        return (
            self.method in ("*", call.method)
            and fnmatch.fnmatchcase(call.key, self.key)
            and all(name in call.query for name in self.query)
        )


class Call(msgspec.Struct):
    """One request, as far as it got. ``status`` 0: never answered."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    status: int = 0
    sent_bytes: int = 0  # of the request's body, taken from the client
    received_bytes: int = 0  # of the answer's body, given to the client
    troubles: tuple[Trouble, ...] = ()

    @classmethod
    def parse(cls, method: str, target: str) -> Call:
        """From a request line's method and target."""
        split = urlsplit(target)
        bucket, _, key = unquote(split.path).lstrip("/").partition("/")
        found = parse_qs(split.query, keep_blank_values=True)
        query = {name: values[0] for name, values in found.items()}
        return cls(method, bucket, key or query.get("prefix", ""), query)


class InjectedFault:
    """A fault in force; ``fired`` counts the requests that had it."""

    def __init__(self, fault: Fault, until_s: float | None) -> None:
        self.fault = fault
        self.fired = 0
        self._seen = 0
        self._until_s = until_s

    def hits(self, call: Call, now_s: float) -> bool:
        """Whether this request has it; counts."""
        if not self.fault.concerns(call):
            return False
        if self._until_s is not None and now_s >= self._until_s:
            return False
        self._seen += 1
        if self._seen <= self.fault.skip or self.fired == self.fault.times:
            return False
        self.fired += 1
        return True


class S3Proxy:
    """The faults in force and the calls so far; threads share it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.url = ""
        self._clock = clock
        self._lock = threading.Lock()
        self._faults: list[InjectedFault] = []
        self._calls: list[Call] = []
        self._released = threading.Event()

    def inject(self, *faults: Fault) -> InjectedFault:
        """Add faults to those in force; a request has every one that concerns it.

        Returns the last one, whose ``fired`` can be looked at.
        """
        if not faults:
            raise ValueError("no fault")
        with self._lock:
            for fault in faults:
                until_s = None if fault.for_s is None else self._clock() + fault.for_s
                injected = InjectedFault(fault, until_s)
                self._faults.append(injected)
        return injected

    def clear(self) -> None:
        """Nothing goes wrong any more; connections that stall are closed."""
        with self._lock:
            self._faults.clear()
            self._released.set()
            self._released = threading.Event()

    def forget_calls(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._calls.clear()

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every request so far, in the order of their arrival."""
        with self._lock:
            return tuple(self._calls)

    def count(self, method: str = "*", key: str = "*", *, query: tuple[str, ...] = ()) -> int:
        """How many requests there were, retries included."""
        return len(self._chosen(method, key, query))

    def sent_bytes(self, method: str = "*", key: str = "*") -> int:
        """Bytes of request bodies that arrived here, those of failed requests included."""
        return sum(call.sent_bytes for call in self._chosen(method, key, ()))

    def received_bytes(self, method: str = "*", key: str = "*") -> int:
        """Bytes of answers' bodies that were given out."""
        return sum(call.received_bytes for call in self._chosen(method, key, ()))

    def _chosen(self, method: str, key: str, query: tuple[str, ...]) -> list[Call]:
        wanted = Fault(Trouble.DELAY, key=key, method=method, query=query)
        return [call for call in self.calls if wanted.concerns(call)]

    # for the connections

    def arrived(self, call: Call) -> dict[Trouble, Fault]:
        """Note a request; the troubles it has."""
        with self._lock:
            now_s = self._clock()
            hitting = [each.fault for each in self._faults if each.hits(call, now_s)]
            self._calls.append(call)
            call.troubles = tuple(fault.trouble for fault in hitting)
        return {fault.trouble: fault for fault in hitting}

    def stall(self) -> None:
        """Return when the faults were cleared or the proxy ends."""
        with self._lock:
            released = self._released
        released.wait()


def reason_to_skip() -> str | None:
    """Why the proxy cannot run here; None where it can."""
    try:
        import botocore.auth  # noqa: F401
    except ImportError:
        return "botocore is not installed"
    return None


@contextlib.contextmanager
def s3_proxy(
    store_url: str,
    access_key: str,
    secret_key: str,
    *,
    region: str = "us-east-1",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[S3Proxy]:
    """Serve on a free port of loopback; yields the proxy, whose ``url`` is the endpoint.

    ``clock`` is what ``Fault.for_s`` is measured with. Credentials must be those of the store;
    what a client signed with is not checked.
    """
    from ckptgov.testing._s3_forwarding import Upstream, serve

    proxy = S3Proxy(clock)
    with serve(proxy, Upstream(store_url, access_key, secret_key, region)) as url:
        proxy.url = url
        try:
            yield proxy
        finally:
            proxy.clear()
