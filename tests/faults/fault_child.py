"""A process with ckptgov imported that forks one child per trial: starting anew costs a second.

Run as a script with the number of a connected socket. Each line in is a request, and it answers
with lines of its own: the child's process id, then how it ended and what its commands printed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import socket
import sys
import tempfile
from typing import Any

_PR_SET_PTRACER = 0x59616D61
_PRELOADED = (
    "ckptgov_cli.app",
    "ckptgov_cli.latest",
    "ckptgov_cli.moving",
    "ckptgov_cli.render",
    "ckptgov_cli.render_moving",
    "ckptgov_cli.render_usage",
    "ckptgov.governor",
    "ckptgov.manifest.digest",
    "ckptgov.ops.commit",
    "ckptgov.ops.doctor",
    "ckptgov.ops.flush",
    "ckptgov.ops.history",
    "ckptgov.ops.rebuild",
    "ckptgov.ops.reconcile",
    "ckptgov.ops.restore",
    "ckptgov.ops.runs",
    "ckptgov.ops.scan",
    "ckptgov.ops.verify",
    "ckptgov.storage.s3",
    "ckptgov.work.restart",
)


def serve(control: socket.socket) -> None:
    """Answer requests until the other side is gone."""
    with control, control.makefile("r", encoding="ascii") as lines:
        for text in iter(lines.readline, ""):
            request: dict[str, Any] = json.loads(text)
            gate_out, gate_in = os.pipe()
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                control.close()
                ours.close()
                os.close(gate_in)
                _be_the_child(request, gate_out, theirs)
            os.close(gate_out)
            theirs.close()
            _send(control, {"pid": pid})
            if request["held"]:
                lines.readline()
            os.close(gate_in)
            with ours:
                answers = ours.makefile("r", encoding="ascii").read().splitlines()
            _, status = os.waitpid(pid, 0)
            _send(control, {"status": status, "answers": [json.loads(one) for one in answers]})


def _send(to: socket.socket, message: dict[str, Any]) -> None:
    # Not write(): that is a call which trials count and let fail.
    to.sendall(json.dumps(message).encode("ascii") + b"\n")


def _be_the_child(request: dict[str, Any], gate: int, answers: socket.socket) -> None:
    """Run the commands and end; never returns into the loop that forked."""
    code = 1
    try:
        # Where only ancestors may trace (Yama), let whoever wants.
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        os.environ["CKPTGOV_HOME"] = request["home"]
        os.chdir(os.path.dirname(__file__))  # where no directory is called like a run
        if request["defect"] is not None:
            file, name, arguments = request["defect"]
            runpy.run_path(file)[name](*arguments)
        os.read(gate, 1)
        for words in request["commands"]:
            _send(answers, _run(words))
        code = 0
    finally:
        os._exit(code)


def _run(words: list[str]) -> dict[str, Any]:
    from ckptgov_cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([os.fsdecode(os.fsencode(word)) for word in words])
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return {"code": code, "out": texts[0], "err": texts[1]}


def _warm() -> None:
    """Do once, before anyone forks, what every command would do anew: imports, reading types."""
    with tempfile.TemporaryDirectory(prefix="ckptgov-warm-") as base:
        os.environ["CKPTGOV_HOME"] = f"{base}/home"
        for words in (["scan", base], ["verify", base], ["catalog", "rebuild"], ["doctor"]):
            _run(words)
    gc.freeze()


if __name__ == "__main__":
    for module in _PRELOADED:
        with contextlib.suppress(ImportError):  # the command that needs it will say so
            importlib.import_module(module)
    _warm()
    serve(socket.socket(fileno=int(sys.argv[1])))
