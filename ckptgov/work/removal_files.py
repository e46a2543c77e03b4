"""The second half of a removal: the files to the trash, and what is looked at afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ckptgov.errors import (
    CkptgovError,
    Interrupted,
    RefusedBySafety,
    StaleState,
    StorageError,
)
from ckptgov.layouts.markers import is_marker
from ckptgov.layouts.tree import join, split
from ckptgov.manifest.pool import Stopper, in_parallel
from ckptgov.model.checkpoint import Manifest
from ckptgov.model.files import EntryKind, FileStat, Token
from ckptgov.storage.contract import Storage
from ckptgov.work.copyproof import stat_shards
from ckptgov.work.look import RunLook
from ckptgov.work.removal_case import Case, are_somebodys, extras_of, is_full, shared_shards
from ckptgov.work.trash import FILES, Standing

Stop = Callable[[], bool]

_THREADS_FAR = 8  # calls that wait for a server, at a time


class Moved(Struct, frozen=True, kw_only=True):
    """What lies in an entry: shards and extras, and the bytes of the shards."""

    files: int
    bytes: int
    extras: tuple[str, ...] = ()


def own_directory(entry: str, manifest: Manifest) -> str:
    """Where a checkpoint's own directory, or its one file, lies in an entry."""
    return f"{entry}/{FILES}/{split(manifest.name)[1]}"


def lies_as_directory(case: Case, entry: str) -> bool:
    """Whether the entry has its own directory, not files of a shared one."""
    return not case.is_single and is_directory(case.storage, own_directory(entry, case.manifest))


def move_files(
    case: Case, look: RunLook, standing: Standing, entry: str, stop: Stop | None
) -> list[str]:
    """Move what stands as it was verified; what resisted, in words.

    Raises:
        StaleState: something else was moved, for it took the place just then; it was put back.
        FileNotFoundError: the entry is gone: another process came to the end of this.
    """
    own = own_directory(entry, case.manifest)
    if lies_as_directory(case, entry) and not standing.ours:  # moved by an earlier call
        _require_moved_right(case, standing, own)
        return []
    if standing.others or not standing.ours:
        return []  # it was made again, and that is not ours; or it is gone already
    shared = shared_shards(case)
    may_go_whole = standing.is_directory and not shared and not lies_as_directory(case, entry)
    if not may_go_whole or _holds_others(case, look, standing):
        return _move_each(case, standing, entry, shared, stop)
    try:
        case.storage.rename_dir(standing.base, own, parents=False)
    except FileNotFoundError:
        _require_entry(case.storage, entry)
        return []  # somebody has just removed it
    _require_moved_right(case, standing, own)
    return []


def _holds_others(case: Case, look: RunLook, standing: Standing) -> bool:
    """Whether what else lies in the directory is not just to go along: that was looked at before
    anything was touched, which may be long ago."""
    try:
        return are_somebodys(case, look, extras_of(case, standing))
    except RefusedBySafety:
        return True


def _require_entry(storage: Storage, entry: str) -> None:
    """Raise FileNotFoundError where another process has come to the end of this removal, and
    perhaps undone it: nothing is taken for it any more."""
    storage.stat(f"{entry}/{FILES}")


def _require_moved_right(case: Case, standing: Standing, own: str) -> None:
    """Look at the tokens once more: what came in between the look and the move goes back."""
    tokens = case.tokens
    found = stat_shards(case.storage, own, case.shards)
    wrong = [
        path
        for path, stat in found.items()
        if stat is not None and not stat.token.same_content(tokens[path])
    ]
    if not wrong:
        return
    try:
        case.storage.rename_dir(own, join(case.store.run_root, case.manifest.name))
    except FileExistsError as error:
        raise StorageError(
            f"{case.where}: another thing was moved aside, and a third one has its place",
            hint=f"it lies in {own}; nothing of it was removed",
        ) from error
    raise _replaced(case, min(wrong))


def _replaced(case: Case, path: str) -> StaleState:
    return StaleState(
        f"{join(case.where, path)}: something else took its place as it was moved aside, and was "
        "put back"
    )


def _move_each(
    case: Case, standing: Standing, entry: str, shared: frozenset[str], stop: Stop | None
) -> list[str]:
    """Markers first, so that nothing vouches for what is not there any more."""
    storage, tokens = case.storage, case.tokens
    aside = own_directory(entry, case.manifest)
    if not standing.is_directory and not case.is_single:
        aside = f"{entry}/{FILES}"
    going = [path for path in standing.ours if path not in shared]

    def move(path: str) -> str:
        source, target = join(standing.base, path), join(aside, path)
        try:
            storage.rename(source, target, only=tokens[path], durable=False, parents=False)
            if not storage.stat(target).token.same_content(tokens[path]):
                storage.rename(target, source)
        except (FileNotFoundError, StaleState):
            return ""  # gone already; or another file has the name, and that is not ours
        except (CkptgovError, OSError) as error:
            if not is_full(error):
                return in_words(source, error)
            return _unlinked(storage, source, tokens[path])
        return ""

    _require_entry(storage, entry)
    for directory in _directories(aside, going):
        storage.make_dirs(directory, like=case.store.run_root)
    left: list[str] = []
    for wave in ([p for p in going if is_marker(p)], [p for p in going if not is_marker(p)]):
        left += [text for text in each(storage, wave, move, stop) if text]
        for directory in (*_directories(aside, wave), *_directories(standing.base, wave)):
            with suppress(FileNotFoundError):
                storage.sync_dir(directory)
    if standing.is_directory and not left and not shared:
        _drop_empty_below(storage, standing.base)
    return left


