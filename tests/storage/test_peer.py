"""Another node's disk through its agent: the contract's reading half, and what may go wrong."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckptgov.errors import (
    ConfigError,
    PathEscapes,
    SlowDown,
    StorageError,
    TransientStorageError,
    UsageError,
)
from ckptgov.model.files import Attributes, Entry, FileStat, OpenFile
from ckptgov.service.peer_server import PeerServer
from ckptgov.storage import _peer_calls
from ckptgov.storage._wrapper import WrappedStorage
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.contract import Storage
from ckptgov.storage.mounts import FileSystem
from ckptgov.storage.peer import PeerStorage, peer_tokens
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing._contract_base import content
from ckptgov.testing.storage_contract import ODD_NAMES, VERBS, StorageContract

TOKEN = "a-secret-of-the-cluster"
READING = ("list", "stat", "stat_many", "read_link", "open", "attributes")
CHANGING = sorted(set(VERBS) - set(READING))


class SteppedClock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_ns(self) -> int:
        return int(self.now * 1e9)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Net:
    """One agent and those who read from it."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.stack = stack
        self.clock = SteppedClock()
        self.server = self.serve()

    def serve(self, **options: object) -> PeerServer:
        given = {
            "tiers": lambda: {"nvme": str(self.root)},
            "tokens": lambda: (TOKEN,),
            "silent_s": 20.0,
        }
        server = self.stack.enter_context(PeerServer("a", **(given | options)))
        server.start()
        return server

    def storage(self, server: PeerServer | None = None, **options: object) -> PeerStorage:
        host, port = (server or self.server).address
        given = {
            "url": f"http://{host}:{port}",
            "node": "a",
            "tier": "nvme",
            "token": TOKEN,
            "clock": self.clock,
            "random": lambda: 0.5,
            "timeout_s": 20.0,
        }
        return self.stack.enter_context(PeerStorage(**(given | options)))


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    root = tmp_path / "nvme"
    root.mkdir()
    with ExitStack() as stack:
        yield Net(root, stack)


@pytest.fixture
def peer(net: Net) -> PeerStorage:
    return net.storage()


class ReadThrough(WrappedStorage):
    """Written here, looked at and read through the agent."""

    def __init__(self, inner: Storage, peer: PeerStorage) -> None:
        super().__init__(inner)
        self._peer = peer

    def list(self, path: str) -> Sequence[Entry]:
        return self._peer.list(path)

    def stat(self, path: str) -> FileStat:
        return self._peer.stat(path)

    def stat_many(self, directory: str, names: Sequence[str], *, birth: bool = False):
        return self._peer.stat_many(directory, names, birth=birth)

    def read_link(self, path: str) -> str:
        return self._peer.read_link(path)

    def open(self, path: str) -> OpenFile:
        return self._peer.open(path)

    def attributes(self, path: str) -> Attributes:
        return self._peer.attributes(path)

    def filesystem(self) -> FileSystem:
        return self._peer.filesystem()


class TestReadingThroughAnAgent(StorageContract):
    """Every promise of the contract that is about looking and reading."""

    @pytest.fixture
    def storage(self, net: Net, peer: PeerStorage) -> Iterator[Storage]:
        with PosixStorage(net.root) as inner:
            yield ReadThrough(inner, peer)

    def put_link(self, storage: Storage, path: str, text: str) -> None:
        os.symlink(text, f"{storage.root}/{path}")

    def put_fifo(self, storage: Storage, path: str) -> None:
        os.mkfifo(f"{storage.root}/{path}")

    def break_listing(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        def breaking(fd: int) -> object:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "scandir", breaking)
        monkeypatch.setattr(_peer_calls, "_STRANGER_TRIES", 2)

    def test_an_open_file_keeps_its_bytes_when_its_name_goes(self, storage: Storage) -> None:
        """Not here: nothing is kept open there, so it must be noticed instead."""
        storage.publish("a", [b"old"])
        with storage.open("a") as file:
            storage.replace("a", [b"new"])
            with pytest.raises(StorageError, match="changed or removed"):
                file.read_at(0, 10)
            with pytest.raises(StorageError, match="changed or removed"):
                file.stat()
            storage.remove("a")
            with pytest.raises(StorageError, match="changed or removed"):
                file.read_at(0, 10)

    def test_a_file_can_be_synced_and_its_cache_dropped(self, storage: Storage) -> None:
        """Who only reads cannot make anything durable, and must not seem to."""
        storage.publish("a", [b"0123456789"])
        with storage.open("a") as file:
            with pytest.raises(StorageError, match="read only"):
                file.sync()
            file.drop_cache(0, 10)
            assert file.read_at(0, 4) == b"0123"
            file.close()


