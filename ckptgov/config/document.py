"""YAML text as a tree whose every value knows its line.

PyYAML's node graph is used instead of its objects, because objects have lost their lines, and
doubled keys with them (the last one wins silently).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection

import yaml
from msgspec import Struct

from ckptgov.config.units import parse_duration
from ckptgov.errors import ConfigError, UsageError

MAX_DEPTH = 8
"""Deeper nesting is refused before a tree is built; ckptgov.yaml needs 4, a policy 6."""

MAX_COUNT = 10**9
TIER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_TRUE, _FALSE = {"true", "yes", "on"}, {"false", "no", "off"}
_KIND_OF_TAG = {
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:bool": "true or false",
    "tag:yaml.org,2002:null": "nothing",
    "tag:yaml.org,2002:timestamp": "a date",
    "tag:yaml.org,2002:seq": "a list",
    "tag:yaml.org,2002:map": "a table",
}
_TEXT_TAG = "tag:yaml.org,2002:str"
_NULL_TAG = "tag:yaml.org,2002:null"


class Item(Struct, frozen=True):
    """One value of the file. Every reading either gives a checked value or raises ConfigError."""

    file: str
    name: str
    node: yaml.Node

    @property
    def line(self) -> int:
        """Line of its first character, from 1."""
        return int(self.node.start_mark.line) + 1

    @property
    def is_empty(self) -> bool:
        """A key without a value (or with ``null``)."""
        return bool(self.node.tag == _NULL_TAG)

    def wrong(self, message: str, *, hint: str | None = None) -> ConfigError:
        """The error to raise about this value."""
        return ConfigError(f"{self.file}:{self.line}: {message}", hint=hint)

    def table(self, known: Collection[str], *, required: Collection[str] = ()) -> dict[str, Item]:
        """Its entries by key; a key that is unknown, doubled or missing is an error."""
        entries = self._entries(lambda key: key._key(known))
        for name in required:
            if name not in entries:
                raise self.wrong(f'"{name}" is missing in {self.name}')
        return entries

    def by_tier(self, tiers: Collection[str] | None) -> dict[str, Item]:
        """Its entries by the name of a tier; one that is doubled or not among ``tiers`` (None:
        anything goes) is an error. A key without a value is an empty table."""
        return {} if self.is_empty else self._entries(lambda key: key.tier(tiers))

    def tier(self, tiers: Collection[str] | None) -> str:
        """The name of a tier, one of ``tiers`` where they are known."""
        name = str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else ""
        if not TIER_NAME.fullmatch(name):
            raise self.wrong('the name of a tier is wanted here: letters, digits, ".", "_", "-"')
        if tiers is not None and name not in tiers:
            instead = _instead(name, tiers) if tiers else "ckptgov.yaml has none"
            raise self.wrong(f"no tier {shown(name)} is configured; {instead}")
        return name

    def items(self) -> tuple[Item, ...]:
        """Its members in order; a key without a value is an empty list."""
        if self.is_empty:
            return ()
        if not isinstance(self.node, yaml.SequenceNode):
            raise self._not_a("a list")
        return tuple(Item(self.file, f"an entry of {self.name}", each) for each in self.node.value)

    def text(self) -> str:
        """Non-empty text."""
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag != _TEXT_TAG:
            hint = "put it in quotes" if isinstance(self.node, yaml.ScalarNode) else None
            raise self._not_a("text", hint=None if self.is_empty else hint)
        text = str(self.node.value)
        if not text:
            raise self.wrong(f'"{self.name}" is empty')
        if "\0" in text:
            raise self.wrong(f'"{self.name}" holds a NUL character')
        return text

    def one_of(self, choices: Collection[str]) -> str:
        """Text out of a closed set."""
        text = self.text()
        if text not in choices:
            raise self.wrong(f'"{self.name}" is {shown(text)}; {_instead(text, choices)}')
        return text

    def flag(self) -> bool:
        """``true`` or ``false`` (YAML 1.1's yes, no, on and off too)."""
        word = str(self.node.value).lower() if self._has_tag("bool") else ""
        if word not in _TRUE | _FALSE:
            raise self._not_a("true or false")
        return word in _TRUE

    def whole(self, lowest: int, highest: int) -> int:
        """A plain decimal number in lowest..highest; YAML's octal and hex spellings are refused."""
        digits = str(self.node.value) if self._has_tag("int") else ""
        if not _WHOLE.fullmatch(digits):
            raise self._not_a(f"a whole number from {lowest} to {highest}")
        number = int(digits)
        if not lowest <= number <= highest:
            raise self.wrong(f'"{self.name}" must be from {lowest} to {highest}, not {number}')
        return number

    def count(self) -> int | None:
        """A whole number of 1 or more, or None for ``all``."""
        if not self.is_whole():
            word = str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else ""
            if word == "all":
                return None
            raise self._not_a('a whole number of 1 or more, or "all"')
        return self.whole(1, MAX_COUNT)

    def duration_s(self, lowest_s: int, highest_s: int) -> float:
        """A length of time such as ``30s``, ``15m``, ``24h`` or ``7d``, in seconds."""
        written = str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else ""
        try:
            seconds = parse_duration(written)
        except UsageError as error:
            raise self.wrong(f'"{self.name}" {error.message}', hint=error.hint) from error
        if not lowest_s <= seconds <= highest_s:
            raise self.wrong(
                f'"{self.name}" must be from {lowest_s}s to {highest_s // 86400}d, not {written}'
            )
        return float(seconds)

    def amount(self, parse: Callable[[str], int]) -> int:
        """A number, bare or with its unit, as ``parse`` (of ``config.units``) reads it."""
        if not isinstance(self.node, yaml.ScalarNode) or self.is_empty:
            raise self._not_a("an amount")
        written = str(self.node.value)
        try:
            return parse(written)
        except UsageError as error:
            message = f'"{self.name}" is {shown(written)}, which {error.message}'
            raise self.wrong(message, hint=error.hint) from error

    def percent(self, lowest: int, highest: int) -> int:
        """A whole share such as ``10%``."""
        written = str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else ""
        digits = written.removesuffix("%")
        if digits == written or not _WHOLE.fullmatch(digits):
            raise self._not_a("a whole number of percent", hint="write it like 10%")
        if not lowest <= int(digits) <= highest:
            raise self.wrong(f'"{self.name}" must be from {lowest}% to {highest}%, not {written}')
        return int(digits)

    def is_whole(self) -> bool:
        """Whether it is written as a bare whole number."""
        return self._has_tag("int")

    def is_list(self) -> bool:
        """Whether it is written as a list."""
        return isinstance(self.node, yaml.SequenceNode)

    def _entries(self, name_of: Callable[[Item], str]) -> dict[str, Item]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self._not_a("a table (key: value)")
        entries: dict[str, Item] = {}
        for key_node, node in self.node.value:
            key = Item(self.file, self.name, key_node)
            name = name_of(key)
            if name in entries:
                first = entries[name].line
                raise key.wrong(f'"{name}" is given twice (first on line {first})')
            entries[name] = Item(self.file, name, node)
        return entries

    def _key(self, known: Collection[str]) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.wrong("a key must be a word")
        key = str(self.node.value)
        if key not in known:
            raise self.wrong(f"unknown key {shown(key)}; {_instead(key, known)}")
        return key

    def _has_tag(self, kind: str) -> bool:
        is_scalar = isinstance(self.node, yaml.ScalarNode)
        return is_scalar and self.node.tag == f"tag:yaml.org,2002:{kind}"

    def _not_a(self, wanted: str, *, hint: str | None = None) -> ConfigError:
        got = _KIND_OF_TAG.get(self.node.tag, "text")
        if isinstance(self.node, yaml.ScalarNode) and not self.is_empty:
            got = shown(str(self.node.value))
        return self.wrong(f'"{self.name}" must be {wanted}, not {got}', hint=hint)


def compose(text: str, path: str) -> Item | None:
    """The document's root, or None where the file says nothing.

    Refused with file and line: what is no YAML, several documents, more than MAX_DEPTH levels,
    and explicit tags, anchors and aliases, which settings never need (``!!python/…`` asks for
    code, aliases can unfold without bound).
    """
    text = text.removeprefix("\ufeff")
    if unprintable := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, unprintable.start()) + 1
        raise ConfigError(f"{path}:{line}: holds a character YAML does not allow")
    try:
        _check_events(text, path)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        raise _no_yaml(path, error) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if root is None or root.tag == _NULL_TAG:
        return None
    return Item(path, "the file", root)


def shown(text: str) -> str:
    """Text as an error message may carry it: quoted, escaped, cut."""
    short = text if len(text) <= 60 else text[:57] + "..."
    return '"' + short.encode("unicode_escape").decode("ascii") + '"'


def _check_events(text: str, path: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        mark = event.start_mark
        where = f"{path}:{mark.line + 1}" if mark is not None else path
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ConfigError(f"{where}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.NodeEvent):
            if event.anchor is not None:
                raise ConfigError(f"{where}: anchors and aliases (&, *) are not allowed")
            if getattr(event, "tag", None) is not None:
                raise ConfigError(f"{where}: tags (!) are not allowed")


def _no_yaml(path: str, error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}" if mark is not None else path
    return ConfigError(f"{where}: not YAML: {error.problem or error.context}")


def _instead(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return "known are " + ", ".join(sorted(known))
