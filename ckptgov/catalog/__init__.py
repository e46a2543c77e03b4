"""Facts about runs and their checkpoints, in one SQLite file: an index of what lies on storage.

Promises: a state changes only from the state the caller expected, along
``model.copies.TRANSITIONS``, in one transaction with the event that tells of it; several calls
can be one transaction; a killed process leaves the state before or after, never between. Flows
change only their own row, and grants and leases are fenced by an epoch that never comes again. A
damaged file is an error, never an empty catalog. Everything but events and restart decisions can
be filled in again from the tiers (``catalog rebuild``).

Must not know: storage, layouts, manifests' inside (their bytes come in and go out as given), and
why a state changes. This is the only SQL of the project; rows never leave the room, what goes in
and out are frozen values (``catalog.facts`` and ``model``).

Import from the modules: ``catalog.facts`` is cheap, ``catalog.catalog`` loads sqlmodel, which
costs more than all the rest of a start together.
"""
