"""Which place a configured tier stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.errors import ForeignPlace
from ckptgov.governor import open_governor
from ckptgov.ops import context as opening
from ckptgov.work.locate import open_place


def test_another_store_with_the_same_url_is_never_taken_for_the_first(
    cli, tier: Path, tmp_path: Path, monkeypatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    cli.done("tier", "add", "first", tier)
    cli.done("tier", "add", "second", other)

    def store_at(root: str, *, endpoint: str | None, **how: object):
        return open_place(str(other) if endpoint else root, tier=how["tier"])

    monkeypatch.setattr(opening, "open_place", store_at)
    with open_governor() as governor:
        first, second = governor.context.settings.tiers
        governor.context.place(first)
        with pytest.raises(ForeignPlace):
            governor.context.place(replace(second, root=first.root, endpoint="https://elsewhere"))
