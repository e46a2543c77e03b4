"""How a catalog of an older version becomes one of the next, and back: Alembic revisions.

Promises: statements frozen as they were then, on both engines, each revision within the caller's
one transaction. The version that counts stands in ``meta``, which older programs read as well;
Alembic's own table is set from it. Must not know: the tables as they are now.
"""
