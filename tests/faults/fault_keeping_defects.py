"""Changes to the program for the campaigns on removals, made in the process that is to run it."""

from __future__ import annotations

from typing import Any


def never_wait() -> None:
    """Pauses between tries take no time."""
    from ckptgov.model.clock import SystemClock

    SystemClock.sleep = lambda self, wait_s: None  # type: ignore[method-assign]


def small_pages(keys: int) -> None:
    """Listings come in pages of so many keys, and pauses between tries take no time."""
    from ckptgov.storage import _s3_listing

    original = _s3_listing._page

    class Paging:
        def __init__(self, bucket: Any) -> None:
            self._bucket = bucket

        def __getattr__(self, name: str) -> Any:
            return getattr(self._bucket, name)

        @property
        def client(self) -> Any:
            return self

        def list_objects_v2(self, **named: Any) -> Any:
            return self._bucket.client.list_objects_v2(**named, MaxKeys=keys)

    _s3_listing._page = lambda bucket, *rest: original(Paging(bucket), *rest)
    never_wait()
