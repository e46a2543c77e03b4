"""Changing ``ckptgov.yaml`` without losing the user's comments and order.

New entries are inserted as text at the place the parsed tree names; nothing else is rewritten.
The changed text must load and say exactly what was meant before it replaces the file.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import asdict, replace

from ckptgov.config.home import config_path
from ckptgov.config.insert import insertions
from ckptgov.config.load import read_text
from ckptgov.config.parse import parse_settings
from ckptgov.config.roots import url_of
from ckptgov.errors import ConfigError
from ckptgov.model.settings import RunRule, Scope, Settings, TierSettings

_BARE = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z/][A-Za-z0-9/._-]*", re.I)
"""What YAML takes for text without quotes."""


def add_tier(home: str, tier: TierSettings) -> None:
    """Append one tier to the file of ``home``; both are created where they are absent.

    Raises:
        ConfigError: the file does not load, would not load with the tier (name or root taken),
            or cannot be written. Then nothing was changed.
    """
    fields = {"name": tier.name, "url": url_of(tier.root), "scope": tier.scope.value}
    if tier.scope is Scope.NODE and tier.node is not None:
        fields["node"] = tier.node
    entry = _flow(fields | {"ingest": tier.ingest})
    _append(home, "tiers", entry, Settings(home=home, tiers=(tier,)))


def add_rule(home: str, rule: RunRule) -> None:
    """Append one rule to the file of ``home``; both are created where they are absent.

    Raises:
        ConfigError: as for ``add_tier``.
    """
    expect = {key: value for key, value in asdict(rule.expect).items() if value}
    entry = f"{{run: {_scalar(rule.run)}, expect: {_flow(expect)}}}"
    _append(home, "runs", entry, Settings(home=home, rules=(rule,)))


def _append(home: str, key: str, entry: str, added: Settings) -> None:
    path = config_path(home)
    try:
        with _locked(home, path):
            before = _fingerprint(path)
            text = read_text(path) or ""
            changed = _changed_text(text, key, entry, added, path=path)
            if _fingerprint(path) != before:
                raise ConfigError(f"{path}: changed while it was being edited", hint="try again")
            _replace(path, changed.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def _changed_text(text: str, key: str, entry: str, added: Settings, *, path: str) -> str:
    now = parse_settings(text, home=added.home, path=path)
    wanted = replace(now, tiers=now.tiers + added.tiers, rules=now.rules + added.rules)
    refusal: ConfigError | None = None
    for changed in insertions(text, key, entry, path=path):
        try:
            if parse_settings(changed, home=added.home, path=path) == wanted:
                return changed
        except ConfigError as error:
            refusal = refusal or error
    reason = refusal.message if refusal else f"{path}: its form leaves no place for the entry"
    raise ConfigError(
        f"the file was left as it is, because with the new entry: {reason}",
        hint=f'if the entry is right, add it by hand under "{key}": {entry}',
    ) from refusal


@contextmanager
def _locked(home: str, path: str) -> Iterator[None]:
    """Keep a second editor out. The lock is the kernel's: a killed editor leaves none behind."""
    if not os.path.isdir(home):
        os.makedirs(os.path.dirname(home), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(home, 0o700)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path + ".lock", flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _fingerprint(path: str) -> tuple[int, int, int, int] | None:
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(seen.st_mode):
        raise ConfigError(
            f"{path}: a symlink, and nothing is written through one",
            hint="edit the file it points to",
        )
    return (seen.st_size, seen.st_mtime_ns, seen.st_ino, seen.st_ctime_ns)


def _replace(path: str, content: bytes) -> None:
    """Put ``content`` in the file's place, durably, keeping its mode and (where allowed) owner."""
    # One fixed name: the lock is held, so what lies there is a killed editor's leftover.
    draft = path + ".new"
    with suppress(FileNotFoundError):
        os.unlink(draft)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
            _take_after(path, file.fileno())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    _sync_directory(os.path.dirname(path))


def _take_after(path: str, descriptor: int) -> None:
    try:
        old = os.stat(path)
    except FileNotFoundError:
        return
    with suppress(PermissionError):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flow(fields: dict[str, str | int | bool]) -> str:
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in fields.items()) + "}"


def _scalar(value: str | int | bool) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
    if _BARE.fullmatch(value):
        return value
    return '"' + "".join(map(_quoted_character, value)) + '"'


def _quoted_character(character: str) -> str:
    if character in {'"', "\\"}:
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
