"""A YAML text as lines and spans, so that a change leaves every other character alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

_NULL_TAG = "tag:yaml.org,2002:null"
# YAML 1.1's line breaks, which PyYAML's line numbers count.
_LINE = re.compile("[^\r\n\x85\u2028\u2029]*(?:\r\n|[\r\n\x85\u2028\u2029]|\\Z)")


class Page:
    """A text by lines, as YAML counts them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = [line for line in _LINE.findall(text) if line]
        self._newline = "\r\n" if self._lines and self._lines[0].endswith("\r\n") else "\n"

    @property
    def count(self) -> int:
        return len(self._lines)

    def offset(self, mark: yaml.Mark) -> int:
        return sum(map(len, self._lines[: mark.line])) + mark.column

    def with_lines(self, before: int, *new: str) -> str:
        """The text with ``new`` lines in front of line number ``before``."""
        kept = "".join(self._lines[:before])
        if kept and kept[-1] not in "\r\n\x85\u2028\u2029":
            kept += self._newline
        added = "".join(line + self._newline for line in new)
        return kept + added + "".join(self._lines[before:])

    def without_lines(self, first: int, after: int) -> str:
        """The text without the lines from number ``first`` to the one before ``after``."""
        return "".join(self._lines[:first]) + "".join(self._lines[after:])

    def before_on_line(self, mark: yaml.Mark) -> str:
        """What stands on a line in front of a place."""
        line: str = self._lines[mark.line]
        return line[: int(mark.column)]

    def text(self, start: int, end: int | None = None) -> str:
        """The characters of start..end."""
        return self._text[start:end]

    def with_span(self, start: int, end: int, new: str) -> str:
        """The text with ``new`` in the place of start..end."""
        return self._text[:start] + new + self._text[end:]

    def before_bracket(self, node: yaml.CollectionNode, new: str) -> Iterator[str]:
        """The text with ``new`` as the last member of a flow list or table."""
        bracket = self.offset(node.end_mark) - 1
        for joint in (", ", " ", "") if node.value else ("",):
            yield self.with_span(bracket, bracket, joint + new)


def line_after(node: yaml.Node) -> int:
    """Number of the first line behind a node's last character.

    A block collection's own end mark lies behind the comments and blank lines that follow it, so
    the end of its last member is taken instead.
    """
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        if isinstance(last, tuple):
            key, value = last
            last = key if value.tag == _NULL_TAG else value
        node = last
    end = node.end_mark
    # A block scalar ends at the start of the line behind it.
    return int(end.line) + (1 if end.column else 0)
