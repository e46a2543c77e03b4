from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ckptgov.errors import SlowDown, StorageError, TransientStorageError
from ckptgov.model.files import Entry, EntryKind
from ckptgov.storage._fsspec_look import as_ns, file_stat, kind_of, translated
from ckptgov.storage.contract import TEMP_PREFIX, Storage
from ckptgov.storage.fsspec_storage import FsspecStorage
from ckptgov.storage.open import open_storage
from ckptgov.testing._mounting import end, free_ports
from ckptgov.testing.storage_contract import StorageContract

PIECE = 2**16
NS = 10**9


class FsspecContract(StorageContract):
    has_directories = False
    has_symlinks = False

    def break_listing(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(storage, FsspecStorage)

        def broken(*_: object, **__: object) -> None:
            raise ConnectionResetError("in the middle of a listing")

        monkeypatch.setattr(storage._fs, "ls", broken)

    def test_an_abandoned_delivery_is_taken_up_again(self, storage: Storage) -> None:
        """Here it is not: nothing stands, and nothing is left behind."""
        first = storage.receive("d/a", 2 * PIECE)
        first.write(0, memoryview(bytes(PIECE)))
        first.abandon()
        assert list(storage.pending("")) == []
        second = storage.receive("d/a", 2 * PIECE)
        assert not second.stands(0, PIECE)
        second.discard()

    test_other_bytes_that_stand_are_not_believed = test_an_abandoned_delivery_is_taken_up_again
    test_bytes_that_stand_count_only_once_they_were_compared = (
        test_an_abandoned_delivery_is_taken_up_again
    )

    def test_what_was_begun_and_left_is_told_and_can_be_forgotten(self, storage: Storage) -> None:
        """Left by a process that was killed: a temporary key that nobody works on."""
        storage.publish("d/e/a", [b"x"])
        assert isinstance(storage, FsspecStorage)
        temp = f"d/e/{TEMP_PREFIX}1234"
        with storage.calling(temp) as fs:
            fs.pipe_file(storage.key(temp), b"half")
        working = storage.receive("other", 1)
        working.write(0, memoryview(b"x"))
        [pending] = storage.pending("d")
        assert (pending.path, pending.bytes, pending.is_held) == (temp, 4, False)
        assert pending.started_at_ns > 0
        storage.forget(pending)
        storage.forget(pending)
        assert list(storage.pending("d")) == []
        working.discard()
        with pytest.raises(StorageError, match="left alone"):
            storage.forget(type(pending)(path="d/e/a", handle="", bytes=1, started_at_ns=1))
        assert storage.list("d/e") == [Entry("a", EntryKind.FILE)]

    def test_attributes_travel_with_a_delivery(self, storage: Storage) -> None:
        """Here none do: there is no room for them beside a file."""
        found = storage.publish("a", [b"x"])
        told = storage.attributes("a")
        assert (told.mode, told.uid, told.gid, told.mtime_ns) == (0o644, 0, 0, found.mtime_ns)

    def test_a_removed_file_is_gone(self, storage: Storage) -> None:
        """And with the last one its directory."""
        storage.publish("d/a", [b"x"])
        storage.remove("d/a")
        for call in (storage.list, storage.stat, storage.remove):
            with pytest.raises(FileNotFoundError):
                call("d" if call == storage.list else "d/a")


class TestMemory(FsspecContract):
    @pytest.fixture
    def storage(self) -> Iterator[FsspecStorage]:
        own = fsspec.filesystem("memory", global_store=False, skip_instance_cache=True)
        storage = FsspecStorage("memory://tier/root", filesystem=own, piece_bytes=PIECE)
        yield storage
        storage.close()

    def test_publishing_is_exclusive(self, storage: FsspecStorage) -> None:
        assert storage.is_exclusive


@pytest.fixture(scope="module")
def ftp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    if importlib.util.find_spec("pyftpdlib") is None:
        pytest.skip("pyftpdlib is not installed")
    home = tmp_path_factory.mktemp("ftp")
    (port,) = free_ports(1)
    command = [sys.executable, "-W", "ignore", "-m", "pyftpdlib", "-i", "127.0.0.1"]
    command += ["-p", str(port), "-d", str(home), "-w", "-u", "someone", "-P", "secret"]
    with (home.parent / "ftp.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.PIPE)
    try:
        wait_for_port(process, port)
        yield home, port
    finally:
        process.terminate()
        end(process)


def wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("the FTP server did not come up")


class TestFtp(FsspecContract):
    """A real remote: FTP over loopback, with seconds for time stamps and no ETags."""

    numbers = itertools.count()

    @pytest.fixture
    def storage(self, ftp_server: tuple[Path, int]) -> Iterator[FsspecStorage]:
        home, port = ftp_server
        name = f"root{next(self.numbers)}"
        (home / name).mkdir()
        url = f"ftp://someone:secret@127.0.0.1:{port}/{name}"
        storage = FsspecStorage(url, piece_bytes=PIECE)
        yield storage
        storage.close()

    def test_no_secret_is_shown(self, storage: FsspecStorage) -> None:
        assert "secret" not in storage.root
        with pytest.raises(FileNotFoundError) as caught:
            storage.stat("absent")
        assert "secret" not in str(caught.value)

    def test_another_process_may_take_a_name_meanwhile(self, storage: FsspecStorage) -> None:
        assert not storage.is_exclusive

    def test_no_empty_directory_is_left(
        self, storage: FsspecStorage, ftp_server: tuple[Path, int]
    ) -> None:
        storage.publish("d/e/a", [b"x"])
        storage.remove("d/e/a")
        assert storage.list("") == []

    def test_a_connection_that_broke_is_made_anew(self, storage: FsspecStorage) -> None:
        storage.publish("a", [b"x"])
        storage._fs.ftp.sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(TransientStorageError):
            storage.stat("a")
        assert storage.stat("a").bytes == 1

    def test_a_delivery_that_broke_off_lets_its_stream_go(self, storage: FsspecStorage) -> None:
        delivery = storage.receive("a", 4 * PIECE)
        for number in range(3):
            delivery.write(number * PIECE, memoryview(bytes(PIECE)))
        storage._fs.ftp.sock.shutdown(socket.SHUT_RDWR)
        delivery.discard()
        del delivery
        gc.collect()  # pytest tells of what goes wrong in it
        assert storage.list("") == []

    def test_what_others_did_is_seen_also_where_the_library_remembers_listings(
        self, storage: FsspecStorage, ftp_server: tuple[Path, int]
    ) -> None:
        home, port = ftp_server
        remembering = fsspec.filesystem(
            "ftp", host="127.0.0.1", port=port, username="someone", password="secret"
        )
        name = storage.root.rpartition("/")[2]
        shared = FsspecStorage(f"ftp://127.0.0.1:{port}/{name}", filesystem=remembering)
        assert shared.list("") == []
        (home / name / "a").write_bytes(b"x")
        assert shared.list("") == [Entry("a", EntryKind.FILE)]

    def test_a_root_that_is_missing_is_not_an_empty_one(
        self, storage: FsspecStorage, ftp_server: tuple[Path, int]
    ) -> None:
        above = storage.root.rpartition("/")[2]
        url = f"ftp://someone:secret@127.0.0.1:{ftp_server[1]}/{above}/missing"
        for look in (FsspecStorage(url).list, FsspecStorage(url).stat):
            with pytest.raises(FileNotFoundError):
                look("")

    def test_a_file_that_changes_while_it_is_open_is_noticed(
        self, storage: FsspecStorage, ftp_server: tuple[Path, int]
    ) -> None:
        storage.publish("a", [b"12345"])
        path = ftp_server[0] / storage.root.rpartition("/")[2] / "a"
        with storage.open("a") as file:
            before = file.stat()
            path.write_bytes(b"123")
            assert file.stat().token != before.token
            with pytest.raises(StorageError, match="changed"):
                file.read_at(0, 5)


@pytest.fixture
def memory() -> FsspecStorage:
    own = fsspec.filesystem("memory", global_store=False, skip_instance_cache=True)
    return FsspecStorage("memory://tier", filesystem=own, piece_bytes=4)


def test_pieces_beyond_reason_are_not_held(memory: FsspecStorage) -> None:
    delivery = memory.receive("a", 1000)
    for number in range(1, 17):
        delivery.write(4 * number, memoryview(b"1234"))
    with pytest.raises(StorageError, match="wait for byte 0"):
        delivery.write(4 * 17, memoryview(b"1234"))
    assert memory.list("") == []


def test_a_piece_that_has_gone_out_cannot_be_replaced(memory: FsspecStorage) -> None:
    delivery = memory.receive("a", 12)
    for offset in (0, 4, 8):
        delivery.write(offset, memoryview(b"1234"))
    with pytest.raises(StorageError, match="gone out already"):
        delivery.write(4, memoryview(b"new!"))
    assert memory.list("") == []


def test_a_file_can_be_handed_over_again_from_its_beginning(memory: FsspecStorage) -> None:
    delivery = memory.receive("a", 8)
    for offset in (0, 4, 0, 4):
        delivery.write(offset, memoryview(b"1234"))
    assert delivery.finish()[0].bytes == 8
    assert delivery.sent_bytes == 16
    assert memory.list("") == [Entry("a", EntryKind.FILE)]


def test_the_first_missing_byte_is_named(memory: FsspecStorage) -> None:
    delivery = memory.receive("a", 12)
    delivery.write(0, memoryview(b"1234"))
    delivery.write(8, memoryview(b"1234"))
    with pytest.raises(StorageError, match="byte 4 was not written"):
        delivery.finish()


def test_bytes_that_were_lost_on_the_way_are_noticed(
    memory: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = memory.receive("a", 4)
    monkeypatch.setattr(type(memory._fs.open("/x", "wb")), "write", lambda *_: 4)
    memory._fs.rm_file("/x")
    delivery.write(0, memoryview(b"1234"))
    with pytest.raises(StorageError, match="0 of 4 bytes arrived"):
        delivery.finish()
    assert memory.list("") == []


def test_keys_are_percent_encoded_paths(memory: FsspecStorage) -> None:
    memory.publish("a b/ü", [b"x"])
    assert memory._fs.find("/tier") == ["/tier/a%20b/%c3%bc"]


def test_a_key_that_no_path_of_ours_has_is_listed_and_not_opened(memory: FsspecStorage) -> None:
    memory._fs.pipe_file("/tier/a b", b"x")
    assert memory.list("") == [Entry("a b", EntryKind.OTHER)]
    with pytest.raises(FileNotFoundError):
        memory.open("a b")


def test_what_was_closed_is_not_used_any_more(memory: FsspecStorage) -> None:
    memory.close()
    with pytest.raises(StorageError, match="closed"):
        memory.list("")


def test_a_scheme_without_its_library_says_what_to_install() -> None:
    if importlib.util.find_spec("paramiko") is not None:
        pytest.skip("paramiko is installed")
    with pytest.raises(StorageError) as caught:
        open_storage("sftp://host/root")
    assert caught.value.hint == "pip install paramiko"


def test_an_unknown_scheme_is_told() -> None:
    with pytest.raises(StorageError, match="nosuch"):
        open_storage("nosuch://host/root")


def test_a_refused_login_is_told_without_the_password(ftp_server: tuple[Path, int]) -> None:
    with pytest.raises(StorageError, match="someone@127") as caught:
        FsspecStorage(f"ftp://someone:guessed@127.0.0.1:{ftp_server[1]}/")
    assert "guessed" not in str(caught.value)


def test_a_server_that_does_not_answer_may_do_so_later() -> None:
    (port,) = free_ports(1)
    with pytest.raises(TransientStorageError) as caught:
        FsspecStorage(f"ftp://someone:secret@127.0.0.1:{port}/root")
    assert "secret" not in str(caught.value)


MOMENT = datetime(2026, 11, 29, 21, 0, 0, 250_000, tzinfo=UTC)
MOMENT_NS = 1_795_986_000 * NS + 250_000_000


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (MOMENT, MOMENT_NS),
        (MOMENT.replace(tzinfo=None), MOMENT_NS),
        (MOMENT_NS / NS, MOMENT_NS),
        (MOMENT_NS // 10**6, MOMENT_NS),
        ("2026-11-29T21:00:00.250Z", MOMENT_NS),
        ("20261129210000.25", MOMENT_NS),
        ("20261129210000", MOMENT_NS - 250_000_000),
        ("yesterday", None),
        ("", None),
        (None, None),
        (True, None),
    ],
)
def test_times_are_understood_as_the_libraries_write_them(
    told: object, expected: int | None
) -> None:
    assert as_ns(told) == expected


@pytest.mark.parametrize(
    ("told", "etag"),
    [
        ({"ETag": '"abc"', "mtime": 5}, "abc"),
        ({"etag": "CJ+=", "updated": "2026-11-29T21:00:00Z"}, "CJ+="),
        ({"md5Hash": "x==", "uid": 1000}, "x=="),
        ({"mtime": 5.5, "uid": 1000}, "m-5500000000-3"),
        ({"modify": "19700101000005"}, "m-5000000000-3"),
    ],
)
def test_a_token_is_the_etag_or_made_of_time_and_size(told: dict[str, Any], etag: str) -> None:
    found = file_stat({"size": 3, "type": "file", **told}, None, "x")
    assert found.token.etag == etag
    assert found.token.bytes == 3


@pytest.mark.parametrize("told", [{"size": 3}, {"size": None, "ETag": "x"}, {"size": 3, "uid": 7}])
def test_a_file_that_could_change_unseen_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(StorageError, match="neither ETag nor modification time"):
        file_stat(told, None, "x")


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"type": "file"}, EntryKind.FILE),
        ({"type": "directory"}, EntryKind.DIR),
        ({"type": "file", "islink": True}, EntryKind.SYMLINK),
        ({"type": "link"}, EntryKind.SYMLINK),
        ({"type": "other"}, EntryKind.OTHER),
        ({}, EntryKind.OTHER),
    ],
)
def test_kinds_are_told_without_following(told: dict[str, Any], kind: EntryKind) -> None:
    assert kind_of(told) is kind


