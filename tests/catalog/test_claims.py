"""Claims of readers, signs of life, samples of capacity, and the time that removals go by."""

from __future__ import annotations

import pytest

from ckptgov.catalog.samples import KEPT_NS, TierSample
from ckptgov.errors import LeaseLost, RefusedBySafety, UnknownRun

S = 10**9
C1 = ("r1", "sha256:c1")
HOUR_NS = 3600 * S


@pytest.fixture
def claims(filled):
    return filled.claims


def take(claims, **changes: object):
    fields = {"owner": "eval\udcff", "reason": "scoring", "ttl_s": 10.0}
    return claims.take(*C1, **(fields | changes))


class TestClaims:
    def test_a_claim_comes_back_as_it_was_taken(self, claims, clock) -> None:
        taken = take(claims)
        assert (taken.run_id, taken.content_id, taken.owner, taken.reason) == (
            *C1,
            "eval\udcff",
            "scoring",
        )
        assert (taken.taken_at_ns, taken.ends_at_ns) == (clock.at_ns, clock.at_ns + 10 * S)
        assert claims.claims() == claims.claims("r1") == (taken,)
        assert claims.claims("r2") == ()

    def test_everybody_has_a_claim_of_their_own(self, claims) -> None:
        both = {take(claims).lease_id, take(claims).lease_id}
        assert {one.lease_id for one in claims.claims()} == both
        claims.release(both.pop())
        assert {one.lease_id for one in claims.claims()} == both
        claims.release("unknown")

    def test_a_claim_ends_unless_it_is_prolonged(self, claims, clock) -> None:
        taken = take(claims)
        clock.at_ns += 9 * S
        claims.renew(taken.lease_id, ttl_s=5.0)
        clock.at_ns += 5 * S - 1
        assert [one.ends_at_ns for one in claims.claims()] == [clock.at_ns + 1]
        clock.at_ns += 1
        assert claims.claims() == ()

    def test_a_claim_that_ended_lately_can_be_prolonged(self, claims, clock) -> None:
        taken = take(claims)
        clock.at_ns += 20 * S - 1
        claims.renew(taken.lease_id, ttl_s=10.0)
        assert len(claims.claims()) == 1

    @pytest.mark.parametrize("late", [False, True])
    def test_a_claim_that_is_gone_cannot_be_prolonged(self, claims, clock, late) -> None:
        taken = take(claims)
        if late:
            clock.at_ns += 20 * S
        else:
            claims.release(taken.lease_id)
        with pytest.raises(LeaseLost, match="released, or ended"):
            claims.renew(taken.lease_id, ttl_s=10.0)
        assert claims.claims() == ()

    def test_what_is_not_known_cannot_be_claimed(self, claims) -> None:
        for run_id, content_id in (("r1", "other"), ("r2", "sha256:c1")):
            with pytest.raises(UnknownRun, match="knows no checkpoint"):
                claims.take(run_id, content_id, owner="o", reason="", ttl_s=1.0)

    @pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan")])
    def test_a_claim_for_no_time_is_refused(self, claims, ttl_s) -> None:
        with pytest.raises(ValueError, match="is none"):
            take(claims, ttl_s=ttl_s)
        with pytest.raises(ValueError, match="is none"):
            claims.renew("x", ttl_s=ttl_s)

    def test_readers_keep_their_claims_while_facts_are_rebuilt(self, filled, claims) -> None:
        taken = take(claims)
        filled.wipe_facts()
        assert claims.claims() == (taken,)

    def test_a_claim_changes_no_answer_about_a_run(self, filled, claims) -> None:
        seq, events = filled.change_seq(), filled.events()
        claims.release(take(claims).lease_id)
        assert (filled.change_seq(), filled.events()) == (seq, events)