def _unlinked(storage: Storage, path: str, token: Token) -> str:
    """Where the trash has no room for its name."""
    try:
        storage.remove(path, only=token)
    except (FileNotFoundError, StaleState):
        return ""
    except (CkptgovError, OSError) as error:
        return in_words(path, error)
    return ""


def _directories(base: str, paths: Iterable[str]) -> list[str]:
    return sorted({split(join(base, path))[0] for path in paths})


def each(
    storage: Storage, paths: Sequence[str], work: Callable[[str], str], stop: Stop | None
) -> Iterator[str]:
    """What ``work`` says of each; several at a time where each waits for a server.

    Raises:
        Interrupted: ``stop`` said so.
    """
    is_far = not storage.traits.has_directories or storage.filesystem().is_network
    threads = min(_THREADS_FAR if is_far else 1, len(paths))
    done = in_parallel(paths, work, threads=threads, stopper=Stopper(stop))
    yield from (text for _path, text in done)
    ask(stop)


def ask(stop: Stop | None) -> None:
    """Raise Interrupted where ``stop`` says so."""
    if stop is not None and stop():
        raise Interrupted("stopped; the same command goes on from here")


def in_words(path: str, error: BaseException) -> str:
    """What resisted, and why."""
    return f"{path}: {error.message if isinstance(error, CkptgovError) else error}"


def _drop_empty_below(storage: Storage, directory: str) -> None:
    """The directories of files that were moved one by one, as far as they are empty."""
    with suppress(CkptgovError, OSError):
        for entry in storage.list(directory):
            if entry.kind is EntryKind.DIR:
                _drop_empty_below(storage, f"{directory}/{entry.name}")
        storage.remove_dir(directory)


def drop_empty_parents(case: Case) -> None:
    """Remove directories that the checkpoint's own name leads through, as far as they are empty.

    Never the run's root. (A slash in a metric's name makes such directories, as attempts do.)
    """
    parent = split(case.manifest.name)[0]
    with suppress(CkptgovError, OSError):  # the first that holds anything ends it
        while parent:
            with suppress(FileNotFoundError):
                case.storage.remove_dir(join(case.store.run_root, parent))
            parent = split(parent)[0]


def is_directory(storage: Storage, path: str) -> bool:
    """Whether a directory has this path; a symlink is none."""
    try:
        return storage.stat(path).kind is EntryKind.DIR
    except (FileNotFoundError, NotADirectoryError):
        return False


def moved_into(case: Case, entry: str) -> Moved:
    """What lies in the entry."""
    own, is_own = own_directory(entry, case.manifest), lies_as_directory(case, entry)
    base = own if case.is_single or is_own else f"{entry}/{FILES}"
    stats = stat_shards(case.storage, base, case.shards)
    found = {path: stat for path, stat in stats.items() if stat is not None}
    extras = files_below(case.storage, own, found) if is_own else ()
    return Moved(files=len(found) + len(extras), bytes=sizes(found.values()), extras=extras)


def files_below(storage: Storage, top: str, known: Mapping[str, FileStat]) -> tuple[str, ...]:
    """Whatever is no directory beneath one, by path, but for what is known."""
    found: list[str] = []
    todo = [""]
    while todo:
        below = todo.pop()
        for one in storage.list(join(top, below)):
            path = join(below, one.name)
            if one.kind is EntryKind.DIR:
                todo.append(path)
            elif path not in known:
                found.append(path)
    return tuple(sorted(found))


def sizes(stats: Iterable[FileStat]) -> int:
    """The sum of their bytes."""
    return sum(one.bytes for one in stats)


def dangling(case: Case) -> tuple[str, ...]:
    """Symlinks beside the checkpoint that lead to where it was."""
    storage = case.storage
    gone = join(case.store.run_root, case.manifest.name)
    found: list[str] = []
    for directory in dict.fromkeys((case.store.run_root, split(gone)[0])):
        with suppress(FileNotFoundError, NotADirectoryError):
            for one in storage.list(directory):
                path = join(directory, one.name)
                if one.kind is EntryKind.SYMLINK and _leads_to(storage, path) == gone:
                    found.append(path)
    return tuple(found)


def _leads_to(storage: Storage, link: str) -> str:
    """Where a relative link, or an absolute one into this root, leads; "" where elsewhere."""
    text = storage.read_link(link)
    if text.startswith("/"):
        root = storage.root.rstrip("/")
        return text.removeprefix(f"{root}/").rstrip("/") if text.startswith(f"{root}/") else ""
    parts = split(link)[0].split("/") if "/" in link else []
    for part in text.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part == "..":
            return ""
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