class Answered(Exception):
    def __init__(self, status: object) -> None:
        super().__init__("an answer")
        self.status = status


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Answered(429), SlowDown),
        (Answered("503"), SlowDown),
        (Answered(500), TransientStorageError),
        (Answered(403), StorageError),
        (TimeoutError(), TransientStorageError),
        (ConnectionResetError(), TransientStorageError),
        (EOFError(), TransientStorageError),
        (PermissionError(13, "no"), StorageError),
        (NotImplementedError(), StorageError),
        (FileNotFoundError("x"), FileNotFoundError),
        (KeyError("x"), StorageError),
    ],
)
def test_failures_are_told_in_the_contracts_words(
    error: Exception, expected: type[Exception]
) -> None:
    assert type(translated(error, "where")) is expected
    assert "where" in str(translated(error, "where"))


def test_a_file_of_another_kind_of_entry_is_left_alone(
    memory: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory._fs, "info", lambda *_, **__: {"type": "other", "size": 1})
    for call in (memory.stat, memory.open, memory.remove):
        with pytest.raises(StorageError, match="left alone"):
            call("device")


def test_starting_up_does_not_need_the_library() -> None:
    code = "import sys, ckptgov.storage.fsspec_storage; sys.exit('fsspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False)
    assert done.returncode == 0
