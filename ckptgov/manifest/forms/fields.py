"""Rules of single members, and the tables a form is made of.

A form is a tuple of fields in the order of its members. ``write`` and ``read`` go through the same
table, and what is written passes the same checks as what is read: nothing is ever written that
would be refused later. Every refusal is ``Malformed`` and names file and member.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NoReturn, Protocol

from ckptgov.errors import Malformed
from ckptgov.manifest import names
from ckptgov.manifest.forms.frame import quote
from ckptgov.model.checkpoint import Purpose, StepKind

MAX_COUNT = 2**63 - 1
MAX_INODE = 2**64 - 1  # parallel file systems hash their 128-bit ids into all 64 bits

Check = Callable[[object, str], object]
"""(JSON value, place for messages) -> model value; raises Malformed."""


def refuse(at: str, why: str) -> NoReturn:
    """Raise Malformed. ``at`` names file and member."""
    raise Malformed(f"{at}: {why}")


def text(value: object, at: str) -> str:
    """Any string that is valid Unicode, the empty one too."""
    if not isinstance(value, str):
        refuse(at, "not a string")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        refuse(at, "holds a lone surrogate, which is no text")
    return value


def label(value: object, at: str) -> str:
    """A string that is not empty."""
    return text(value, at) or refuse(at, "empty")


def is_digest(value: str) -> bool:
    """Whether ``value`` is ``xxh3_128:<32 hex>``."""
    return value.startswith("xxh3_128:") and names.is_hex(value[9:], 32)


def _is_uuid(value: str) -> bool:
    return [len(part) for part in value.split("-")] == [8, 4, 4, 4, 12] and names.is_hex(
        value.replace("-", ""), 32
    )


def _is_decimal(value: str) -> bool:
    number = r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf|infinity)"
    return re.fullmatch(number, value, re.IGNORECASE | re.ASCII) is not None


def _in_form(is_right: Callable[[str], bool], what: str) -> Check:
    def check(value: object, at: str) -> str:
        found = text(value, at)
        return found if is_right(found) else refuse(at, f"not {what}")

    return check


uuid = _in_form(_is_uuid, "a lower-case UUID")
content_id = _in_form(names.is_content_id, "sha256: and 64 lower-case hex digits")
digest = _in_form(is_digest, "xxh3_128: and 32 lower-case hex digits")
decimal = _in_form(_is_decimal, "a decimal number, nan or inf as a string")


def _number(low: int, high: int) -> Check:
    def check(value: object, at: str) -> int:
        if type(value) is not int:  # bool is an int to isinstance
            refuse(at, "not an integer")
        if not low <= value <= high:
            refuse(at, "negative" if value < 0 else f"not within {low} to {high}")
        return value

    return check


count = _number(0, MAX_COUNT)
positive = _number(1, MAX_COUNT)
inode = _number(0, MAX_INODE)


def one_of(kind: type[StrEnum], *without: StrEnum) -> Check:
    """A member of a closed set."""
    allowed = {member.value: member for member in kind if member not in without}

    def check(value: object, at: str) -> StrEnum:
        found = allowed.get(text(value, at))
        return found if found is not None else refuse(at, f"not one of {', '.join(allowed)}")

    return check


def list_of(check: Check) -> Callable[[object, str], tuple[object, ...]]:
    """A non-empty array as a tuple."""

    def check_all(value: object, at: str) -> tuple[object, ...]:
        if not isinstance(value, (list, tuple)) or not value:
            refuse(at, "not an array with elements")
        return tuple(check(element, at) for element in value)

    return check_all


def true(value: object, at: str) -> bool:
    """The literal ``true``; false is said by leaving the member out."""
    return value is True or refuse(at, "not true (left out when it is not)")


_purpose = one_of(Purpose)


def purposes(value: object, at: str) -> tuple[object, ...]:
    """``resume`` before ``weights``, each at most once, at least one."""
    found = list_of(_purpose)(value, at)
    if list(found) != [purpose for purpose in Purpose if purpose in found]:
        refuse(at, "not each once, resume before weights")
    return found


class Cursor:
    """Takes the members of one object in their order."""

    __slots__ = ("_members", "_names", "where")

    def __init__(self, members: dict[str, object], where: str) -> None:
        self._members = members
        self._names = list(members)[::-1]
        self.where = where

    @classmethod
    def after_head(cls, members: dict[str, object], where: str) -> Cursor:
        """Over a whole file's members; format and version were checked and are behind."""
        cursor = cls(members, where)
        cursor.take("format")
        cursor.take("version")
        return cursor

    def at(self, name: str) -> str:
        """The place of a member, for messages."""
        return f"{self.where}: member {quote(name)}"

    def next_is(self, name: str) -> bool:
        """Whether ``name`` comes next."""
        return bool(self._names) and self._names[-1] == name

    def take(self, name: str) -> object:
        """The value of the member that must come next."""
        if self.next_is(name):
            return self._members[self._names.pop()]
        if name in self._members:
            self.refuse_next()
        refuse(
            self.at(name),
            f"missing (next is {quote(self._names[-1])})" if self._names else "missing",
        )

    def refuse_next(self) -> NoReturn:
        """Refuse the member that comes next, which no field takes."""
        refuse(self.at(self._names[-1]), "unknown here, or out of order")

    def close(self) -> None:
        """Refuse what is left over."""
        if self._names:
            self.refuse_next()


