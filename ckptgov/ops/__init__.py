"""A verb per module: the catalog's transitions around ``work``.

Promises: what is decided, ``planning`` decides from facts that are read here; storage is written
first, the catalog last: it is an index, and a killed verb leaves it merely behind. Removing alone
begins in the catalog, where P2's guard has the last word, and goes on from there.

Where things are: every verb works with ``context``. What lies there gets into the catalog by
``scan``, ``commit``, ``verify``, ``scrub``, ``rebuild`` and ``reconcile``, all of them through
``record``. Bytes move in ``flush``, ``restore`` and ``evacuate``, through ``moving`` and the
``flows*`` of the arbiter. ``history`` writes what people say, ``restarts`` what a restart was
given; ``standing*`` answer from the catalog alone, for a service. What may go: ``policies`` in
force and ``retention_facts`` of a run become a plan in ``plan*`` and ``stored_plans``; ``apply``
holds it against now (``fresh``) and against what has to stay (``removal_guard``, ``relied_on``),
``prune`` carries it out, and ``resisting`` says when to leave a place alone; ``undelete``,
``returning`` and ``comeback`` take it back, all with ``removing``; ``removed`` tells of it. Room:
``capacity``, ``placed``, ``du``, ``room`` and ``admission``; what lies there besides: ``sweep``
(ours), ``staging`` and ``orphans`` (others'). A cluster: ``own_*``, ``telling*``, ``digesting`` and
``node_*`` (removals) on the agent's side, ``posting*``, ``parts`` and ``flows_door`` on the
service's.

This room knows settings, catalog and work; it knows nothing of terminals or HTTP.
"""
