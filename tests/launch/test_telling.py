"""Telling an outcome is never in a command's way."""

from __future__ import annotations

import threading

import pytest

from ckptgov.errors import CouldNotLook
from ckptgov.integrations.telling import Teller
from ckptgov.model.journal import RestoreOutcome

STARTED, LATER = RestoreOutcome.STARTED, RestoreOutcome.FAILED_LATER


def test_outcomes_are_told_in_order() -> None:
    told: list[tuple[RestoreOutcome, str | None]] = []
    teller = Teller(lambda *each: told.append(each), talk=pytest.fail)
    teller.say(STARTED)
    teller.say(LATER, "exit code 1")
    teller.finish(60.0)
    assert told == [(STARTED, None), (LATER, "exit code 1")]


@pytest.mark.parametrize("error", [CouldNotLook("no answer"), RuntimeError("no answer")])
def test_what_goes_wrong_is_only_said_and_the_next_is_told(error: Exception) -> None:
    said: list[str] = []
    told: list[RestoreOutcome] = []

    def tell(outcome: RestoreOutcome, reason: str | None) -> None:
        if outcome is STARTED:
            raise error
        told.append(outcome)

    teller = Teller(tell, said.append)
    teller.say(STARTED)
    teller.say(LATER)
    teller.finish(60.0)
    assert told == [LATER]
    (text,) = said
    assert "no answer" in text


def test_a_storage_that_hangs_costs_no_more_than_the_patience() -> None:
    said: list[str] = []
    answers = threading.Event()
    teller = Teller(lambda outcome, reason: answers.wait() and None, said.append)
    teller.say(STARTED)
    teller.finish(0.0)
    assert "could not be told" in said[0]
    answers.set()


def test_nothing_to_tell_takes_no_time() -> None:
    Teller(lambda outcome, reason: None, pytest.fail).finish(60.0)
