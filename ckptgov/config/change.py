"""How one value of a table in a YAML text is set or taken away, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from ckptgov.config.document import compose
from ckptgov.config.page import Page, line_after

Way = tuple[str | int, ...]
"""From the root to a table: keys of tables and places in lists."""

_COMMA_BEHIND = re.compile(r"\s*,[ \t]*")
_COMMA_BEFORE = re.compile(r",\s*\Z")


def with_value(text: str, way: Way, key: str, value: str, *, path: str) -> Iterator[str]:
    """Texts that may say what ``text`` says, with ``key`` of the table at ``way`` set.

    ``value`` is one line in flow style. Likeliest first, as for ``insert.insertions``; none where
    there is no such table.
    """
    mark, page, table = _open(text, way, path)
    if table is None:
        return
    for key_node, node in table.value:
        if key_node.value == key:
            yield mark + page.with_span(page.offset(node.start_mark), _end(page, node), value)
            return
    if table.flow_style:
        for changed in page.before_bracket(table, f"{key}: {value}"):
            yield mark + changed
        return
    indent = " " * table.start_mark.column
    yield mark + page.with_lines(line_after(table), f"{indent}{key}: {value}")


def without_value(text: str, way: Way, key: str, *, path: str) -> Iterator[str]:
    """Texts that may say what ``text`` says, without ``key`` in the table at ``way``.

    A comment on the same line goes with it.
    """
    mark, page, table = _open(text, way, path)
    if table is None:
        return
    for place, (key_node, node) in enumerate(table.value):
        if key_node.value != key:
            continue
        start, end = page.offset(key_node.start_mark), _end(page, node)
        if table.flow_style:
            if behind := _COMMA_BEHIND.match(page.text(end)):
                yield mark + page.with_span(start, end + behind.end(), "")
            if before := _COMMA_BEFORE.search(page.text(0, start)):
                yield mark + page.with_span(before.start(), end, "")
        elif not page.before_on_line(key_node.start_mark).strip():
            yield mark + page.without_lines(key_node.start_mark.line, line_after(node))
        elif place + 1 < len(table.value):  # the first of a list's entry stands behind a "-"
            following = page.offset(table.value[place + 1][0].start_mark)
            yield mark + page.with_span(start, following, "")


def _open(text: str, way: Way, path: str) -> tuple[str, Page, yaml.MappingNode | None]:
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    plain = text.removeprefix(mark)
    root = compose(plain, path)
    node = root.node if root is not None else None
    for part in way:
        node = _member(node, part)
    return mark, Page(plain), node if isinstance(node, yaml.MappingNode) else None


def _member(node: yaml.Node | None, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        member: yaml.Node = node.value[part]
        return member
    if isinstance(node, yaml.MappingNode):
        return next((each for key, each in node.value if key.value == part), None)
    return None


def _end(page: Page, node: yaml.Node) -> int:
    """Where a value's last character is; a block's own end lies behind comments that follow."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return page.offset(node.end_mark)
