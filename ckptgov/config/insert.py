"""Where in a YAML text a new list entry goes, as text."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from ckptgov.config.document import compose
from ckptgov.config.page import Page, line_after


def insertions(text: str, key: str, entry: str, *, path: str) -> Iterator[str]:
    """Texts that may say what ``text`` says plus ``entry`` at the end of the list under ``key``.

    ``entry`` is one line in flow style. Likeliest first; the caller keeps the first that loads as
    it should (whether a flow list ends in a comma is not in the tree). ``text`` must load.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    for changed in _insertions(text.removeprefix(mark), key, entry, path):
        yield mark + changed


def _insertions(text: str, key: str, entry: str, path: str) -> Iterator[str]:
    page = Page(text)
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
        after = line_after(table)
        yield page.with_lines(after, f"{indent}{key}:", f"{indent}  - {entry}")


def _into(page: Page, key_node: yaml.Node, node: yaml.Node, entry: str) -> Iterator[str]:
    if isinstance(node, yaml.CollectionNode):
        if node.flow_style:
            yield from page.before_bracket(node, entry)
        else:
            indent = " " * node.start_mark.column
            yield page.with_lines(line_after(node), f"{indent}- {entry}")
        return
    start, end = page.offset(node.start_mark), page.offset(node.end_mark)
    if start < end:  # "null" or "~", spelt out
        yield page.with_span(start, end, f"[{entry}]")
        return
    indent = " " * (key_node.start_mark.column + 2)
    yield page.with_lines(line_after(key_node), f"{indent}- {entry}")
    yield page.with_span(start, end, f" [{entry}]")
