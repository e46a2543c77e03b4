"""Pure decisions: facts (+ policy + now) in, a decision with reasons out.

This room promises that equal input gives an equal answer, in any order of the input, and that
every checkpoint passed over carries at least one reason of the closed set. It knows no storage,
no catalog, no clock and no randomness.
"""
