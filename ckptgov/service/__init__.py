"""ckptgov as a service: an HTTP API, workers, a scheduler, agents on nodes.

Promises: every answer is the document that the command line prints with ``--json``; an error says
which of "never any", "none restorable" and "could not look" it is (P5); what an answer rests on
was committed at most 100 ms before it was asked for. Whatever is decided here is decided in a
transaction of the catalog or by a create-once record on storage, so that any number of replicas
may run, die and come back.

Must not know: SQL, and how checkpoints lie on storage; that is ``ops``. Nothing here is imported
by a command that does not serve.
"""
