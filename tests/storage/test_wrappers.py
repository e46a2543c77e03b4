from __future__ import annotations

import inspect

import pytest

from ckptgov.model.files import Reader
from ckptgov.storage._wrapper import WrappedStorage
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.storage.paced import PacedStorage
from ckptgov.storage.retrying import RetryingStorage
from ckptgov.storage.watched import WatchedStorage
from ckptgov.testing.crashing import CrashingStorage

CALLS = {
    name
    for protocol in (Reader, Storage)
    for name, member in vars(protocol).items()
    if inspect.isfunction(member) and not name.startswith("_")
}
NOT_THEIRS = {
    WatchedStorage: set(),
    RetryingStorage: {"close"},
    PacedStorage: {"close", "filesystem"},
    CrashingStorage: set(),
}


@pytest.mark.parametrize("wrapper", NOT_THEIRS)
def test_a_wrapper_forgets_no_call_of_the_contract(wrapper: type) -> None:
    assert CALLS - set(vars(wrapper)) == NOT_THEIRS[wrapper]


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_wrapper_takes_the_same_arguments(name: str) -> None:
    protocol = Storage if name in vars(Storage) else Reader
    expected = inspect.signature(getattr(protocol, name))
    for wrapper in (*NOT_THEIRS, WrappedStorage, MemoryStorage):
        given = inspect.signature(getattr(wrapper, name))
        assert list(given.parameters.values()) == list(expected.parameters.values()), wrapper
