"""What several commands share: options, the table of exit codes, the governor they call."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar, overload

import typer

from ckptgov.errors import UsageError
from ckptgov_cli import output
from ckptgov_cli.exits import EXIT_CODES as _CODES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptgov.client.verbs import Client
    from ckptgov.governor import Governor
    from ckptgov_cli.opening import Verbs

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


NoWait = Annotated[
    bool,
    typer.Option("--no-wait", help="Of a service: only begin it, and print the task."),
]


@contextmanager
def opened_governor(*, word: str = "read") -> Iterator[Verbs]:
    """Who answers this command; where a person watches, bytes are counted as ``word``."""
    from ckptgov_cli.opening import open_verbs

    with (
        _counting(word) as progress,
        open_verbs(os.environ, talk=output.talk, progress=progress) as governor,
    ):
        yield governor


@contextmanager
def opened_here(what: str) -> Iterator[Governor]:
    """The governor of this process, for what only the machine that holds the state can do.

    Raises:
        UsageError: a service is named: it is done where that runs.
    """
    from ckptgov.client.address import URL_VARIABLE, is_named

    if is_named(os.environ):
        raise UsageError(
            f"{what}: cannot be asked of a service",
            hint=f"run it where the service runs, with {URL_VARIABLE} unset",
        )
    from ckptgov.governor import open_governor

    with (
        _counting("read") as progress,
        open_governor(talk=output.talk, progress=progress) as governor,
    ):
        yield governor


@contextmanager
def opened_service(what: str) -> Iterator[Client]:
    """The service that the environment names, for what only a service can do.

    Raises:
        UsageError: none is named.
    """
    from ckptgov.client.address import URL_VARIABLE, is_named

    if not is_named(os.environ):
        raise UsageError(
            f"{what}: is asked of a service, and none is named",
            hint=f"set {URL_VARIABLE} to where 'ckptgov serve' listens",
        )
    from ckptgov.client.verbs import open_client

    with open_client(os.environ, talk=output.talk) as client:
        yield client


@contextmanager
def _counting(word: str) -> Iterator[Callable[[int], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from ckptgov_cli.progress import ByteCounter

    counter = ByteCounter(word)
    try:
        yield counter
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
