"""Bytes at keys: one contract (:class:`~ckptgov.storage.contract.Storage`), several backends.

Promises: what is published is whole and durable or not there at all, a taken key is never
overwritten, a listing is complete or raises, and nothing is read, written, removed or counted
through a symlink that leads out of the root, whoever swaps directories meanwhile.

Must not know: checkpoints, manifests, the catalog, policies. What the bytes mean and when
they may go is decided above; how fast bytes move is asked of a ``Pacer`` that is handed in. Import
from the submodules: ``contract``, ``posix``, ``memory``, ``s3``, ``fsspec_storage``, ``open``,
``mounts``, and the wrappers ``watched``, ``retrying``, ``paced``, in this order from the inside.
"""
