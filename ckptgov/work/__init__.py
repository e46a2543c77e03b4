"""Resumable tasks that need no catalog: look, decide, seal, verify, copy, remove.

This room promises that every task may be killed at any moment and run again, that nothing is
written inside a trainer's checkpoint directory, and that what it reports is what it compared. It
knows storage, manifests, layouts and the pure plans; it must not know the catalog, configuration
files or the command line: this is what an agent without a database can run.

Where things are: ``look`` sees one run root at one place, ``ask`` several, ``runstore`` is what
ckptgov keeps there. ``scan``, ``seal``, ``commit`` and ``halves`` publish manifests, ``verify``
and ``copyproof`` compare. ``flush``, ``restore``, ``copy`` and ``landing`` bring bytes.
``remove`` takes a copy away: ``removal_unseal``, then ``removal_files``, into the ``trash``, out of
which ``purge`` or ``put_back`` leads; ``removal_room`` is for when there is none, and ``leaving``
tells every look what is on its way.
"""
