"""Entry point: ``latest`` takes the short way, everything else goes through Typer."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from ckptgov.errors import CkptgovError
from ckptgov_cli import output


class _Terminated(BaseException):
    """SIGTERM arrived: unwind, so that temporary files go, and exit 143."""


def _terminate(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    raise _Terminated


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises on purpose."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _catch_sigterm()
    try:
        if arguments and arguments[0] == "latest":
            if argv is None:  # in a process of our own, short and full of imports
                gc.disable()
            from ckptgov_cli.latest import run

            return run(arguments[1:])
        from ckptgov_cli.app import run_app

        return run_app(arguments)
    except KeyboardInterrupt:
        return _stopped(arguments, "interrupted", 130)
    except _Terminated:
        return _stopped(arguments, "terminated", 143)
    except BrokenPipeError:
        return _no_reader()
    except CkptgovError as error:
        return _failed(arguments, error)
    except Exception as error:  # the last edge: one document or one line, never a bare traceback
        return _unexpected(arguments, error)


def _catch_sigterm() -> None:
    try:
        signal.signal(signal.SIGTERM, _terminate)
    except ValueError:
        return  # not the main thread: whoever runs us there handles signals


def _stopped(arguments: Sequence[str], word: str, code: int) -> int:
    if "--json" in arguments:
        output.emit({"error": {"kind": word, "exit_code": code, "message": word, "hint": None}})
    else:
        output.talk(f"ckptgov: {word}")
    return code


def _failed(arguments: Sequence[str], error: CkptgovError) -> int:
    if "--json" in arguments:
        from ckptgov.wire.documents import error_document

        output.emit(error_document(error))
    else:
        output.complain(error)
    return error.exit_code


def _unexpected(arguments: Sequence[str], error: Exception) -> int:
    import os
    import traceback

    if "--json" in arguments:
        message = f"unexpected {type(error).__name__}: {error}"
        hint = "run with CKPTGOV_TRACEBACK=1 and report what it prints"
        output.emit(
            {"error": {"kind": "unexpected", "exit_code": 1, "message": message, "hint": hint}}
        )
    else:
        output.talk(f"ckptgov: unexpected {type(error).__name__}: {error}")
        output.talk("  hint: run with CKPTGOV_TRACEBACK=1 and report what it prints")
    if os.environ.get("CKPTGOV_TRACEBACK"):
        output.talk("".join(traceback.format_exception(error)).rstrip())
    return 1


def _no_reader() -> int:
    """Whoever read our output went away; there is nobody left to tell."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


if __name__ == "__main__":
    sys.exit(main())
