"""What the rules of every tier say of every checkpoint there: candidates, and what is set apart."""

from __future__ import annotations

from collections.abc import Sequence

from ckptgov.model.checkpoint import Purpose
from ckptgov.model.retention import Action, DropReason, KeepReason, RunToKeep, Why
from ckptgov.planning.buckets import Buckets
from ckptgov.planning.retention_rules import Asked, kept_by
from ckptgov.planning.retention_terms import Terms
from ckptgov.planning.retention_view import AtTier, Seen
from ckptgov.planning.retention_words import moment, nanoseconds, span


class Ruling:
    """One checkpoint at one tier: what the tier's rules say, and what becomes of its copies there.

    ``keeps``: why the tier keeps it; empty where its rules let it go, which ``drop`` then words.
    ``is_remnant``: what is there is no whole checkpoint and can never be one; it goes only with
    the rest. ``action`` is of the copies that can go (``at.movable``), ``holds`` what held them
    back where the rules let them go.
    """

    __slots__ = ("action", "at", "drop", "holds", "is_remnant", "keeps")

    def __init__(self, at: AtTier) -> None:
        self.at = at
        self.keeps: list[Why] = []
        self.drop: Why | None = None
        self.is_remnant = False
        self.action: Action | None = None
        self.holds: list[Why] = []

    @property
    def holds_on(self) -> bool:
        """Whether the checkpoint stays at this tier, whatever its rules say of what could go."""
        return bool(self.keeps or self.at.away or self.at.foreign)


