from __future__ import annotations

import errno
import os

import pytest

from ckptgov.errors import PathEscapes, StorageError, TransientStorageError
from ckptgov.storage._oserrors import translated
from ckptgov.storage._paths import printable


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.EEXIST, FileExistsError),
        (errno.ENOTDIR, NotADirectoryError),
        (errno.EISDIR, IsADirectoryError),
        (errno.EXDEV, PathEscapes),
        (errno.ELOOP, PathEscapes),
        (errno.EIO, TransientStorageError),
        (errno.ESTALE, TransientStorageError),
        (errno.ETIMEDOUT, TransientStorageError),
        (errno.EAGAIN, TransientStorageError),
        (errno.EINTR, TransientStorageError),
        (errno.ENOTCONN, TransientStorageError),
        (errno.EACCES, StorageError),
        (errno.EPERM, StorageError),
        (errno.EROFS, StorageError),
        (errno.ENOSPC, StorageError),
        (errno.EDQUOT, StorageError),
        (errno.ENAMETOOLONG, StorageError),
        (errno.EBADF, StorageError),
    ],
)
def test_each_errno_has_its_error_and_stays_reachable(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, translated("/tier/run/a"):
        raise OSError(code, os.strerror(code))
    assert type(caught.value) is kind
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == code
    assert "/tier/run/a" in str(caught.value)


@pytest.mark.parametrize(
    "code", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT]
)
def test_what_an_operator_can_change_carries_a_hint(code: int) -> None:
    with pytest.raises(StorageError) as caught, translated("/tier"):
        raise OSError(code, os.strerror(code))
    assert caught.value.hint


def test_an_error_without_a_number_is_a_storage_error() -> None:
    with pytest.raises(StorageError, match="odd"), translated("/tier"):
        raise OSError("odd")


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError), translated("/tier"):
        raise KeyError("x")


def test_messages_can_be_printed_whatever_the_name() -> None:
    with pytest.raises(StorageError) as caught, translated("/tier/\udcff\n\x1b[31m"):
        raise OSError(errno.EACCES, "Permission denied")
    assert str(caught.value).isprintable()
    assert printable("größe x") == "größe x"
