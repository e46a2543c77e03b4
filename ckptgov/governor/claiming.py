"""What people say of checkpoints and runs: pins, metrics, the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptgov.ops.context import Context


class ClaimVerbs:
    """Part of ``Governor``."""

    @property
    def context(self) -> Context:
        """Settings and catalog of this home."""
        raise NotImplementedError
