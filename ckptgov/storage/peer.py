"""Another node's disk, read through that node's agent (``service.peer_server``).

What it tells of files is what the agent's own look tells, to the last member: tokens, times and
the file system are the other node's, so that receipts written there hold for a look from here.
"""

from __future__ import annotations

import builtins
import os
import random as _random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from ckptgov.errors import ConfigError, StorageError
from ckptgov.model.clock import Clock, SystemClock
from ckptgov.model.closing import Closing
from ckptgov.model.files import Attributes, Entry, FileStat, Token
from ckptgov.storage._paths import printable, require_name, split, split_file
from ckptgov.storage._peer_calls import Calls
from ckptgov.storage._peer_file import PeerFile
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.contract import Delivery, PendingDelivery, Removed, Traits
from ckptgov.storage.mounts import FileSystem
from ckptgov.storage.peer_messages import (
    MAX_NAMES,
    PREFIX,
    AskedStats,
    Listed,
    Verb,
    decode,
    encode,
    entries_of,
    path_text,
)

T = TypeVar("T")

TOKEN, TOKEN_FILE = "CKPTGOV_PEER_TOKEN", "CKPTGOV_PEER_TOKEN_FILE"
_TRAITS = Traits(has_links=False)
_CLOCK, _POLICY = SystemClock(), RetryPolicy(cap_s=5.0, total_s=30.0, elapsed_s=120.0)


def peer_tokens(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The secrets that agents and readers share: the first is shown, every one is taken.

    Separated by blanks or lines, so that a new one can be brought in while the old one still
    opens. From ``CKPTGOV_PEER_TOKEN``, else out of the file that ``CKPTGOV_PEER_TOKEN_FILE`` names.

    Raises:
        ConfigError: the file cannot be read, or a token is no plain ASCII.
    """
    text, path = environ.get(TOKEN, ""), environ.get(TOKEN_FILE, "")
    if not text and path:
        try:
            text = Path(path).read_text(encoding="ascii")
        except (OSError, UnicodeError, ValueError) as error:
            raise ConfigError(f"{TOKEN_FILE}: {path}: cannot be read ({error})") from error
    tokens = tuple(text.split())
    if not all(one.isascii() and one.isprintable() for one in tokens):
        raise ConfigError(f"{TOKEN}: a token is made of plain ASCII")
    return tokens


class PeerStorage(Closing):
    """The reading half of the ``Storage`` contract on a tier of another node.

    Everything else raises StorageError. An open file raises StorageError once the path leads to
    other bytes, where a file of this machine would go on with the old ones. Calls are tried again
    here, so no wrapper needs to. ``timeout_s`` bounds each wait for the agent. Threads may share
    it.

    Raises:
        UsageError: ``url`` is no ``http(s)://HOST:PORT``.
    """

    retries_itself = True
    paces_itself = True  # the agent keeps to the budget of its disk

    def __init__(
        self,
        url: str,
        *,
        node: str,
        tier: str,
        token: str,
        clock: Clock = _CLOCK,
        random: Callable[[], float] = _random.random,
        policy: RetryPolicy = _POLICY,
        timeout_s: float = 60.0,
    ) -> None:
        self._calls = Calls(
            url, token=token, clock=clock, random=random, policy=policy, timeout_s=timeout_s
        )
        self._root = f"peer://{node}/{tier}"
        self._prefix = f"{PREFIX}/{path_text(node)}/{path_text(tier)}"

    @property
    def root(self) -> str:
        return self._root

    @property
    def traits(self) -> Traits:
        return _TRAITS

    def list(self, path: str) -> Sequence[Entry]:
        split(path)
        return entries_of(self._asked(Verb.LIST, path, builtins.list[Listed]))

    def stat(self, path: str) -> FileStat:
        split(path)
        return self._asked(Verb.STAT, path, FileStat)

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        for name in names:
            require_name(name)
        split(directory)
        found: builtins.list[FileStat | None] = []
        for begin in range(0, max(len(names), 1), MAX_NAMES):
            some = names[begin : begin + MAX_NAMES]
            found += self._stat_some(directory, some, birth=birth)
        return found

    def read_link(self, path: str) -> str:
        split_file(path)
        return os.fsdecode(self._asked(Verb.LINK, path, bytes))

    def open(self, path: str) -> PeerFile:
        split_file(path)

        def stat() -> FileStat:
            return self._asked(Verb.OPEN, path, FileStat)

        target = self._target(Verb.BYTES, path)
        return PeerFile(self._calls, target, stat(), self._where(path), stat)

    def attributes(self, path: str) -> Attributes:
        split_file(path)
        return self._asked(Verb.ATTRIBUTES, path, Attributes)

    def filesystem(self) -> FileSystem:
        return self._asked(Verb.FILESYSTEM, "", FileSystem)

    def close(self) -> None:
        self._calls.close()

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        self._refuse(path)

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        self._refuse(path)

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        self._refuse(path)

    def remove(self, path: str, *, only: Token | None = None) -> None:
        self._refuse(path)

    def remove_dir(self, path: str) -> None:
        self._refuse(path)

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        self._refuse(directory)

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> Delivery:
        self._refuse(path)

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        """Refused too: deliveries concern who may end them."""
        self._refuse(directory)

    def forget(self, pending: PendingDelivery) -> None:
        self._refuse(pending.path)

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        self._refuse(source, target)

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        self._refuse(source, target)

    def link(self, source: str, target: str) -> None:
        self._refuse(source, target)

    def sync_dir(self, path: str) -> None:
        self._refuse(path)

    def _refuse(self, *paths: str) -> NoReturn:
        for path in paths:
            split(path)
        raise StorageError(
            f"{printable(self._where(paths[-1]))}: read only: another node's disk",
            hint="only that node's own agent writes there",
        )

    def _stat_some(
        self, directory: str, names: Sequence[str], *, birth: bool
    ) -> builtins.list[FileStat | None]:
        where = self._where(directory)
        asked = AskedStats(
            directory=os.fsencode(directory),
            names=[os.fsencode(name) for name in names],
            birth=birth,
        )
        target = f"{self._prefix}/{Verb.STATS}"
        raw = self._calls.ask("POST", target, where, body=encode(asked))
        found = decode(raw, builtins.list[FileStat | None], where)
        if len(found) != len(names):
            raise StorageError(f"{printable(where)}: {len(found)} answers for {len(names)} names")
        return found

    def _asked(self, verb: Verb, path: str, kind: type[T]) -> T:
        where = self._where(path)
        return decode(self._calls.ask("GET", self._target(verb, path), where), kind, where)

    def _target(self, verb: Verb, path: str) -> str:
        return f"{self._prefix}/{verb}?path={path_text(path)}"

    def _where(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root
