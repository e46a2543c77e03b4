"""How frameworks lay a checkpoint out on disk: one file per framework.

Promises, for each candidate: whether it is one, its step, the set of shards its loader's own index
demands with their sizes, what is missing or torn and by which evidence, what the framework's
pointer says, what the loader wants to be told, and which numbers of ranks it fits. What nothing on
disk proves is ``unproven``, never guessed. Nothing from a checkpoint is imported, called or
unpickled for real, and hostile bytes end in ``Malformed`` quickly and in bounded memory.

Must not know: storage backends, manifests, the catalog, any framework's code. Everything is read
through ``ckptgov.model.files.Reader``. Import from the submodules: ``survey`` finds candidates,
``registry`` examines them.
"""

from __future__ import annotations