class TestSigns:
    def test_a_question_is_noted_once_an_hour(self, catalog, clock) -> None:
        first = clock.at_ns
        catalog.signs.asked("r1")
        clock.at_ns += HOUR_NS - 1
        catalog.signs.asked("r1")
        catalog.signs.asked("r2")
        assert catalog.signs.signs() == {"r1": first, "r2": clock.at_ns}
        clock.at_ns += 1
        catalog.signs.asked("r1")
        assert catalog.signs.signs()["r1"] == clock.at_ns

    def test_a_question_asked_before_the_clock_went_back_still_counts(self, catalog, clock) -> None:
        clock.at_ns = later = 10 * HOUR_NS
        catalog.signs.asked("r1")
        clock.at_ns -= 5 * HOUR_NS
        catalog.signs.asked("r1")
        assert catalog.signs.signs() == {"r1": later}

    def test_a_question_changes_no_answer(self, catalog) -> None:
        seq, events = catalog.change_seq(), catalog.events()
        catalog.signs.asked("r1")
        assert (catalog.change_seq(), catalog.events()) == (seq, events)


def sample(place: str, at_ns: int, used_bytes: int = 1, **more: int) -> TierSample:
    return TierSample(place=place, at_ns=at_ns, used_bytes=used_bytes, **more)


class TestSamples:
    def test_samples_come_back_as_they_were_added_oldest_first(self, catalog) -> None:
        full = sample(
            "p1",
            9,
            5,
            free_bytes=2**62,
            total_bytes=3,
            files=4,
            free_files=5,
            quota_bytes=6,
            quota_files=7,
        )
        for each in (full, sample("p1", 5), sample("p2", 7)):
            catalog.samples.add(each)
        assert catalog.samples.samples("p1", since_ns=0) == (sample("p1", 5), full)
        assert catalog.samples.samples("p1", since_ns=6) == (full,)
        assert catalog.samples.newest() == (full, sample("p2", 7))

    def test_another_sample_of_one_moment_replaces_it(self, catalog) -> None:
        catalog.samples.add(sample("p1", 5, 1))
        catalog.samples.add(sample("p1", 5, 2))
        assert catalog.samples.samples("p1", since_ns=0) == (sample("p1", 5, 2),)

    def test_old_samples_of_a_place_are_dropped(self, catalog) -> None:
        for each in (sample("p1", 1), sample("p1", 2), sample("p2", 1)):
            catalog.samples.add(each)
        catalog.samples.add(sample("p1", 2 + KEPT_NS))
        assert [one.at_ns for one in catalog.samples.samples("p1", since_ns=0)] == [2, 2 + KEPT_NS]
        assert len(catalog.samples.samples("p2", since_ns=0)) == 1


class TestTick:
    def test_time_that_goes_on_is_told(self, catalog, clock) -> None:
        for _ in range(3):
            clock.at_ns += HOUR_NS
            assert catalog.tick() == clock.at_ns

    def test_a_clock_that_went_back_is_refused(self, catalog, clock) -> None:
        clock.at_ns = 10 * HOUR_NS
        catalog.tick()
        clock.at_ns -= 300 * S
        assert catalog.tick() == clock.at_ns
        clock.at_ns -= 1 * S
        with pytest.raises(RefusedBySafety, match="went back by 301 s") as caught:
            catalog.tick()
        assert "clock right" in (caught.value.hint or "")

    def test_a_clock_that_goes_back_little_by_little_is_refused(self, catalog, clock) -> None:
        clock.at_ns = 10 * HOUR_NS
        for _ in range(2):
            catalog.tick()
            clock.at_ns -= 200 * S
        with pytest.raises(RefusedBySafety):
            catalog.tick()

    def test_a_rebuild_is_the_way_out_of_a_clock_that_was_wrong(self, catalog, clock) -> None:
        clock.at_ns = 10_000 * HOUR_NS
        catalog.tick()
        clock.at_ns = HOUR_NS
        catalog.wipe_facts()
        assert catalog.tick() == HOUR_NS
