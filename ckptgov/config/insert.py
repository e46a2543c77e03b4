"""Where in a YAML text a new list entry goes, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from ckptgov.config.document import compose

_NULL_TAG = "tag:yaml.org,2002:null"
# YAML 1.1's line breaks, which PyYAML's line numbers count.
_LINE = re.compile("[^\r\n\x85\u2028\u2029]*(?:\r\n|[\r\n\x85\u2028\u2029]|\\Z)")


def insertions(text: str, key: str, entry: str, *, path: str) -> Iterator[str]:
    """Texts that may say what ``text`` says plus ``entry`` at the end of the list under ``key``.

    ``entry`` is one line in flow style. Likeliest first; the caller keeps the first that loads as
    it should (whether a flow list ends in a comma is not in the tree). ``text`` must load.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    for changed in _insertions(text.removeprefix(mark), key, entry, path):
        yield mark + changed


def _insertions(text: str, key: str, entry: str, path: str) -> Iterator[str]:
    page = _Page(text)
    root = compose(text, path)
    if root is None:
        yield page.with_lines(page.count, f"{key}:", f"  - {entry}")
        return
    table = root.node
    assert isinstance(table, yaml.MappingNode)  # the caller's text loads
    for key_node, node in table.value:
        if key_node.value == key:
            yield from _into(page, key_node, node, entry)
            return
    if table.flow_style:
        yield from page.before_bracket(table, f"{key}: [{entry}]")
    else:
        indent = " " * table.start_mark.column
        after = _line_after(table)
        yield page.with_lines(after, f"{indent}{key}:", f"{indent}  - {entry}")


def _into(page: _Page, key_node: yaml.Node, node: yaml.Node, entry: str) -> Iterator[str]:
    if isinstance(node, yaml.CollectionNode):
        if node.flow_style:
            yield from page.before_bracket(node, entry)
        else:
            indent = " " * node.start_mark.column
            yield page.with_lines(_line_after(node), f"{indent}- {entry}")
        return
    start, end = page.offset(node.start_mark), page.offset(node.end_mark)
    if start < end:  # "null" or "~", spelt out
        yield page.with_span(start, end, f"[{entry}]")
        return
    indent = " " * (key_node.start_mark.column + 2)
    yield page.with_lines(_line_after(key_node), f"{indent}- {entry}")
    yield page.with_span(start, end, f" [{entry}]")


class _Page:
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

    def with_span(self, start: int, end: int, new: str) -> str:
        """The text with ``new`` in the place of start..end."""
        return self._text[:start] + new + self._text[end:]

    def before_bracket(self, node: yaml.CollectionNode, new: str) -> Iterator[str]:
        """The text with ``new`` as the last member of a flow list or table."""
        bracket = self.offset(node.end_mark) - 1
        for joint in (", ", " ", "") if node.value else ("",):
            yield self.with_span(bracket, bracket, joint + new)


def _line_after(node: yaml.Node) -> int:
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
