"""Reading a document member by member: strict about what is needed, blind to what is not known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, TypeVar

from ckptgov.errors import Malformed

_E = TypeVar("_E", bound=StrEnum)
_T = TypeVar("_T")
_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")


def unescaped(told: str) -> str:
    """A path as its file system spells it: what ``documents.text`` escaped is bytes again.

    A name that holds such an escape as letters reads as if it held the byte: one of the two has to
    lose, and bytes that are not UTF-8 are the ones that occur.
    """
    if "\\x" not in told:
        return told
    return _ESCAPED.sub(lambda found: chr(0xDC00 + int(found[1], 16)), told)


class Members:
    """The members of one object. ``where`` leads to it, for messages.

    Every reader raises Malformed, naming the member, where it is missing or of another kind.
    """

    __slots__ = ("_told", "_where")

    def __init__(self, told: object, where: str = "the answer of the service") -> None:
        if not isinstance(told, dict):
            raise Malformed(f"{where}: is no object")
        self._told: dict[str, Any] = told
        self._where = where

    def has(self, name: str) -> bool:
        """Whether it is there and not null."""
        return self._told.get(name) is not None

    def text(self, name: str) -> str:
        told = self._told.get(name)
        if not isinstance(told, str):
            raise self.wrong(name, "text")
        return told

    def path(self, name: str) -> str:
        return unescaped(self.text(name))

    def whole(self, name: str) -> int:
        told = self._told.get(name)
        if not isinstance(told, int) or isinstance(told, bool):
            raise self.wrong(name, "a whole number")
        return told

    def number(self, name: str) -> float:
        told = self._told.get(name)
        if not isinstance(told, int | float) or isinstance(told, bool):
            raise self.wrong(name, "a number")
        return told

    def flag(self, name: str) -> bool:
        told = self._told.get(name)
        if not isinstance(told, bool):
            raise self.wrong(name, "true or false")
        return told

    def one_of(self, name: str, kind: type[_E]) -> _E:
        """One word of a closed set."""
        told = self.text(name)
        try:
            return kind(told)
        except ValueError:
            raise self.wrong(name, f"one of {', '.join(kind)}") from None

    def maybe(self, read: Callable[[str], _T], name: str) -> _T | None:
        """The same where it may be null; a member that is not there at all is refused."""
        if name not in self._told:
            raise self.wrong(name, "there")
        return None if self._told[name] is None else read(name)

    def member(self, name: str) -> Members:
        return Members(self._told.get(name), self._at(name))

    def whole_document(self) -> dict[str, Any]:
        """This object as it came."""
        return self._told

    def document(self, name: str) -> dict[str, Any]:
        """An object as it came."""
        told = self._told.get(name)
        if not isinstance(told, dict):
            raise self.wrong(name, "an object")
        return told

    def objects(self, name: str) -> Iterator[Members]:
        for number, each in enumerate(self._list(name)):
            yield Members(each, f"{self._at(name)}[{number}]")

    def texts(self, name: str) -> tuple[str, ...]:
        told = self._list(name)
        if not all(isinstance(each, str) for each in told):
            raise self.wrong(name, "a list of texts")
        return tuple(str(each) for each in told)

    def wholes(self, name: str) -> tuple[int, ...]:
        found: list[int] = []
        for each in self._list(name):
            if not isinstance(each, int) or isinstance(each, bool):
                raise self.wrong(name, "a list of whole numbers")
            found.append(each)
        return tuple(found)

    def words(self, name: str, kind: type[_E]) -> tuple[_E, ...]:
        """Words of a closed set."""
        told = self.texts(name)
        try:
            return tuple(kind(each) for each in told)
        except ValueError:
            raise self.wrong(name, f"a list of {', '.join(kind)}") from None

    def paths(self, name: str) -> tuple[str, ...]:
        return tuple(unescaped(each) for each in self.texts(name))

    def wrong(self, name: str, wanted: str) -> Malformed:
        """What to raise about a member."""
        said = "is missing" if name not in self._told else f"is not {wanted}"
        return Malformed(
            f'{self._where}: "{name}" {said}',
            hint="is this ckptgov of the same version as the service?",
        )

    def _list(self, name: str) -> list[object]:
        told = self._told.get(name)
        if not isinstance(told, list):
            raise self.wrong(name, "a list")
        return told

    def _at(self, name: str) -> str:
        return f"{self._where}: {name}"
