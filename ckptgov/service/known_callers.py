"""Tokens that were just seen to be in force, so that the hot question costs no look at the catalog.

They are forgotten with every change that concerns no single run, as a revoked token does; and
they open only what ``Answers`` may give from memory, which needs a look for changes that began at
most 100 ms ago.
"""

from __future__ import annotations

import threading

from ckptgov.model.access import EVERYTHING, Caller, TokenFacts
from ckptgov.model.cluster import RunChange
from ckptgov.service.access import SCHEME, caller_with, hash_of, is_in_force
from ckptgov.service.answers import Answers
from ckptgov.service.serving import Serving

_MOST = 10_000


class KnownCallers:
    """By the ``Authorization`` of a request, as it was sent."""

    def __init__(self, serving: Serving, answers: Answers) -> None:
        self._serving = serving
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[TokenFacts, Caller]] = {}
        self._generation = 0
        answers.on_change(self._changed)

    def caller_of(self, authorization: bytes) -> Caller | None:
        """Who sends it; None: not known here, which says nothing."""
        if self._serving.is_open:
            return EVERYTHING
        found = self._known.get(authorization)
        if found is None or not is_in_force(found[0], self._serving.clock.now_ns()):
            return None
        return found[1]

    def learn(self, authorization: bytes) -> None:
        """Look a token up, for the next time.

        Raises:
            CkptgovError: the catalog does not answer.
        """
        scheme, _, text = authorization.decode("latin-1").strip().partition(" ")
        if scheme.lower() != SCHEME:
            return
        with self._lock:
            generation = self._generation
        facts = self._serving.catalog.tokens.by_secret(hash_of(text.strip()))
        if facts is None:
            return
        with self._lock:
            if generation != self._generation:
                return  # it may have been revoked since it was read
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[authorization] = (facts, caller_with(facts))

    def _changed(self, change: RunChange) -> None:
        if change.run_id is None:
            with self._lock:
                self._generation += 1
                self._known.clear()
