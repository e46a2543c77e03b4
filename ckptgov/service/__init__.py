"""ckptgov as a service: an HTTP API, workers, a scheduler, agents on nodes.

Promises: every answer is the document that the command line prints with ``--json``; an error says
which of "never any", "none restorable" and "could not look" it is (P5); what an answer rests on
was committed at most 100 ms before it was asked for. Whatever is decided here is decided in a
transaction of the catalog or by a create-once record on storage, so that any number of replicas
may run, die and come back.

Where things are: ``serve`` starts a process of it and ``serving`` is what all of it works with.
Requests pass ``fastpath`` (the one hot question, from ``answers``), then ``front``, then ``app``
and ``api`` to an endpoint: each ``routes_*`` is a table of endpoints and what they do, ``access``
says who may. ``leadership``, ``scheduler`` and ``activities`` make tasks; ``workers`` carry them
out by ``runners``, and ``outcomes`` says which counts as a success. ``agent*`` is the other
program, on a node; ``peer_*`` its door to other nodes; ``node_removals`` asks it to remove what
lies there, ``node_outcomes`` takes in what came of it. ``metrics`` (by ``census`` and
``keeping_census``, ``sums``, ``spaces``, ``families*``), ``alerts`` (what is ``noticing``) and
``logs`` tell people.

Must not know: SQL, and how checkpoints lie on storage; that is ``ops``. Nothing here is imported
by a command that does not serve.
"""