# What is told is what the other node's own look tells.


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_come_over_byte_for_byte(net: Net, peer: PeerStorage, name: str) -> None:
    directory = net.root / name
    directory.mkdir()
    (directory / name).write_bytes(b"x")
    (directory / "l").symlink_to(name)
    assert [entry.name for entry in peer.list("")] == [name]
    assert peer.stat_many(name, [name])[0] == peer.stat_many(name, [name])[0]
    assert content(peer, f"{name}/{name}") == b"x"
    assert peer.read_link(f"{name}/l") == name


def test_tokens_attributes_and_file_system_are_those_of_the_other_node(
    net: Net, peer: PeerStorage
) -> None:
    (net.root / "a").write_bytes(b"12345")
    os.utime(net.root / "a", ns=(1, 123_456_789_987_654_321))
    with PosixStorage(net.root) as own:
        assert peer.stat("a") == own.stat("a")
        assert peer.stat_many("", ["a", "b"], birth=True) == own.stat_many(
            "", ["a", "b"], birth=True
        )
        assert peer.attributes("a") == own.attributes("a")
        assert peer.filesystem() == own.filesystem()
        with peer.open("a") as there, own.open("a") as here:
            assert there.stat() == here.stat()


def test_more_names_than_one_call_takes_are_looked_at(
    net: Net, peer: PeerStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptgov.storage.peer.MAX_NAMES", 3)
    for name in "acegi":
        (net.root / name).write_bytes(name.encode())
    found = peer.stat_many("", list("abcdefghi"))
    assert [one is not None for one in found] == [True, False] * 4 + [True]


@pytest.mark.parametrize("piece", [1000, 2**20, 9 * 2**20])
def test_a_large_file_comes_whole_in_pieces_of_any_size(
    net: Net, peer: PeerStorage, piece: int
) -> None:
    sent = os.urandom(19 * 2**20 + 17) if piece > 1000 else os.urandom(50_001)
    (net.root / "a").write_bytes(sent)
    got = bytearray()
    with peer.open("a") as file:
        while some := file.read_at(len(got), piece):
            got += some
    assert got == sent


def test_threads_may_read_one_file_at_once(net: Net, peer: PeerStorage) -> None:
    sent = os.urandom(8 * 2**20)
    (net.root / "a").write_bytes(sent)
    got: dict[int, bytes] = {}
    with peer.open("a") as file:

        def read(index: int) -> None:
            got[index] = file.read_at(index * 2**20, 2**20)

        threads = [threading.Thread(target=read, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert b"".join(got[index] for index in range(8)) == sent


# A file that changes while it is read.


def change_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"other")


def replace_it(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    stat = path.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # only the inode tells
    other.replace(path)


@pytest.mark.parametrize(
    "change", [change_in_place, replace_it, lambda path: os.truncate(path, 5), os.unlink]
)
def test_bytes_of_two_states_are_never_mixed(
    net: Net, peer: PeerStorage, change: Callable[[Path], None]
) -> None:
    (net.root / "a").write_bytes(bytes(30 * 2**20))
    with peer.open("a") as file:
        assert len(file.read_at(0, 2**20)) == 2**20
        change(net.root / "a")
        with pytest.raises(StorageError):
            read_on(file, 2**20, 30 * 2**20)


def read_on(file: OpenFile, begin: int, end: int) -> None:
    """In pieces: what is on its way already may still come."""
    for offset in range(begin, end, 2**20):
        file.read_at(offset, 2**20)


def test_a_file_touched_or_linked_while_it_is_read_says_so_and_goes_on(
    net: Net, peer: PeerStorage
) -> None:
    (net.root / "a").write_bytes(b"0123456789")
    with peer.open("a") as file:
        before = file.stat().token
        os.link(net.root / "a", net.root / "b")
        assert file.read_at(0, 10) == b"0123456789"
        after = file.stat().token
    assert after.same_content(before)
    assert after != before


# Nothing is changed there.


@pytest.mark.parametrize("verb", CHANGING)
def test_what_would_change_it_is_refused(net: Net, peer: PeerStorage, verb: str) -> None:
    (net.root / "real/d").mkdir(parents=True)
    (net.root / "real/d/x").write_bytes(b"x")
    with pytest.raises(StorageError, match="read only: another node's disk"):
        VERBS[verb](peer, "real/d")
    assert [path.name for path in sorted(net.root.rglob("*"))] == ["real", "d", "x"]


# Who may ask, and for what.


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_without_the_token_nothing_is_told(net: Net, token: str) -> None:
    (net.root / "a").write_bytes(b"x")
    with pytest.raises(StorageError, match="does not take our token"):
        net.storage(token=token).stat("a")


def test_an_agent_without_tokens_lets_nobody_in(net: Net) -> None:
    server = net.serve(tokens=tuple)
    with pytest.raises(StorageError, match="does not take our token"):
        net.storage(server, token="").list("")


def test_an_old_token_opens_while_both_are_named(net: Net) -> None:
    server = net.serve(tokens=lambda: ("new", TOKEN))
    assert list(net.storage(server).list("")) == []
    assert list(net.storage(server, token="new").list("")) == []


def test_another_node_at_the_same_address_is_not_taken_for_it(net: Net) -> None:
    with pytest.raises(StorageError, match="this is node a, not b"):
        net.storage(node="b").stat("absent")


def test_a_tier_that_the_node_does_not_have_is_not_an_empty_one(net: Net) -> None:
    with pytest.raises(StorageError, match="serves no tier lustre"):
        net.storage(tier="lustre").stat("absent")


def test_a_root_that_is_not_mounted_is_no_absent_file(net: Net, peer: PeerStorage) -> None:
    net.root.rmdir()
    for call in (lambda: peer.stat("a"), lambda: peer.list(""), lambda: peer.open("a")):
        with pytest.raises(StorageError, match=r"tier nvme: .*No such file"):
            call()


def test_links_out_of_the_root_are_not_followed(net: Net, peer: PeerStorage) -> None:
    secret = net.root.parent / "secret"
    secret.write_bytes(b"secret")
    (net.root / "l").symlink_to(secret)
    (net.root / "d").symlink_to(net.root.parent)
    for path in ("l", "d/secret"):
        with pytest.raises(PathEscapes):
            peer.open(path)
    with pytest.raises(PathEscapes):
        peer.list("d")


@pytest.mark.parametrize(
    "target",
    [
        "/v1/peer/a/nvme/bytes?path=../secret",
        "/v1/peer/a/nvme/bytes?path=/etc/passwd",
        "/v1/peer/a/nvme/bytes?path=%2e%2e/secret",
        "/v1/peer/a/nvme/open?path=d/%2e%2e/%2e%2e/secret",
        "/v1/peer/a/..%2fnvme/stat?path=",
        "/v1/peer/a/nvme/stat?path=%00",
        "/v1/peer/a/nvme/remove?path=d",
        "/v1/peer/a/nvme/../../secret",
        "/etc/passwd",
        "/",
    ],
)
def test_raw_calls_do_not_leave_the_root_either(net: Net, target: str) -> None:
    (net.root / "d").mkdir()
    (net.root.parent / "secret").write_bytes(b"secret")
    status, body = raw(net, "GET", target)
    assert status in (400, 403, 421)
    assert b"secret" not in body.replace(b"/secret", b"")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
def test_other_methods_are_not_known(net: Net, method: str) -> None:
    (net.root / "a").write_bytes(b"x")
    status, _ = raw(net, method, "/v1/peer/a/nvme/stat?path=a")
    assert status == 501
    assert (net.root / "a").exists()


@pytest.mark.parametrize(
    "headers",
    [{}, {"Content-Length": "999999999"}, {"Content-Length": "-1"}, {"Content-Length": "x"}],
)
def test_a_body_without_measure_is_refused(net: Net, headers: dict[str, str]) -> None:
    status, _ = raw(net, "POST", "/v1/peer/a/nvme/stats", headers)
    assert status == 400


@pytest.mark.parametrize(
    "range_", [None, "bytes=0-", "bytes=5-2", "bytes=0-10", "x", "bytes=0-1,3-4"]
)
def test_a_range_outside_the_file_is_refused(net: Net, peer: PeerStorage, range_: str) -> None:
    (net.root / "a").write_bytes(b"0123456789")
    with PosixStorage(net.root) as own:
        token = own.stat("a").token
    headers = {"If-Match": f'"{token.bytes:x}-{token.mtime_ns:x}-{token.inode:x}"'}
    headers |= {} if range_ is None else {"Range": range_}
    assert raw(net, "GET", "/v1/peer/a/nvme/bytes?path=a", headers)[0] == 400


def test_a_range_without_a_condition_is_refused(net: Net) -> None:
    (net.root / "a").write_bytes(b"0123456789")
    headers = {"Range": "bytes=0-3"}
    assert raw(net, "GET", "/v1/peer/a/nvme/bytes?path=a", headers)[0] == 412


def raw(
    net: Net, method: str, target: str, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*net.server.address, timeout=20)
    try:
        connection.putrequest(method, target)
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


# An agent that does not answer is never "not there".


def test_a_node_that_is_gone_could_not_be_looked_at(net: Net, peer: PeerStorage) -> None:
    net.server.close()
    with pytest.raises(TransientStorageError, match="does not answer"):
        peer.stat("a")
    assert net.clock.now < 102, "an agent that never answered is given up soon"


def test_an_agent_that_comes_back_is_waited_for(net: Net) -> None:
    (net.root / "a").write_bytes(b"x")
    host, port = net.server.address
    peer = net.storage()
    assert content(peer, "a") == b"x"
    net.server.close()
    sleep, net.clock.sleep = net.clock.sleep, lambda seconds: revive(seconds)
    revived: list[PeerServer] = []

    def revive(seconds: float) -> None:
        sleep(seconds)
        if net.clock.now > 105 and not revived:
            revived.append(net.serve(host=host, port=port))

    assert content(peer, "a") == b"x"
    assert revived


def test_an_agent_that_stays_away_is_given_up_in_the_end(net: Net, peer: PeerStorage) -> None:
    (net.root / "a").write_bytes(b"x")
    assert content(peer, "a") == b"x"
    net.server.close()
    with pytest.raises(TransientStorageError):
        peer.open("a")
    given_up_at = net.clock.now
    assert 110 < given_up_at < 131
    for _ in range(100):
        with pytest.raises(TransientStorageError):
            peer.open("a")
    assert net.clock.now == given_up_at, "the next shards do not wait for it again"


class Impostor:
    """Answers each connection with fixed bytes and closes it."""

    def __init__(self, answer: bytes) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.answer = answer
        self.seen = 0
        threading.Thread(target=self.run, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.seen += 1
            with connection:
                connection.recv(65536)
                connection.sendall(self.answer)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


NOT_OURS = {
    "404": b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno",
    "200": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi",
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "proxy": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    "silence": b"",
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "half": b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ckptgov.peer+msgpack\r\n"
    b"Content-Length: 500\r\n\r\nxx",
    "nonsense": b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ckptgov.peer+msgpack\r\n"
    b"Content-Length: 2\r\n\r\n\xc1\xc1",
    "nonsense refusal": b"HTTP/1.1 404 No\r\nContent-Type: application/vnd.ckptgov.peer+msgpack\r\n"
    b"Content-Length: 2\r\n\r\n\xc1\xc1",
}


@pytest.mark.parametrize("what", NOT_OURS)
def test_another_answer_than_an_agents_is_never_not_there(net: Net, what: str) -> None:
    impostor = Impostor(NOT_OURS[what])
    peer = net.storage(url=impostor.url, policy=RetryPolicy(tries=2))
    try:
        for call in (lambda: peer.stat("a"), lambda: peer.list(""), lambda: peer.open("a")):
            with pytest.raises(StorageError):
                call()
        with pytest.raises(StorageError):
            peer.stat_many("", ["a"])
    finally:
        impostor.close()


@pytest.mark.parametrize(
    "url", ["ftp://h:1", "http://", "http://h:1/p", "http://u:p@h:1", "http://h:x", "h:1", ""]
)
def test_an_address_that_is_none_is_refused(net: Net, url: str) -> None:
    with pytest.raises(UsageError):
        net.storage(url=url)


# Paced, and no more at once than it lets.


class Counting:
    """A pacer that writes down what was taken."""

    def __init__(self, error: Exception | None = None, after: int = 0) -> None:
        self.taken: list[int] = []
        self.error, self.after = error, after

    def take(self, count_bytes: int, *, requests: int = 0) -> None:
        if self.error is not None and len(self.taken) >= self.after:
            raise self.error
        self.taken.append(count_bytes)

    def push_back(self) -> None:
        raise AssertionError


def test_bytes_are_taken_from_the_budget_before_they_leave(net: Net) -> None:
    sent = os.urandom(3 * 2**20 + 5)
    (net.root / "a").write_bytes(sent)
    pacer, moved = Counting(), []
    server = net.serve(
        pacer_of=lambda _: pacer, moved=lambda tier, count: moved.append((tier, count))
    )
    assert content(net.storage(server), "a") == sent
    assert max(pacer.taken) <= 2**20
    assert sum(pacer.taken) >= len(sent)
    assert sum(count for _, count in moved) == len(sent)


def test_a_budget_that_gives_nothing_makes_the_reader_wait_and_then_fail(net: Net) -> None:
    (net.root / "a").write_bytes(b"x")
    pacer = Counting(StorageError("the flow waits"))
    server = net.serve(pacer_of=lambda _: pacer)
    peer = net.storage(server)
    with pytest.raises(SlowDown, match="the flow waits"):
        content(peer, "a")
    assert net.clock.now > 110, "it was tried again for a while"


def test_a_transfer_that_breaks_off_goes_on_where_it_was(net: Net) -> None:
    sent = os.urandom(6 * 2**20)
    (net.root / "a").write_bytes(sent)
    pacer = Counting(StorageError("for now"), after=2)
    server = net.serve(pacer_of=lambda _: pacer)
    peer = net.storage(server)
    real_sleep = net.clock.sleep

    def sleep(seconds: float) -> None:
        pacer.error = None
        real_sleep(seconds)

    net.clock.sleep = sleep
    assert content(peer, "a") == sent
    assert sum(pacer.taken) <= len(sent) + 2**20, "what had come was not sent again"


def test_too_many_at_once_are_told_to_come_back(net: Net) -> None:
    (net.root / "a").write_bytes(b"x")
    server = net.serve(max_streams=1)
    peer = net.storage(server)
    with peer.open("a") as file:
        server.streams.acquire()
        with pytest.raises(SlowDown, match="as many read"):
            file.read_at(0, 1)
        assert net.clock.now > 110
        assert peer.stat("a").bytes == 1, "looks go on"
        server.streams.release()
        assert file.read_at(0, 1) == b"x"


def test_a_place_is_given_back_after_every_range(net: Net) -> None:
    (net.root / "a").write_bytes(bytes(3 * 2**20))
    peer = net.storage(net.serve(max_streams=1))
    for _ in range(3):
        assert len(content(peer, "a")) == 3 * 2**20


# Tokens.


def test_tokens_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("new\nold\n")
    assert peer_tokens({}) == ()
    assert peer_tokens({"CKPTGOV_PEER_TOKEN": "one"}) == ("one",)
    assert peer_tokens({"CKPTGOV_PEER_TOKEN_FILE": str(path)}) == ("new", "old")
    with pytest.raises(ConfigError):
        peer_tokens({"CKPTGOV_PEER_TOKEN_FILE": str(tmp_path / "absent")})
    with pytest.raises(ConfigError):
        peer_tokens({"CKPTGOV_PEER_TOKEN": "größe"})
