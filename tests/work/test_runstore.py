"""Where a run's own files go when its root cannot be written, and when it merely failed once."""

from __future__ import annotations

import errno
import os

import pytest

from ckptgov.errors import StorageError
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.storage.memory import MemoryStorage
from ckptgov.work.runstore import RunStore, foreign_sidecar, store_at, writable_store

RUN = RunIdentity(run_id="5f0c1b5e-60e5-4b8c-9c35-8f6f3c0f7a11", name="run")


def failing(code: int) -> StorageError:
    error = StorageError(os.strerror(code))
    error.__cause__ = OSError(code, os.strerror(code))
    return error


@pytest.fixture
def storage() -> MemoryStorage:
    made = MemoryStorage()
    made.put_file("team/run/step_1/shard", b"x")
    return made


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_root_that_may_not_be_written_keeps_its_files_under_the_tier_root(
    storage: MemoryStorage, code: int
) -> None:
    storage.refuse("team/run/.ckptgov", failing(code))
    store, identity = writable_store(RunStore(storage, "team/run"), RUN)
    assert store.sidecar == foreign_sidecar("team/run") == ".ckptgov/foreign/team%2frun"
    storage.refuse("team/run/.ckptgov", None)
    found = store_at(storage, "team/run")
    assert (found.sidecar, found.identity()) == (store.sidecar, identity)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failure_that_may_pass_moves_nothing(storage: MemoryStorage, code: int) -> None:
    storage.refuse("team/run/.ckptgov", failing(code))
    with pytest.raises(StorageError):
        writable_store(RunStore(storage, "team/run"), RUN)
    storage.refuse("team/run/.ckptgov", None)
    assert store_at(storage, "team/run").sidecar == "team/run/.ckptgov"


def test_the_identity_that_stands_is_kept(storage: MemoryStorage) -> None:
    first = RunStore(storage, "team/run").create(RUN)
    other = RunIdentity(run_id="00000000-0000-4000-8000-000000000001", name="other")
    assert RunStore(storage, "team/run").create(other) == first


def test_an_empty_directory_of_ours_does_not_hide_what_lies_under_the_tier_root(
    storage: MemoryStorage,
) -> None:
    RunStore(storage, "team/run", sidecar=foreign_sidecar("team/run")).create(RUN)
    storage.make_dirs("team/run/.ckptgov/journal")
    assert store_at(storage, "team/run").identity() == RUN
