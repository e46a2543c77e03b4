"""What several commands share: options, the table of exit codes, the governor they call."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar, overload

import typer

from ckptgov.errors import UsageError
from ckptgov_cli import output
from ckptgov_cli.exits import EXIT_CODES as _CODES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptgov.governor import Governor

_T = TypeVar("_T")

EXIT_CODES = "\b\n" + _CODES
"""The mark keeps the table from being re-wrapped."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, errors included.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")]
Node = Annotated[
    str | None, typer.Option("--node", metavar="N", help="The node whose own disk is meant.")
]
Target = Annotated[
    str, typer.Argument(metavar="RUN|DIR|URL", help="A run's name, a directory or a URL.")
]


@contextmanager
def opened_governor(*, word: str = "read") -> Iterator[Governor]:
    """The governor of this command; where a person watches, bytes are counted as ``word``."""
    from ckptgov.governor import open_governor

    if not sys.stderr.isatty():
        with open_governor(talk=output.talk) as governor:
            yield governor
        return
    from ckptgov_cli.progress import ByteCounter

    counter = ByteCounter(word)
    try:
        with open_governor(talk=output.talk, progress=counter) as governor:
            yield governor
    finally:
        counter.close()


@overload
def parsed(option: str, text: str, parse: Callable[[str], _T], *, shown: bool = True) -> _T: ...


@overload
def parsed(
    option: str, text: str | None, parse: Callable[[str], _T], *, shown: bool = True
) -> _T | None: ...


def parsed(
    option: str, text: str | None, parse: Callable[[str], _T], *, shown: bool = True
) -> _T | None:
    """An option's value; what is wrong with it is told with the option's name."""
    if text is None:
        return None
    try:
        return parse(text)
    except UsageError as error:
        told = f"{option} {text}" if shown else option
        raise UsageError(f"{told}: {error.message}", hint=error.hint) from error
