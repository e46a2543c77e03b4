"""Policies: check them, show them, explain what they do to a run."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