class Rules:
    """Applies the rules of every tier to a run."""

    def __init__(self, run: RunToKeep, terms: Terms, newest_first: Sequence[Seen]) -> None:
        self._run = run
        self._terms = terms
        self._seen = newest_first
        self._rulings = [
            {tier: Ruling(at) for tier, at in one.tiers.items()} for one in newest_first
        ]
        self._replaced = dict(run.line_replaced_at_ns)
        self._newest_of_lines = _newest_of_lines(newest_first)
        self._notes: list[str] = []
        self._buckets: Buckets | None = None

    def applied(self) -> tuple[list[dict[str, Ruling]], list[str]]:
        """Rulings by tier for each checkpoint, aligned with what was given; and notes."""
        classes: dict[tuple[str, Purpose], list[int]] = {}
        for index, one in enumerate(self._seen):
            purpose = one.purpose
            for tier in one.tiers:
                if purpose is None:
                    self._rulings[index][tier].keeps.append(_FOR_NOTHING)
                else:
                    classes.setdefault((tier, purpose), []).append(index)
        for (tier, purpose), members in sorted(classes.items()):
            self._at_tier(tier, purpose, members)
        return self._rulings, self._notes

    def _at_tier(self, tier: str, purpose: Purpose, members: Sequence[int]) -> None:
        rules = self._terms.rules(tier, purpose)
        if rules.is_empty:
            why = self._no_rules(tier, purpose)
            for index in members:
                self._rulings[index][tier].keeps.append(why)
            return
        gone = self._gone_words(tier, purpose)
        candidates: list[int] = []
        steps: set[int | None] = set()
        for index in members:
            one, ruling = self._seen[index], self._rulings[index][tier]
            if not self._set_apart(one, ruling):
                step = one.checkpoint.step
                if step in steps:
                    ruling.drop = _SAVED_AGAIN
                else:
                    steps.add(step)
                    candidates.append(index)
        if not candidates:
            return
        candidates.reverse()
        asked = Asked(
            [self._seen[index].checkpoint for index in candidates],
            tier=tier,
            buckets=self._calendar(),
            now_ns=self._terms.now_ns,
            recorded_best=self._run.recorded_best,
        )
        for index, whys in zip(candidates, kept_by(rules, asked), strict=True):
            ruling = self._rulings[index][tier]
            ruling.keeps += whys
            if not whys:
                ruling.drop = gone
        self._notes += asked.notes

    def _set_apart(self, one: Seen, ruling: Ruling) -> bool:
        """Rule on what takes no slot; False for a candidate."""
        at, held = ruling.at, one.checkpoint
        if not one.has_step:
            ruling.keeps.append(_STEPLESS)
        elif not at.verified:
            ruling.keeps.append(not_verified(at))
        elif not at.movable:
            pass  # of another catalog, or out of reach: that alone keeps it
        elif held.mark is not None:
            ruling.drop = Why(DropReason.MARKED_BAD, f"goes: {held.mark}")
        elif not one.is_on_path:
            self._old_line(one, ruling)
        elif not at.is_whole:
            if at.may_become_whole(held.shard_count):
                ruling.keeps.append(not_verified(at))
            else:
                ruling.is_remnant = True
                ruling.drop = Why(
                    DropReason.NO_RULE_KEEPS, f"goes: no more than parts at {at.tier}"
                )
        else:
            return False
        return True

    def _old_line(self, one: Seen, ruling: Ruling) -> None:
        line = one.checkpoint.line
        replaced_ns = self._replaced.get(line)
        spent = self._terms.policy.old_lines
        if replaced_ns is None or spent is None:
            ruling.keeps.append(_OLD_LINE)
            return
        until_ns = replaced_ns + nanoseconds(spent.after_s)
        if self._terms.now_ns < until_ns:
            text = f"kept: line {line} was replaced, and stays until {moment(until_ns)}"
            ruling.keeps.append(Why(KeepReason.OLD_LINE, text))
        elif one.checkpoint.content_id in self._newest_of_lines and not spent.newest_too:
            text = f"kept: the newest of line {line}, which was replaced"
            ruling.keeps.append(Why(KeepReason.OLD_LINE, text))
        else:
            since = moment(replaced_ns)
            text = f"goes: line {line} was replaced on {since}, over {span(spent.after_s)} ago"
            ruling.drop = Why(DropReason.OLD_LINE, text)

    def _calendar(self) -> Buckets:
        if self._buckets is None:
            self._buckets = Buckets(self._terms.policy.timezone)
        return self._buckets

    def _no_rules(self, tier: str, purpose: Purpose) -> Why:
        if not self._terms.has_policy:
            return _UNGOVERNED
        what = "weights" if purpose is Purpose.WEIGHTS else "keep"
        text = f"kept: policy {self._terms.policy.name} has no {what} rules for {tier}"
        return Why(KeepReason.NO_RULES, text)

    def _gone_words(self, tier: str, purpose: Purpose) -> Why:
        terms, name = self._terms, self._terms.policy.name
        is_ended = terms.is_retired and terms.policy.lifecycle.retired_keep is not None
        if is_ended and purpose is not Purpose.WEIGHTS:
            text = f"goes: the run is retired, and no rule of policy {name} then keeps it on {tier}"
            return Why(DropReason.RETIRED, text)
        return Why(DropReason.NO_RULE_KEEPS, f"goes: no rule of policy {name} keeps it on {tier}")


_FOR_NOTHING = Why(KeepReason.NO_RULES, "kept: it is complete for nothing that rules speak of")
_UNGOVERNED = Why(KeepReason.NO_RULES, "kept: no policy covers this run")
_STEPLESS = Why(KeepReason.STEPLESS, "kept: it carries no step")
_OLD_LINE = Why(KeepReason.OLD_LINE, "kept: of a line that a later one has replaced")
_SAVED_AGAIN = Why(
    DropReason.SAVED_AGAIN, "goes: the same step was saved again, and that one stands"
)


def not_verified(at: AtTier) -> Why:
    """What lies there is no proof of anything."""
    states = ", ".join(sorted({one.state.value for one in at.unproven}))
    text = f"kept: its copy at {at.tier} cannot be counted on ({states or 'parts'})"
    return Why(KeepReason.NOT_VERIFIED, text)


def _newest_of_lines(newest_first: Sequence[Seen]) -> frozenset[str]:
    """The newest checkpoint off the path of every line that can be restored from what is in reach.

    A newer one of which copies are out of reach stays for that alone.
    """
    found: dict[int, str] = {}
    for one in newest_first:
        held = one.checkpoint
        if one.is_on_path or not one.has_step or held.mark is not None or held.line in found:
            continue
        if one.purpose is not None and one.is_restorable(anywhere=False, durably=False):
            found[held.line] = held.content_id
    return frozenset(found.values())
