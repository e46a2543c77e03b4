"""Pins, metrics and ends of runs said to a service are the records that the command line writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptgov.errors import NoneRestorable, UsageError
from ckptgov.governor import open_governor
from ckptgov.manifest.forms.records import decode_record
from ckptgov.model.journal import Finish, Metric, Pin, Retire, Unpin
from ckptgov.ops import standing_history
from ckptgov.ops.context import Context
from ckptgov.ops.standing_history import Claim
from ckptgov.testing.builders import write_dcp


@pytest.fixture
def run(cli, tier: Path) -> Path:
    for step in (100, 200):
        write_dcp(tier / f"run/step_{step}")
    cli.done("scan", tier / "run")
    return tier / "run"


@pytest.fixture
def context(run):
    with open_governor() as governor:
        yield governor.context


def claim(context: Context, reason: str | None = "x", dry_run: bool = False, **wanted: object):
    told = Claim(**{"name": "a", "ttl_s": None, **wanted})
    return standing_history.claim(context, "run", told, reason=reason, dry_run=dry_run)


def newest(run: Path):
    """The newest record of the journal at the run's home."""
    file = max((run / ".ckptgov/journal").glob("0*.json"))
    return decode_record(file.read_bytes(), where=file.name)


def test_for_good_for_a_time_and_no_longer(context, run) -> None:
    for_good = claim(context, step=100, for_good=True)
    assert (type(for_good), for_good.until_ns) == (Pin, None)
    assert newest(run) == for_good
    timed = claim(context, step=100, ttl_s=60)
    assert timed.until_ns == timed.stamp.at_ns + 60 * 10**9
    ended = claim(context, step=100)
    assert (type(ended), ended.content_id) == (Unpin, for_good.content_id)


def test_they_are_what_the_command_line_writes(context, cli, run) -> None:
    told = claim(context, step=100, for_good=True, dry_run=True)
    cli.done("pin", "run", "100", "--name", "a", "--reason", "x")
    written = newest(run)
    assert (written.content_id, written.pin_name) == (told.content_id, told.pin_name)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"step": 100, "content_id": "sha256:" + "0" * 64, "ttl_s": 5}, UsageError),
        ({"ttl_s": 5}, UsageError),
        ({"step": 100, "ttl_s": 5, "for_good": True}, UsageError),
        ({"step": 100, "ttl_s": 5, "name": ""}, UsageError),
        ({"step": 100, "ttl_s": -5}, UsageError),
        ({"step": 100}, UsageError),
        ({"step": 300, "ttl_s": 5}, NoneRestorable),
        ({"content_id": "sha256:" + "0" * 64, "ttl_s": 5}, NoneRestorable),
    ],
)
def test_what_cannot_be_claimed_writes_nothing(context, run, wanted, error) -> None:
    before = newest(run)
    with pytest.raises(error):
        claim(context, **wanted)
    assert newest(run) == before


def test_what_is_gone_cannot_be_claimed(context, cli, run) -> None:
    content_id = claim(context, step=200, ttl_s=5, dry_run=True).content_id
    for file in (run / "step_200").iterdir():
        file.unlink()
    cli.done("scan", run)
    for wanted in ({"step": 200}, {"content_id": content_id}):
        with pytest.raises(NoneRestorable, match="gone"):
            claim(context, ttl_s=5, **wanted)


def test_a_lease_is_seen_by_who_removes_and_a_pin_is_the_journals(context) -> None:
    claims = context.catalog.claims
    claim(context, step=100, for_good=True)
    assert claims.claims() == ()
    for _ in range(2):  # taken, and renewed
        claim(context, step=100, name="lease:b", ttl_s=60, reason="evaluation")
    (one,) = claims.claims()
    assert (one.owner, one.reason) == ("b", "evaluation")
    claim(context, step=100, name="lease:b")
    assert claims.claims() == ()


def test_a_metric_of_a_step(context, run) -> None:
    told = standing_history.set_metric(context, "run", step=100, name="loss", value="nan")
    assert isinstance(told, Metric)
    assert newest(run) == told
    with pytest.raises(UsageError):
        standing_history.set_metric(context, "run", step=100, name="loss", value="low")
    with pytest.raises(NoneRestorable):
        standing_history.set_metric(context, "run", step=300, name="loss", value="1")


@pytest.mark.parametrize(("retire", "kind"), [(True, Retire), (False, Finish)])
def test_the_end_of_a_run_is_later_than_its_newest_save(context, run, retire, kind) -> None:
    saved = [one.sealed_at_ns for one in context.catalog.checkpoints(newest(run).stamp.run_id)]
    would = standing_history.end_run(context, "run", retire=retire, reason=None, dry_run=True)
    assert newest(run) != would
    told = standing_history.end_run(context, "run", retire=retire, reason="over")
    assert isinstance(told, kind)
    assert newest(run) == told
    assert told.stamp.at_ns > max(saved)
