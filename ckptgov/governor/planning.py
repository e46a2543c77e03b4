"""Policies, plans and what they say of a run: the verbs of whoever decides what stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptgov.ops.context import Context


class PlanVerbs:
    """Part of ``Governor``."""

    @property
    def context(self) -> Context:
        """Settings and catalog of this home."""
        raise NotImplementedError
