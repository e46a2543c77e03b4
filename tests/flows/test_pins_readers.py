"""Whoever reads a checkpoint holds it, so that nothing is moved away under the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import Interrupted
from ckptgov.governor import open_governor
from ckptgov.model.clock import SystemClock
from ckptgov.ops.claims import READ_RENEW_S, READ_TTL_S, ReadClaim
from ckptgov.testing.builders import write_dcp


@pytest.fixture
def run(cli, tier: Path) -> Path:
    write_dcp(tier / "run/step_100")
    cli.done("scan", tier / "run")
    return tier / "run"


@pytest.fixture
def catalog(run: Path, home: Path):
    file, clock = str(home / "catalog.sqlite"), SystemClock()
    with Catalog.open(file, fs_type="ext4", is_network=False, clock=clock) as opened:
        yield opened


class Ticking(SystemClock):
    """A clock that a test moves on."""

    passed_s = 0.0

    def now_ns(self) -> int:
        return super().now_ns() + int(self.passed_s * 1e9)

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_s


def test_a_restore_holds_what_it_reads_and_lets_go_of_it(run, catalog, tmp_path: Path) -> None:
    seen = []

    def stop() -> bool:
        seen.extend(catalog.claims.claims())
        return False

    with open_governor() as governor:
        governor.restore("run", to=str(tmp_path / "out"), stop=stop)
    (known,) = catalog.checkpoints(catalog.runs()[0].identity.run_id)
    assert {one.content_id for one in seen} == {known.content_id}
    assert seen[0].reason == f"restore to {tmp_path / 'out'}"
    assert catalog.claims.claims() == ()


def test_one_that_is_stopped_lets_go_of_it_too(run, catalog, tmp_path: Path) -> None:
    with open_governor() as governor, pytest.raises(Interrupted):
        governor.restore("run", to=str(tmp_path / "out"), stop=lambda: True)
    assert catalog.claims.claims() == ()


def test_a_dry_run_holds_nothing(run, catalog, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ReadClaim, "__init__", lambda *_: pytest.fail("claimed"))
    with open_governor() as governor:
        governor.restore("run", to=str(tmp_path / "out"), dry_run=True)


def test_without_a_catalog_nothing_is_held_and_none_is_made(
    cli, tmp_path: Path, run, home, forget_catalog
) -> None:
    forget_catalog()
    cli.done("restore", run, "--to", tmp_path / "out")
    assert not (home / "catalog.sqlite").exists()


@pytest.fixture
def claim(run, catalog):
    """A claim whose time a test moves on; it is held through a governor of its own."""
    (known,) = catalog.checkpoints(catalog.runs()[0].identity.run_id)
    clock = Ticking()
    with open_governor(clock=clock) as governor:
        held = ReadClaim(governor.context, known.run_id, known.content_id, "test")
        held.moved_on = lambda seconds: setattr(clock, "passed_s", clock.passed_s + seconds)
        held.claims = governor.context.catalog.claims
        yield held


def test_it_is_renewed_while_pieces_come(claim) -> None:
    (first,) = claim.claims.claims()
    claim.moved_on(READ_RENEW_S - 1)
    assert claim.keep() is False
    assert claim.claims.claims() == (first,)
    claim.moved_on(1)
    claim.keep()
    (again,) = claim.claims.claims()
    assert again.lease_id == first.lease_id
    assert again.ends_at_ns > first.ends_at_ns


def test_one_that_ran_out_while_the_process_was_stopped_is_taken_anew(claim) -> None:
    (first,) = claim.claims.claims()
    claim.moved_on(10 * READ_TTL_S)
    assert claim.claims.claims() == ()
    claim.keep()
    (again,) = claim.claims.claims()
    assert again.lease_id != first.lease_id


def test_a_catalog_that_cannot_be_written_ends_no_restore(claim, catalog) -> None:
    claim.release()
    claim.moved_on(READ_RENEW_S)
    claim._content_id = "sha256:" + "0" * 64  # known to nobody, so that no claim can be taken
    claim._lease_id = None
    assert claim.keep() is False
    assert claim.claims.claims() == ()
