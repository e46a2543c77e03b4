"""What people say of checkpoints and runs: pins, leases, metrics, the end of a run."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
