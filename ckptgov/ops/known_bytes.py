"""Whether files that nobody vouches for hold bytes of a sealed checkpoint.

They do where they are all of one, or hold a shard that lies whole and verified nowhere else. That
small files of one run are alike in every checkpoint (a tokenizer, a configuration) does not count.
Only files whose size a shard has are read at all, the smallest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

from msgspec import Struct

from ckptgov.catalog.facts import PlacedCopy
from ckptgov.manifest.digest import digest_file
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.model.checkpoint import Manifest, Shard
from ckptgov.model.copies import CopyState, holds
from ckptgov.model.files import Reader
from ckptgov.ops.context import Context
from ckptgov.ops.standing import pages

_Bytes = tuple[int, str]
"""Size and digest."""


class _Wanted(Struct, kw_only=True):
    """What a run's manifests say of files of certain sizes."""

    wholes: list[tuple[str, tuple[_Bytes, ...]]] = []  # every shard of a checkpoint, smallest first
    safe: set[_Bytes] = set()  # whole and verified somewhere
    others: dict[_Bytes, str] = {}  # nowhere so


class KnownBytes:
    """Files below a reader's root against the sealed checkpoints of one run."""

    def __init__(self, context: Context, run_id: str, files: Sequence[tuple[str, int]]) -> None:
        self._context = context
        self._run_id = run_id
        self._by_size: dict[int, list[str]] = {}
        for path, size in files:
            if size:
                self._by_size.setdefault(size, []).append(path)
        self._digests: dict[int, frozenset[str]] = {}

    def told(self, reader: Reader) -> str:
        """What the files are or hold, in words; empty where it is nothing that is known.

        Raises:
            CouldNotLook: one of them cannot be read, or changes meanwhile.
        """
        wanted = self._wanted
        for name, shards in wanted.wholes:
            if all(digest in self._of(reader, size) for size, digest in shards):
                return f"holds every shard of {name}"
        only = {key: name for key, name in wanted.others.items() if key not in wanted.safe}
        for size in sorted({size for size, _digest in only}):
            for digest in sorted(self._of(reader, size)):
                if (size, digest) in only:
                    return f"holds a shard of {only[size, digest]} that is verified nowhere else"
        return ""

    @property
    def may_be_known(self) -> bool:
        """Whether sizes alone leave anything to be read."""
        wanted = self._wanted
        return bool(wanted.wholes or wanted.others.keys() - wanted.safe)

    @cached_property
    def _wanted(self) -> _Wanted:
        wanted = _Wanted(wholes=[], safe=set(), others={})
        counts = Counter({size: len(paths) for size, paths in self._by_size.items()})
        for manifest, copies in _manifests(self._context, self._run_id):
            if copies and all(one.state is CopyState.PURGED for one in copies):
                continue  # removed on purpose
            for index, shard in enumerate(manifest.shards):
                if shard.bytes in self._by_size:
                    self._sort(wanted, manifest, shard, is_safe=_is_held(copies, index))
            shards = [one for one in manifest.shards if one.bytes]
            if shards and Counter(one.bytes for one in shards) <= counts:
                told = tuple(sorted((one.bytes, one.digest) for one in shards))
                wanted.wholes.append((manifest.name, told))
        return wanted

    @staticmethod
    def _sort(wanted: _Wanted, manifest: Manifest, shard: Shard, *, is_safe: bool) -> None:
        key = (shard.bytes, shard.digest)
        if is_safe:
            wanted.safe.add(key)
        else:
            wanted.others.setdefault(key, manifest.name)

    def _of(self, reader: Reader, size: int) -> frozenset[str]:
        if size not in self._digests:
            found = set()
            for path in self._by_size.get(size, ()):
                with reader.open(path) as file:
                    found.add(digest_file(file, drop_cache=True).digest)
            self._digests[size] = frozenset(found)
        return self._digests[size]


def _manifests(context: Context, run_id: str) -> Iterator[tuple[Manifest, tuple[PlacedCopy, ...]]]:
    for page in pages(context.catalog, run_id, step=None):
        copies = context.catalog.copies_of(run_id, [one.content_id for one in page])
        for sealed in page:
            raw = context.catalog.manifest_bytes(run_id, sealed.content_id)
            where = f"the catalog's manifest of {sealed.name}"
            yield decode_manifest(raw, where=where), copies.get(sealed.content_id, ())


def _is_held(copies: Sequence[PlacedCopy], index: int) -> bool:
    return any(one.state is CopyState.VERIFIED and holds(one.coverage, index) for one in copies)
