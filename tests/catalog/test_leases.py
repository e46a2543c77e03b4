"""Leases on bringing a checkpoint to a place, and what places can do."""

from __future__ import annotations

import pytest

from ckptgov.errors import LeaseLost

TTL_NS = 100


def take(catalog, holder: str, place: str = "p1") -> int:
    return catalog.take_copy_lease("sha256:c1", place, holder=holder, ttl_ns=TTL_NS)


def test_one_holder_at_a_time_and_the_other_is_told_who(catalog) -> None:
    assert take(catalog, "host:1") == 1
    with pytest.raises(LeaseLost, match=r"host:1 is copying sha256:c1 to place p1"):
        take(catalog, "host:2")
    assert take(catalog, "host:2", "p2") == 1


def test_an_expired_lease_is_taken_over_and_its_old_epoch_is_lost(catalog, clock) -> None:
    take(catalog, "host:1")
    clock.at_ns += TTL_NS
    assert take(catalog, "host:2") == 2
    with pytest.raises(LeaseLost, match="host:2"):
        catalog.renew_copy_lease("sha256:c1", "p1", epoch=1, ttl_ns=TTL_NS)
    catalog.renew_copy_lease("sha256:c1", "p1", epoch=2, ttl_ns=TTL_NS)


def test_a_renewed_lease_lasts_from_then_on(catalog, clock) -> None:
    epoch = take(catalog, "host:1")
    clock.at_ns += TTL_NS - 1
    catalog.renew_copy_lease("sha256:c1", "p1", epoch=epoch, ttl_ns=TTL_NS)
    clock.at_ns += TTL_NS - 1
    with pytest.raises(LeaseLost):
        take(catalog, "host:2")


def test_a_lease_that_ended_is_prolonged_while_nobody_took_it(catalog, clock) -> None:
    epoch = take(catalog, "host:1")
    clock.at_ns += 10 * TTL_NS
    catalog.renew_copy_lease("sha256:c1", "p1", epoch=epoch, ttl_ns=TTL_NS)
    assert catalog.copy_lease("sha256:c1", "p1").expires_at_ns == clock.at_ns + TTL_NS


def test_a_released_lease_is_free_and_its_epoch_does_not_come_again(catalog) -> None:
    epoch = take(catalog, "host:1")
    catalog.release_copy_lease("sha256:c1", "p1", epoch=epoch)
    assert take(catalog, "host:2") == epoch + 1


def test_releasing_what_was_taken_over_changes_nothing(catalog, clock) -> None:
    epoch = take(catalog, "host:1")
    clock.at_ns += TTL_NS
    take(catalog, "host:2")
    catalog.release_copy_lease("sha256:c1", "p1", epoch=epoch)
    assert catalog.copy_lease("sha256:c1", "p1").holder == "host:2"
    with pytest.raises(LeaseLost):
        take(catalog, "host:3")


def test_its_own_holder_takes_it_anew_under_a_new_epoch(catalog) -> None:
    assert (take(catalog, "host:1"), take(catalog, "host:1")) == (1, 2)
    with pytest.raises(LeaseLost):
        catalog.renew_copy_lease("sha256:c1", "p1", epoch=1, ttl_ns=TTL_NS)


def test_a_lease_that_never_was_cannot_be_renewed(catalog) -> None:
    assert catalog.copy_lease("sha256:c1", "p1") is None
    with pytest.raises(LeaseLost, match="nobody"):
        catalog.renew_copy_lease("sha256:c1", "p1", epoch=1, ttl_ns=TTL_NS)


def test_abilities_are_what_was_found_last(catalog) -> None:
    assert catalog.abilities("p1") is None
    catalog.put_abilities("p1", '{"a":1}', 5)
    catalog.put_abilities("p1", '{"a":2}', 6)
    assert catalog.abilities("p1") == '{"a":2}'


def test_leases_abilities_and_flows_outlive_a_rebuild(filled) -> None:
    take(filled, "host:1")
    filled.put_abilities("p1", "{}", 5)
    filled.wipe_facts()
    assert filled.copy_lease("sha256:c1", "p1").holder == "host:1"
    assert filled.abilities("p1") == "{}"
