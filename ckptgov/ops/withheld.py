"""What is condemned is not offered any more, though it still lies there whole and sealed.

Storage does not tell: a condemnation is only a decision, and the catalog's. A look that was told
of it passes such copies over, and says why.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from ckptgov.layouts.tree import LookSettings
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.facts import CheckpointFacts, Finding, Reason
from ckptgov.work.look import RunLook, SealedCopy
from ckptgov.work.tier import Place

CONDEMNED_WORDS = "condemned: a plan lets it go; 'ckptgov undelete' keeps it"


class WithholdingLook(RunLook):
    """A look that offers none of the ``withheld`` content ids from its place."""

    def __init__(
        self,
        place: Place,
        run_root: str,
        settings: LookSettings,
        *,
        partial: bool = False,
        withheld: Collection[str],
    ) -> None:
        self._withheld = frozenset(withheld)
        super().__init__(place, run_root, settings, partial=partial)

    def facts_of_sealed(self, copy: SealedCopy) -> CheckpointFacts:
        """A sealed checkpoint as this place tells it, and what was decided about it."""
        facts = super().facts_of_sealed(copy)
        if copy.manifest.content_id not in self._withheld:
            return facts
        finding = Finding(Reason.SUPERSEDED, facts.name, CONDEMNED_WORDS)
        return replace(
            facts,
            evidence=Evidence.NONE,
            findings=(finding,),
            copies=tuple(
                replace(one, evidence=Evidence.NONE, findings=(finding,)) for one in facts.copies
            ),
        )
