"""How long to wait between tries: growing, jittered, bounded in number and in time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Tries of one call; waits double from ``first_s`` to ``cap_s``. ``tries`` counts the first.

    ``total_s`` bounds the sum of the waits: a store that says 503 for 20 s is outlasted, one that
    says it for ever ends in an error. No try begins later than ``elapsed_s`` after the first,
    which bounds calls that hang until their own time limit.
    """

    tries: int = 10
    first_s: float = 0.1
    cap_s: float = 20.0
    total_s: float = 120.0
    elapsed_s: float = 300.0


def waits(policy: RetryPolicy, random: Callable[[], float]) -> Iterator[float]:
    """The seconds to wait before each further try; ends when it is time to give up.

    Full jitter between half of the step and the step, so that ranks refused together do not come
    back together. ``random`` gives numbers in [0, 1).
    """
    left_s, step_s = policy.total_s, policy.first_s
    for _ in range(policy.tries - 1):
        wait_s = min(step_s, policy.cap_s) * (0.5 + random() / 2)
        if wait_s > left_s:
            return
        left_s -= wait_s
        yield wait_s
        step_s *= 2
