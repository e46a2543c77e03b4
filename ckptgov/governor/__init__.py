"""Composition: wires configuration to storage, catalog, operations and the service, behind verbs.

Promises the verbs of ``model.verbs``, whoever answers them: looks alone (a directory), catalog and
storage (``local``), or the service (``served``, which answers from storage where the service is
silent and this host can see enough). Decides nothing. Must not know how answers are shown.
"""

from ckptgov.governor.local import Governor, open_governor

__all__ = ["Governor", "open_governor"]
