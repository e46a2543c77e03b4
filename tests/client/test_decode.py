"""What a service tells prints exactly as what this process finds, text and JSON alike."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptgov.errors import CkptgovError, CouldNotLook, Malformed, NoneRestorable, PartlyDone
from ckptgov.governor import Governor, open_governor
from ckptgov.model.checkpoint import Purpose, StepKind, VerifyLevel
from ckptgov.model.facts import Query
from ckptgov.model.movement import FlushAnswer, FlushedCheckpoint, FlushState
from ckptgov.model.pacing import FlowClass, FlowFacts, FlowRequest, FlowState
from ckptgov.model.settings import Link, TierSettings
from ckptgov.model.usage import DuAnswer, LeftKind, LeftUsage, TierUsage
from ckptgov.testing.builders.dcp import write_dcp
from ckptgov.wire import (
    decode,
    decode_errors,
    decode_movement,
    decode_settings,
    documents,
    movement,
    settings,
    usage,
)
from ckptgov.wire.members import Members, unescaped
from ckptgov_cli import render, render_moving, render_tiers, render_usage

Printed = tuple[int, bytes, bytes]


@pytest.fixture
def governor(tmp_path: Path) -> Iterator[Governor]:
    """A run with a whole, a torn and a bad checkpoint, one that is corrupt, and odd names."""
    from ckptgov.ops.budgets import link_tiers
    from ckptgov.ops.tiers import add_tier

    for name in ("lustre", "s3"):
        (tmp_path / name).mkdir()
    run = tmp_path / "lustre" / os.fsdecode(b"r\xff\xc3\xbcn")
    for step in (10, 20, 30, 40):
        write_dcp(run / f"step_{step}", ranks=2, seed=str(step))
    next((run / "step_40").glob("*.distcp")).unlink()
    with open_governor(environ={"CKPTGOV_HOME": str(tmp_path / "home")}) as made:
        for name in ("lustre", "s3"):
            root = str(tmp_path / name)
            add_tier(made.context, TierSettings(name=name, root=root, ingest=name == "lustre"))
        link_tiers(made.context, Link(source="lustre", target="s3", last=1))
        made.scan([], run="odd")
        made.mark_bad("odd", step=30, from_step=None, until_step=None, reason="loss")
        shard = next((run / "step_10").glob("*.distcp"))
        raw = shard.read_bytes()
        shard.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        yield made


@pytest.fixture
def same(capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., None]:
    """Whether two answers print the same."""

    def printed(show: Callable[[], int]) -> Printed:
        capsysbinary.readouterr()
        code: int
        try:
            code = show()
        except CkptgovError as error:
            code = error.exit_code
        told = capsysbinary.readouterr()
        return code, told.out, told.err

    def check(show: Callable[..., int], answer, document, back, **options: object) -> None:
        wired = json.loads(json.dumps(document))
        for as_json in (False, True):
            more = {**options, "as_json": as_json}
            mine = printed(partial(show, answer, **more))
            theirs = printed(partial(_of_document, show, wired, back, **more))
            assert mine == theirs
            assert mine[1] or mine[2]

    return check


def _of_document(show, wired, back, **options: object) -> int:
    return show(back(wired), **options)


def test_listings_print_the_same(governor, same) -> None:
    one = governor.listing("odd", Query())
    assert {verdict.is_restorable for verdict in one.verdicts} == {True, False}
    told = documents.listing(one)
    same(render.listing, one, told, decode.listing)
    same(render.explain, one, told, decode.listing, step=None)
    same(render.show, one, told, decode.listing, step=30)
    same(render.show, one, told, decode.listing, step=None)


@pytest.mark.parametrize(
    "query", [Query(), Query(step=30), Query(purpose=Purpose.WEIGHTS), Query(step=40)]
)
def test_latest_prints_the_same(governor, same, query: Query) -> None:
    from ckptgov_cli.latest import show

    one = governor.latest("odd", query, everything=True)
    for explain in (False, True):
        same(show, one, documents.latest(one), decode.latest, explain=explain)


def test_scans_print_the_same(governor, same) -> None:
    one = governor.scan([])
    same(render.scan, one, documents.scan(one), decode.scan, dry_run=False)


def test_verifications_print_the_same(governor, same) -> None:
    one = governor.verify("odd", level=VerifyLevel.DIGEST)
    assert one.error is not None
    same(render.verify, one, documents.verify(one), decode.verify)


def test_flushes_print_the_same(governor, same) -> None:
    for one in (governor.flush("odd"), governor.flush("odd"), governor.flush("odd", step=10)):
        same(render_moving.flushed, one, movement.flushed(one), decode_movement.flushed)


def test_a_rate_is_told_of_what_the_document_tells(same) -> None:
    one = FlushedCheckpoint(
        run="r",
        name="step_1",
        step=1,
        step_kind=StepKind.STEP,
        content_id="sha256:0",
        source="a",
        target="b",
        bytes=10**9,
        state=FlushState.FAILED,
        sent_bytes=10**9,
        took_s=0.0014999,
        missing=("x", os.fsdecode(b"\xff")),
        error=CouldNotLook("away", hint="mount it"),
    )
    answer = FlushAnswer(checkpoints=(one,), error=PartlyDone("one failed"))
    same(render_moving.flushed, answer, movement.flushed(answer), decode_movement.flushed)


def test_usage_and_reconciliations_print_the_same(governor, same, tmp_path) -> None:
    one = governor.du()
    same(render_usage.usage, one, usage.du(one), decode_movement.du)
    (tmp_path / "lustre" / ".ckptgov-tier.json").rename(tmp_path / "away")
    gone = governor.du()
    assert gone.error is None or gone.tiers
    same(render_usage.usage, gone, usage.du(gone), decode_movement.du)
    two = governor.reconcile([], older_than_s=0)
    back = decode_movement.reconciled
    same(render_usage.reconciled, two, usage.reconciled(two), back, dry_run=False)


def test_a_tier_that_could_not_be_looked_at_stays_unknown(same) -> None:
    error = CouldNotLook("not mounted")
    failure = ("r: nothing", NoneRestorable("no"))
    left = (LeftUsage(run=None, kind=LeftKind.STAGING, items=1, bytes=5),)
    tiers = (
        TierUsage(tier="a", node=None, root="/a", error=error),
        TierUsage(tier="b", node="n1", root="/b", left=left, failures=(failure,), free_bytes=1),
    )
    one = DuAnswer(tiers=tiers, error=error)
    same(render_usage.usage, one, usage.du(one), decode_movement.du)


def test_flows_print_the_same(same) -> None:
    request = FlowRequest(
        flow_id="f",
        what="run step_1",
        flow_class=FlowClass.DURABLE,
        source="a",
        target=None,
        node="n",
        bytes=5,
    )
    moving = FlowFacts(
        request=request,
        state=FlowState.MOVING,
        moved_bytes=1,
        rate_bytes_per_s=2,
        measured_bytes_per_s=3,
        eta_s=1.25,
    )
    told = {"flows": [movement.flow(moving)]}
    same(render_moving.flows, (moving,), told, decode_movement.flows)


def test_runs_tiers_and_budgets_print_the_same(governor, same) -> None:
    runs = governor.runs()
    same(render.runs, runs, settings.runs(runs), decode_settings.runs)
    tiers = governor.tiers()
    same(render_tiers.tiers, tiers, settings.tiers(tiers), decode_settings.tiers)
    of_tiers, of_nodes, percent = governor.budgets()
    document = settings.budgets(of_tiers, of_nodes, fallback_percent=percent)
    same(
        lambda found, *, as_json: render_tiers.budgets(
            *found, tier=None, node=None, as_json=as_json, dry_run=False
        ),
        (of_tiers, of_nodes, percent),
        document,
        decode_settings.budgets,
    )


@given(st.binary(max_size=30).filter(lambda raw: b"\\x" not in raw))
def test_any_name_survives(raw: bytes) -> None:
    name = os.fsdecode(raw)
    assert unescaped(documents.text(name)) == name


def test_every_missing_member_is_named(governor) -> None:
    """Taken away one at a time, at every depth: Malformed, naming it; nothing else ever."""
    told = json.loads(json.dumps(documents.listing(governor.listing("odd", Query()))))
    holders = [told, told["checkpoints"][0], told["checkpoints"][0]["copies"][0]]
    for holder in holders:
        for name in list(holder):
            kept = holder.pop(name)
            if name not in ("state",):
                with pytest.raises(Malformed, match=f'"{name}" is missing'):
                    decode.listing(told)
            holder[name] = kept
    decode.listing(told)


WRONG = st.one_of(st.none(), st.booleans(), st.floats(), st.text(), st.just([1]), st.just({}))


@given(st.dictionaries(st.sampled_from(["runs", "tiers", "checkpoints", "error", "path"]), WRONG))
def test_anything_else_is_malformed_and_never_another_failure(document) -> None:
    for back in (decode.latest, decode.listing, decode.scan, decode_movement.du):
        with contextlib.suppress(Malformed):
            back(document)


def test_members_that_a_newer_service_adds_are_ignored(governor) -> None:
    told = documents.latest(governor.latest("odd", Query()))
    assert decode.latest({**told, "tomorrow": {"x": 1}}).path == decode.latest(told).path


def test_a_wrong_kind_of_member_is_named() -> None:
    with pytest.raises(Malformed, match='"step" is not a whole number'):
        Members({"step": True}).whole("step")


def every_error() -> list[type[CkptgovError]]:
    found, todo = [], [CkptgovError]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += [each for each in one.__subclasses__() if each.__module__ == "ckptgov.errors"]
    return found


@pytest.mark.parametrize("kind", every_error())
def test_every_error_comes_back_as_itself(kind: type[CkptgovError]) -> None:
    back = decode_errors.error_of(documents.error_document(kind("why", hint="do this")))
    assert (type(back), back.message, back.hint) == (kind, "why", "do this")
