"""Pure decisions: facts (+ policy + now) in, a decision with reasons out.

This room promises that equal input gives an equal answer, in any order of the input, and that
every checkpoint passed over carries at least one reason of the closed set. It knows no storage,
no catalog, no clock and no randomness.

Where things are: ``choose`` (by ``lines``) is ``latest``; ``flush`` says what a link carries,
``bandwidth*`` who may move how fast, ``merge`` what parts make one save. ``retention`` decides of
one run: ``retention_rules`` keep, ``retention_protection`` outweighs them, ``retention_settling``
says what may really go. ``retention_plan`` puts all runs together, ``capacity*`` lets more give
way where a tier is too full, ``room`` answers whether something fits, ``growth`` when nothing will.
"""
