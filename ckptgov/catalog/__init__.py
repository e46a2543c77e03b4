"""Facts about runs and their checkpoints, in one SQLite file or one PostgreSQL database.

Promises: a state changes only from the state the caller expected, along
``model.copies.TRANSITIONS``, in one transaction with the event and the change number that tell of
it; several calls can be one transaction; a killed process leaves the state before or after, never
between. Flows and tasks change only their own row, and grants, leases, tasks and leadership are
fenced by numbers that never come again. A copy is condemned only where P2's own predicates, read
off the rows in the same transaction, let it go. Time is one clock's: the machine's, or the
server's. A damaged catalog is an error, never an empty one. Everything but events, restart
decisions, plans and what only a cluster needs (nodes, tokens, tasks) can be filled in again from
the tiers (``catalog rebuild``); a dump holds all of it, for either engine.

Must not know: storage, layouts, manifests' inside (their bytes come in and go out as given), and
why a state changes. This is the only SQL of the project; rows never leave the room, what goes in
and out are frozen values (``catalog.facts`` and ``model``).

Import from the modules: ``catalog.facts`` is cheap, ``catalog.catalog`` loads sqlmodel, which
costs more than all the rest of a start together. PostgreSQL and Alembic are loaded when needed.
"""