class Field(Protocol):
    """One entry of a form's table."""

    def put(self, value: object, members: dict[str, object], where: str) -> None:
        """Add the member of a model value to ``members``, checked."""
        ...

    def take(self, cursor: Cursor, into: dict[str, object]) -> None:
        """Take the member from ``cursor`` and add the model's attributes to ``into``."""
        ...


class Member:
    """A member of one name for one attribute.

    ``absent`` is the attribute's value that an optional member says by being left out;
    ``spell`` turns the attribute into what JSON holds.
    """

    __slots__ = ("_absent", "_attribute", "_check", "_is_optional", "_name", "_spell")

    def __init__(
        self,
        name: str,
        check: Check,
        *,
        attribute: str | None = None,
        is_optional: bool = False,
        absent: object = None,
        spell: Callable[[object, str], object] | None = None,
    ) -> None:
        self._name = name
        self._check = check
        self._attribute = attribute or name
        self._is_optional = is_optional
        self._absent = absent
        self._spell = spell

    def put(self, value: object, members: dict[str, object], where: str) -> None:
        held: object = getattr(value, self._attribute)
        if self._is_optional and held == self._absent and type(held) is type(self._absent):
            return
        at = f"{where}: member {quote(self._name)}"
        plain = held if self._spell is None else self._spell(held, at)
        self._check(plain, at)
        members[self._name] = plain

    def take(self, cursor: Cursor, into: dict[str, object]) -> None:
        if self._is_optional and not cursor.next_is(self._name):
            into[self._attribute] = self._absent
            return
        into[self._attribute] = self._check(cursor.take(self._name), cursor.at(self._name))


class PathMember:
    """``<name>``, or ``<name>_pct`` in its place where the path cannot be written plainly."""

    __slots__ = ("_may_be_empty", "_name")

    def __init__(self, name: str, *, may_be_empty: bool = False) -> None:
        self._name = name
        self._may_be_empty = may_be_empty

    def put(self, value: object, members: dict[str, object], where: str) -> None:
        path: object = getattr(value, self._name)
        at = f"{where}: member {quote(self._name)}"
        if not isinstance(path, str):
            refuse(at, "not a string")
        self._check(path, at)
        if names.needs_percent(path):
            members[f"{self._name}_pct"] = names.percent_encode(path, at)
        else:
            members[self._name] = path

    def take(self, cursor: Cursor, into: dict[str, object]) -> None:
        encoded = f"{self._name}_pct"
        if cursor.next_is(encoded):
            at = cursor.at(encoded)
            path = names.percent_decode(label(cursor.take(encoded), at), at)
            if not names.needs_percent(path):
                refuse(at, f"a path that belongs into {quote(self._name)}")
        else:
            at = cursor.at(self._name)
            path = text(cursor.take(self._name), at)
            if names.needs_percent(path):
                refuse(at, f"control characters belong into {quote(encoded)}")
        self._check(path, at)
        into[self._name] = path

    def _check(self, path: str, at: str) -> None:
        if path or not self._may_be_empty:
            names.check_path(path, at)


class StepMember:
    """``step``, or ``ordinal`` in its place, or neither for a stepless checkpoint."""

    def put(self, value: object, members: dict[str, object], where: str) -> None:
        step: object = getattr(value, "step")  # noqa: B009 (the model class is not known here)
        kind: object = getattr(value, "step_kind")  # noqa: B009
        at = f'{where}: member "step"'
        if kind is StepKind.NONE:
            if step is not None:
                refuse(at, "given, and said to be stepless")
        elif kind in (StepKind.STEP, StepKind.ORDINAL):
            members[str(kind)] = count(step, at)
        else:
            refuse(at, "of no known kind")

    def take(self, cursor: Cursor, into: dict[str, object]) -> None:
        into["step"], into["step_kind"] = None, StepKind.NONE
        for kind in (StepKind.STEP, StepKind.ORDINAL):
            if cursor.next_is(kind):
                if into["step"] is not None:
                    refuse(cursor.at(kind), "both step and ordinal")
                into["step"] = count(cursor.take(kind), cursor.at(kind))
                into["step_kind"] = kind


def write(fields: Sequence[Field], value: object, where: str) -> dict[str, object]:
    """The members of ``value`` in the order of ``fields``."""
    members: dict[str, object] = {}
    for field in fields:
        field.put(value, members, where)
    return members


def read(fields: Sequence[Field], cursor: Cursor) -> dict[str, object]:
    """The attributes that the next members hold; what follows them stays in ``cursor``."""
    attributes: dict[str, object] = {}
    for field in fields:
        field.take(cursor, attributes)
    return attributes
