"""What stands between ckptgov and the programs that start training.

Promises: a training command is started from what ``latest`` decided for this restart, or fresh
where nothing was ever saved and that was allowed, and from nothing else: an error never starts it
(P5, P6). Once it runs, nothing of ckptgov stops it: signals go through, its exit code comes back,
and a report that cannot be made is only told.

Must not know: which checkpoint is the right one (the governor or the service decides), SQL, and
how checkpoints lie on storage. Imports no framework.
"""
