"""Changing ``ckptgov.yaml`` without losing the user's comments and order.

New entries and values are inserted as text at the place the parsed tree names; nothing else is
rewritten. The changed text must load and say exactly what was meant before it replaces the file.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.config.home import config_path
from ckptgov.config.insert import insertions
from ckptgov.config.load import read_text
from ckptgov.config.parse import parse_settings
from ckptgov.config.roots import url_of
from ckptgov.config.units import bytes_text, duration_text, rate_text
from ckptgov.errors import ConfigError
from ckptgov.model.pacing import Budget
from ckptgov.model.settings import Link, Scope, Settings, TierSettings

Value = str | int | bool | Sequence["Value"] | Mapping[str, "Value"]

_BARE = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z/][A-Za-z0-9/._-]*"
    r"|[0-9]+(?:[kMGTP]?i?B(?:/s)?|/s|[smhd])",
    re.I,
)
"""What YAML takes for text without quotes."""


class Step(Struct, frozen=True):
    """One small change: texts that may make it, and what the settings must say afterwards."""

    texts: Callable[[str, str], Iterator[str]]  # of the text and the file's name
    means: Callable[[Settings], Settings]


def add_tier(home: str, tier: TierSettings, *, dry_run: bool = False) -> Settings:
    """Append one tier to the file of ``home``; both are created where they are absent.

    Returns what the file says then, or with ``dry_run`` would say; then nothing is changed.

    Raises:
        ConfigError: the file does not load, would not load with the tier (name or root taken),
            or cannot be written. Then nothing was changed.
    """
    fields: dict[str, Value] = {
        "name": tier.name,
        "url": url_of(tier.root),
        "scope": tier.scope.value,
    }
    if tier.scope is Scope.NODE and tier.node is not None:
        fields["node"] = tier.node
    fields["ingest"] = tier.ingest
    if tier.endpoint is not None:
        fields["endpoint"] = tier.endpoint
    if tier.budget != Budget():
        fields["budget"] = budget_fields(tier.budget)
    if tier.proof is not None:
        fields["proof"] = tier.proof.value
    if tier.quota_bytes is not None:
        fields["quota"] = bytes_text(tier.quota_bytes)
    return _append(
        home,
        "tiers",
        flow(fields),
        lambda now: replace(now, tiers=(*now.tiers, tier)),
        dry_run=dry_run,
    )


def add_link(home: str, link: Link, *, dry_run: bool = False) -> Settings:
    """Append one link to the file of ``home``; returns what it says then, or would say.

    Raises:
        ConfigError: as for ``add_tier``; a link between these tiers is there already, they are
            not configured, or it closes a circle.
    """
    return _append(
        home,
        "links",
        flow(link_fields(link)),
        lambda now: replace(now, links=(*now.links, link)),
        dry_run=dry_run,
    )


def link_fields(link: Link) -> dict[str, Value]:
    """A link as the file spells it; rules that do not choose are left out."""
    fields: dict[str, Value] = {"from": link.source, "to": link.target}
    if link.every is not None:
        fields["every"] = link.every
    if link.every_s is not None:
        fields["every"] = duration_text(link.every_s)
    if link.every_steps is not None:
        fields["every_steps"] = link.every_steps
    if link.last is not None:
        fields["last"] = link.last
    if link.pins:
        fields["pins"] = link.pins
    if link.hold:
        fields["hold"] = True
    return fields


def budget_fields(budget: Budget) -> dict[str, Value]:
    """A budget's limits as the file spells them; what is without limit is left out."""
    fields: dict[str, Value] = {}
    if budget.read_bytes_per_s is not None:
        fields["read"] = rate_text(budget.read_bytes_per_s)
    if budget.write_bytes_per_s is not None:
        fields["write"] = rate_text(budget.write_bytes_per_s)
    if budget.requests_per_s is not None:
        fields["requests"] = f"{budget.requests_per_s}/s"
    if budget.flows is not None:
        fields["flows"] = budget.flows
    return fields


def _append(
    home: str,
    key: str,
    entry: str,
    means: Callable[[Settings], Settings],
    *,
    dry_run: bool = False,
) -> Settings:
    hint = f'if the entry is right, add it by hand under "{key}": {entry}'
    return edit(home, lambda _now: [Step(appended(key, entry), means)], hint=hint, dry_run=dry_run)


def appended(key: str, entry: str) -> Callable[[str, str], Iterator[str]]:
    """Texts with one more entry in the list under a key."""
    return lambda text, path: insertions(text, key, entry, path=path)


def edit(
    home: str,
    steps: Callable[[Settings], Sequence[Step]],
    *,
    hint: str | None = None,
    dry_run: bool = False,
) -> Settings:
    """Change the file of ``home`` by steps, all of them or none; returns what it says then.

    With ``dry_run`` what it would say; nothing is made or changed.

    Raises:
        ConfigError: as for ``add_tier``.
    """
    path = config_path(home)
    if dry_run:
        return _changed(read_text(path) or "", steps, home=home, hint=hint)[1]
    try:
        with _locked(home, path):
            before = _fingerprint(path)
            text = read_text(path) or ""
            changed, now = _changed(text, steps, home=home, hint=hint)
            if _fingerprint(path) != before:
                raise ConfigError(f"{path}: changed while it was being edited", hint="try again")
            if changed != text:
                _replace(path, changed.encode())
            return now
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def _changed(
    text: str, steps: Callable[[Settings], Sequence[Step]], *, home: str, hint: str | None
) -> tuple[str, Settings]:
    path = config_path(home)
    now = parse_settings(text, home=home, path=path)
    for step in steps(now):
        text, now = _stepped(text, now, step, path=path, hint=hint)
    return text, now


def _stepped(
    text: str, now: Settings, step: Step, *, path: str, hint: str | None
) -> tuple[str, Settings]:
    wanted = step.means(now)
    refusal: ConfigError | None = None
    for changed in step.texts(text, path):
        try:
            if parse_settings(changed, home=now.home, path=path) == wanted:
                return changed, wanted
        except ConfigError as error:
            refusal = refusal or error
    reason = refusal.message if refusal else f"{path}: its form leaves no place for the change"
    raise ConfigError(
        f"the file was left as it was, because with the change: {reason}",
        hint=hint or "make the change by hand",
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


def flow(value: Value) -> str:
    """A value as one line of YAML in flow style."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return _text(value)
        case Mapping():
            return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
    return "[" + ", ".join(map(flow, value)) + "]"


def _text(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    return '"' + "".join(map(_quoted_character, value)) + '"'


def _quoted_character(character: str) -> str:
    if character in {'"', "\\"}:
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
