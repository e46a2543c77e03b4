"""One round of the arbiter: who may move, how fast, and what the others are told."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptgov.model.pacing import Budget, FlowClass, FlowRequest
from ckptgov.model.settings import NodeSettings, Scope, Settings, TierSettings
from ckptgov.planning.bandwidth import (
    UNLIMITED,
    FlowView,
    Limits,
    Rates,
    Share,
    Silence,
    WaitCause,
    fallback_rates,
    is_free,
    limits_of,
    plan,
    quantum_bytes,
)
from ckptgov.planning.bandwidth_needs import Key, capacity, need_of

MB = 10**6


def request(flow_id: str, **changes: object) -> FlowRequest:
    fields: dict[str, object] = {
        "flow_id": flow_id,
        "what": "run/step_1",
        "flow_class": FlowClass.DURABLE,
        "source": "nvme",
        "target": "s3",
        "node": "a",
        "bytes": 10**12,
    }
    return FlowRequest(**(fields | changes))


def view(flow_id: str, **changes: object) -> FlowView:
    about_flow = {name for name in FlowView.__struct_fields__ if name != "request"}
    own = {name: value for name, value in changes.items() if name in about_flow}
    asked = {name: value for name, value in changes.items() if name not in about_flow}
    return FlowView(request=request(flow_id, **asked), **({"waiting_since_ns": 0} | own))


def settle(limits: Limits, views: list[FlowView], rounds: int = 4) -> dict[str, Share]:
    """The shares once everybody has heard what it was granted."""
    for _ in range(rounds):
        shares = {one.flow_id: one for one in plan(limits, views)}
        views = [_heard(one, shares[one.request.flow_id]) for one in views]
    return shares


def _heard(one: FlowView, share: Share) -> FlowView:
    return FlowView(
        request=one.request,
        waiting_since_ns=one.waiting_since_ns,
        held=share.rates,
        granted=share.rates,
        fallback=share.fallback,
        wanted=one.wanted,
    )


def limits(**budgets: Budget) -> Limits:
    return Limits(budgets={f"tier {name}": budget for name, budget in budgets.items()})


def written(shares: dict[str, Share]) -> dict[str, int | None]:
    return {
        flow_id: None if one.rates is None else one.rates.write_bytes_per_s
        for flow_id, one in shares.items()
    }


S3 = limits(s3=Budget(write_bytes_per_s=400 * MB))


def test_one_flow_gets_the_whole_budget() -> None:
    assert written(settle(S3, [view("a")])) == {"a": 400 * MB}


def test_only_the_limited_side_is_paced() -> None:
    assert settle(S3, [view("a")])["a"].rates == Rates(None, 400 * MB, None, None)


def test_a_copy_reads_no_faster_than_it_may_write() -> None:
    both = limits(s3=Budget(write_bytes_per_s=400 * MB), nvme=Budget(read_bytes_per_s=900 * MB))
    assert settle(both, [view("a")])["a"].rates == Rates(400 * MB, 400 * MB, None, None)


def test_four_flows_move_at_a_time_where_the_budget_does_not_say_how_many() -> None:
    shares = settle(S3, [view(f"f{index}") for index in range(6)])
    assert list(written(shares).values()) == [100 * MB] * 4 + [None] * 2
    assert shares["f5"].wait.text == "flows of tier s3: 4 of 4"


def test_as_many_flows_move_as_the_budget_says() -> None:
    one = limits(s3=Budget(write_bytes_per_s=400 * MB, flows=1))
    assert written(settle(one, [view("a"), view("b")])) == {"a": 400 * MB, "b": None}


def test_an_earlier_checkpoint_goes_before_a_later_one_of_its_class() -> None:
    two = limits(s3=Budget(write_bytes_per_s=400 * MB, flows=2))
    flows = [view("z1", order=(1,)), view("a2", order=(2,)), view("y1", order=(1,))]
    shares = settle(two, flows)
    assert written(shares) == {"z1": 200 * MB, "y1": 200 * MB, "a2": None}
    assert shares["a2"].wait.cause is WaitCause.ORDER
    assert shares["a2"].wait.text == "an earlier checkpoint of this class goes first"


def test_among_flows_of_one_order_the_first_to_come_goes_first() -> None:
    one = limits(s3=Budget(write_bytes_per_s=400 * MB, flows=1))
    flows = [view("a", waiting_since_ns=9), view("b", waiting_since_ns=3)]
    assert written(settle(one, flows)) == {"a": None, "b": 400 * MB}


def test_a_flow_under_way_is_not_stopped_for_an_earlier_checkpoint() -> None:
    one = limits(s3=Budget(write_bytes_per_s=400 * MB, flows=1))
    going = Rates(None, 400 * MB, None, None)
    flows = [view("late", order=(9,), held=going, granted=going), view("early", order=(1,))]
    assert written(settle(one, flows)) == {"late": 400 * MB, "early": None}


def test_a_more_urgent_class_takes_the_place_of_a_less_urgent_one() -> None:
    going = Rates(None, 100 * MB, None, None)
    flows = [
        *(view(f"d{index}", order=(index,), held=going, granted=going) for index in range(4)),
        view("r", flow_class=FlowClass.RESTORE),
    ]
    first = {one.flow_id: one for one in plan(S3, flows)}
    assert first["d3"].rates is None, "the last in order is stopped first"
    assert first["r"].rates is None, "and begins only after that one was heard to have stopped"
    assert first["r"].wait.text == "flows of tier s3: 4 of 4"
    later = written(settle(S3, flows))
    assert later["d3"] is None
    assert later["r"] == 370 * MB, "less the fallback rates of the three that go on"
    assert sum(rate or 0 for rate in later.values()) > 399 * MB


def test_what_one_flow_gives_up_goes_on_only_after_it_was_heard() -> None:
    going = Rates(None, 400 * MB, None, None)
    flows = [view("a", held=going, granted=going), view("b")]
    first = {one.flow_id: one for one in plan(S3, flows)}
    assert first["a"].rates.write_bytes_per_s == 200 * MB
    assert first["b"].rates is None
    assert first["b"].wait.text == "rate of tier s3"


def test_a_flow_that_wants_less_leaves_the_rest_to_the_others() -> None:
    wanted = Rates(50 * MB, 50 * MB, None, None)
    shares = written(settle(S3, [view("a", wanted=wanted), view("b")]))
    assert shares == {"a": 50 * MB, "b": 350 * MB}


def test_a_full_node_does_not_hold_the_tier_back() -> None:
    both = Limits(
        budgets={
            "tier s3": Budget(write_bytes_per_s=400 * MB),
            "node a": Budget(write_bytes_per_s=60 * MB),
        }
    )
    flows = [view("a1"), view("a2"), view("b", node="b")]
    assert written(settle(both, flows)) == {"a1": 30 * MB, "a2": 30 * MB, "b": 340 * MB}


def test_the_reason_names_the_node_whose_places_are_taken() -> None:
    both = Limits(
        budgets={"tier s3": Budget(write_bytes_per_s=400 * MB), "node a": Budget(flows=1)}
    )
    assert settle(both, [view("x"), view("y")])["y"].wait.text == "flows of node a: 1 of 1"


def test_requests_are_shared_out_beside_the_bytes() -> None:
    shares = settle(limits(s3=Budget(requests_per_s=10)), [view(f"f{n}") for n in range(4)])
    assert shares["f0"].rates == Rates(None, None, None, 2500)


def test_a_companion_takes_no_place_and_gets_a_rate() -> None:
    one = limits(s3=Budget(write_bytes_per_s=400 * MB, read_bytes_per_s=100 * MB, flows=1))
    flows = [
        view("main"),
        view("readback", source="s3", target=None, is_companion=True),
        view("other"),
    ]
    shares = settle(one, flows)
    assert shares["main"].rates == Rates(None, 400 * MB, None, None)
    assert shares["readback"].rates == Rates(100 * MB, None, None, None)
    assert shares["other"].rates is None


def test_without_a_budget_nothing_waits() -> None:
    free = limits(s3=Budget())
    assert is_free(request("a"), free)
    assert {one.rates for one in plan(free, [view(f"f{n}") for n in range(9)])} == {UNLIMITED}


def test_a_budget_that_is_new_is_kept_by_flows_that_had_no_limit() -> None:
    flows = [view(f"f{n}", held=UNLIMITED, granted=UNLIMITED) for n in range(2)]
    first = plan(S3, flows)
    assert [one.rates.write_bytes_per_s for one in first] == [200 * MB] * 2


def test_a_silent_flow_keeps_its_rate_for_one_more_lease_and_its_fallback_after_that() -> None:
    going = Rates(None, 100 * MB, None, None)
    kept = Rates(None, 10 * MB, None, None)
    others = [view(f"f{n}") for n in range(3)]
    for silence, left in ((Silence.EXPIRED, 300 * MB), (Silence.LOST, 390 * MB)):
        silent = view("s", held=going, granted=going, fallback=kept, silence=silence)
        shares = plan(S3, [silent, *others])
        rates = {one.flow_id: one.rates for one in shares}
        assert sum(rates[f"f{n}"].write_bytes_per_s for n in range(3)) == pytest.approx(left, abs=9)
        assert rates["s"] == (going if silence is Silence.EXPIRED else kept)


def test_a_stopped_process_gives_its_place_up_once_it_is_lost() -> None:
    going, kept = Rates(None, 100 * MB, None, None), Rates(None, 10 * MB, None, None)
    told = {"held": going, "granted": going, "fallback": kept}
    for silence, begins in ((Silence.EXPIRED, False), (Silence.LOST, True)):
        flows = [view(f"s{n}", silence=silence, **told) for n in range(4)]
        shares = {one.flow_id: one for one in plan(S3, [*flows, view("new")])}
        assert (shares["new"].rates is not None) is begins


def test_nothing_is_set_aside_for_a_flow_whose_place_a_silent_one_still_holds() -> None:
    two = limits(s3=Budget(write_bytes_per_s=400 * MB, flows=2))
    quarter = Rates(None, 100 * MB, None, None)
    silent = view("s", held=quarter, granted=quarter, silence=Silence.EXPIRED)
    shares = plan(two, [silent, view("a", held=quarter, granted=quarter), view("new")])
    rates = {one.flow_id: one.rates for one in shares}
    assert rates["a"] == Rates(None, 300 * MB, None, None)
    assert rates["new"] is None


def test_a_waiting_flow_that_is_silent_is_not_let_in() -> None:
    (share,) = plan(S3, [view("a", silence=Silence.EXPIRED)])
    assert share.rates is None
    assert share.wait.cause is WaitCause.UNHEARD


def test_each_flow_owns_a_part_of_the_share_kept_aside() -> None:
    assert fallback_rates(request("a"), S3) == Rates(None, 10 * MB, None, None)
    many = Limits(
        budgets={"tier s3": Budget(write_bytes_per_s=400 * MB, flows=16)}, fallback_percent=40
    )
    assert fallback_rates(request("a"), many) == Rates(None, 10 * MB, None, None)


def test_budgets_of_settings_are_known_by_tier_and_node() -> None:
    budget = Budget(write_bytes_per_s=5)
    found = limits_of(
        Settings(
            home="/h",
            tiers=(
                TierSettings(name="s3", root="s3://b", budget=budget),
                TierSettings(
                    name="nvme", root="/n", scope=Scope.NODE, node="a", budget=Budget(flows=2)
                ),
            ),
            nodes=(NodeSettings(name="a", budget=budget),),
            fallback_percent=20,
        )
    )
    assert found.budgets == {
        "tier s3": budget,
        "tier nvme of node a": Budget(flows=2),
        "node a": budget,
    }
    assert found.fallback_percent == 20
    assert found.tier("nvme", "a") == "tier nvme of node a"


@pytest.mark.parametrize(
    ("rate", "quantum"),
    [(0, 2**20), (4 * 2**20, 2**20), (40 * 2**20, 10 * 2**20), (10**12, 64 * 2**20)],
)
def test_a_quantum_is_a_quarter_of_a_second_within_bounds(rate: int, quantum: int) -> None:
    assert quantum_bytes(rate) == quantum


_amounts = st.none() | st.integers(10**3, 10**10)
_budgets = st.builds(
    Budget,
    read_bytes_per_s=_amounts,
    write_bytes_per_s=_amounts,
    requests_per_s=st.none() | st.integers(1, 10**4),
    flows=st.none() | st.integers(1, 6),
)
_limits = st.builds(
    Limits,
    budgets=st.dictionaries(
        st.sampled_from(["tier s3", "tier nvme of node a", "tier lustre", "node a", "node b"]),
        _budgets,
    ),
    node_tiers=st.just(frozenset({"nvme"})),
    fallback_percent=st.integers(1, 90),
)
_tiers = st.sampled_from([None, "s3", "nvme", "lustre"])
_requests = st.builds(
    FlowRequest,
    flow_id=st.just(""),
    what=st.just("run"),
    flow_class=st.sampled_from(FlowClass),
    source=_tiers,
    target=_tiers,
    node=st.sampled_from(["a", "b"]),
    bytes=st.just(1),
    weight=st.integers(-1, 9),
    order=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    is_companion=st.booleans(),
)
_wanted = st.builds(Rates, *[_amounts] * 4)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Limits, list[FlowView]]:
    """Flows that have moved for some rounds: some stop being heard, and budgets change."""
    limits = draw(_limits)
    views: list[FlowView] = []
    for index in range(draw(st.integers(0, 12))):
        asked = draw(_requests)
        fields = {name: getattr(asked, name) for name in asked.__struct_fields__}
        views.append(
            FlowView(
                request=FlowRequest(**(fields | {"flow_id": f"f{index:02}"})),
                waiting_since_ns=draw(st.integers(0, 3)),
                wanted=draw(st.just(UNLIMITED) | _wanted),
            )
        )
    for _ in range(draw(st.integers(0, 3))):
        heard = draw(st.lists(st.booleans(), min_size=len(views), max_size=len(views)))
        views = after(plan(limits, views), views, heard)
    silence = st.sampled_from([Silence.HEARD, Silence.HEARD, Silence.EXPIRED, Silence.LOST])
    views = [_with(one, silence=draw(silence)) for one in views]
    return limits, views


def _with(one: FlowView, **changes: object) -> FlowView:
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    return FlowView(**(fields | changes))


def after(shares: tuple[Share, ...], views: list[FlowView], heard: list[bool]) -> list[FlowView]:
    """The flows once the grants are written, and some of them have heard."""
    granted = {one.flow_id: one for one in shares}
    following = []
    for one, is_heard in zip(views, heard, strict=True):
        share = granted[one.request.flow_id]
        held = share.rates if is_heard else _most(one.held, share.rates)
        following.append(_with(one, held=held, granted=share.rates, fallback=share.fallback))
    return following


def _most(one: Rates | None, other: Rates | None) -> Rates | None:
    if one is None or other is None:
        return one or other
    pairs = zip(one, other, strict=True)
    return Rates(*(None if None in pair else max(pair) for pair in pairs))


def usable(one: FlowView, share: Share) -> Rates | None:
    """The most a flow may be using after this round."""
    if one.silence is Silence.LOST and one.held is not None:
        return share.rates
    if one.silence is Silence.EXPIRED:
        return one.held
    return _most(one.held, share.rates)


def sums(limits: Limits, views: list[FlowView], shares: tuple[Share, ...]) -> dict[Key, int]:
    used: dict[Key, int] = defaultdict(int)
    for one, share in zip(views, shares, strict=True):
        rates = usable(one, share)
        if rates is None:
            continue
        need = need_of(one.request, limits)
        keyed = zip(
            (need.read_keys, need.write_keys, need.read_request_keys, need.write_request_keys),
            rates,
            strict=True,
        )
        for keys, rate in keyed:
            for key in keys:
                assert rate is not None
                assert rate >= 0
                used[key] += rate
    return used


@settings(max_examples=80, deadline=None)
@given(clusters())
def test_what_all_flows_may_be_using_is_never_above_a_budget(
    cluster: tuple[Limits, list[FlowView]],
) -> None:
    limits, views = cluster
    shares = plan(limits, views)
    for key, used in sums(limits, views, shares).items():
        assert used <= capacity(limits, key)


@settings(max_examples=80, deadline=None)
@given(clusters())
def test_whoever_may_move_can_fall_back_without_taking_more(
    cluster: tuple[Limits, list[FlowView]],
) -> None:
    limits, views = cluster
    for share in plan(limits, views):
        if share.rates is not None:
            for rate, fallback in zip(share.rates, share.fallback, strict=True):
                assert (rate is None) is (fallback is None)
                assert rate is None or rate >= fallback


@settings(max_examples=40, deadline=None)
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_changes_nothing(
    cluster: tuple[Limits, list[FlowView]], rng
) -> None:
    limits, views = cluster
    shuffled = list(views)
    rng.shuffle(shuffled)
    assert plan(limits, shuffled) == plan(limits, views)


@settings(max_examples=40, deadline=None)
@given(clusters())
def test_nothing_is_left_over_that_a_moving_flow_could_use(
    cluster: tuple[Limits, list[FlowView]],
) -> None:
    limits, views = cluster
    views = [_with(one, silence=Silence.HEARD) for one in views]
    for _ in range(6):
        shares = plan(limits, views)
        views = after(shares, views, [True] * len(views))
    used = sums(limits, views, shares)
    for one, share in zip(views, shares, strict=True):
        need = need_of(one.request, limits)
        if share.rates is None or not need.byte_keys:
            continue
        rate = min(rate for rate in share.rates[:2] if rate is not None)
        wanted = [one.wanted[0]] * bool(need.read_keys) + [one.wanted[1]] * bool(need.write_keys)
        is_satisfied = None not in wanted and rate >= max(wanted)
        spare = min(capacity(limits, key) - used[key] for key in need.byte_keys)
        assert is_satisfied or spare <= 200, "more than rounding"


@settings(max_examples=30, deadline=None)
@given(clusters())
def test_every_waiting_flow_is_told_why(cluster: tuple[Limits, list[FlowView]]) -> None:
    limits, views = cluster
    by_id = {one.request.flow_id: one for one in views}
    for share in plan(limits, views):
        if share.rates is None and by_id[share.flow_id].silence is not Silence.EXPIRED:
            assert share.wait is not None
            assert share.wait.text
