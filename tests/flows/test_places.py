"""Which place a configured tier stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.errors import ForeignPlace
from ckptgov.governor import open_governor
from ckptgov.ops import context as opening
from ckptgov.work.abilities import Abilities, to_json
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


@pytest.mark.parametrize("put", [True, False, None])
@pytest.mark.parametrize("parts", [True, False, None])
def test_arrivals_count_as_checked_only_where_put_and_part_refused_a_wrong_checksum(
    cli, tier: Path, put: bool | None, parts: bool | None
) -> None:
    cli.done("tier", "add", "there", tier)
    with open_governor() as governor:
        context = governor.context
        place = context.place(context.settings.tiers[0])
        assert place.uuid is not None
        found = Abilities(checksums_on_put=put, checksums_on_parts=parts)
        context.catalog.put_abilities(place.uuid, to_json(found), 1)
        assert context.checks_arrivals(place) is (put is True and parts is True)
