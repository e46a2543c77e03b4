"""Budgets and links: changed in configuration, from where every process reads them."""

from __future__ import annotations

from collections.abc import Callable

from ckptgov.config.budgets import change_budget as write_budget
from ckptgov.config.edit import add_link as write_link
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import Link, Settings
from ckptgov.ops.context import Context


def change_budget(
    context: Context,
    tier: str | None,
    node: str | None,
    change: Callable[[Budget], Budget],
    *,
    dry_run: bool = False,
) -> Settings:
    """Change what may be taken from a tier (on one or each of its nodes), or by a node in all.

    Returns the settings as they are then, or with ``dry_run`` would be.

    Raises:
        UsageError: no such tier is configured.
        ConfigError: the file leaves no place for the change; it is as it was.
    """
    told = write_budget(context.settings.home, tier, node, change, dry_run=dry_run)
    if not dry_run:
        context.settings = told
    return told


def link_tiers(context: Context, link: Link, *, dry_run: bool = False) -> Link:
    """Configure what flows from one tier to another.

    Raises:
        ConfigError: a tier is not configured, they are linked already, or it closes a circle.
    """
    told = write_link(context.settings.home, link, dry_run=dry_run)
    if not dry_run:
        context.settings = told
    return link
