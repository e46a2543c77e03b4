"""One line of the table: a ratio beside its budget."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTHS = (62, 9, 22, 7)
_TITLES = ("WHAT, AGAINST WHAT", "BUDGET", "RATIO (LEAST-MOST)", "VERDICT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What was compared, and the ratio of each turn; none where it could not be measured.

    ``at_most`` and ``at_least`` are the budget; without either the line only tells.
    """

    what: str
    ratios: Sequence[float] = ()
    at_most: float | None = None
    at_least: float | None = None
    unit: str = "x"
    note: str = ""

    @property
    def median(self) -> float:
        """The middle turn's ratio."""
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        """Told, never asserted."""
        if not self.ratios:
            return "not run"
        if self.at_most is not None:
            return "pass" if self.median <= self.at_most else "MISSED"
        if self.at_least is not None:
            return "pass" if self.median >= self.at_least else "MISSED"
        return "-"


def header() -> str:
    """The titles of the columns."""
    return _row(_TITLES)


def render(line: Line) -> str:
    """One row, with its note beneath where it has one."""
    row = _row((line.what, _budget(line), _ratio(line), line.verdict))
    return f"{row}\n    {line.note}" if line.note else row


def _budget(line: Line) -> str:
    if line.at_most is not None:
        return f"<= {line.at_most:g} {line.unit}"
    return f">= {line.at_least:g} {line.unit}" if line.at_least is not None else "-"


def _ratio(line: Line) -> str:
    if not line.ratios:
        return "-"
    spread = f"({min(line.ratios):.2f}-{max(line.ratios):.2f})" if len(line.ratios) > 1 else ""
    return f"{line.median:.2f} {line.unit} {spread}".rstrip()


def _row(cells: Sequence[str]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
    return "  ".join(padded).rstrip()
