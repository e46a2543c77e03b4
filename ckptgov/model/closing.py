"""What every closable thing of ours does in a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Closed when its ``with`` block ends, however it ends."""

    __slots__ = ()

    def close(self) -> None:
        """Give back what is held open; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
