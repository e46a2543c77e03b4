"""A started command: signals go through to it, and its end comes back.

It is meant to be as if the command stood where we stand. Without a terminal it leads a process
group of its own, so that a signal sent to our whole group reaches it once, through us, as one sent
to us alone does. It goes to the command only, not to its helpers: a data loader's process would
die of the SIGUSR1 that its trainer waits for. When the command ended because it was told to, what
is left of its group is told the same.

On a terminal it stays in our group: the terminal itself signals the whole group (Ctrl-C, Ctrl-Z,
hang-up), and a command in another group could not read from it.

Killed ourselves (SIGKILL cannot be passed on), the command must not train on unseen beside its
successor: a guard, a shell waiting for us to go away, kills its group then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from msgspec import Struct

from ckptgov.errors import UsageError
from ckptgov.model.clock import Clock

READY_EVERY_S = 0.5
LEFT_BEHIND_S = 10.0
"""How long what is left of a stopped command's group may take to end."""

_NEVER_OURS = frozenset(
    {
        *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGTTIN),
        *(signal.SIGTTOU, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
        *(signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS, signal.SIGXFSZ, signal.SIGXCPU),
        *(signal.SIGPROF, signal.SIGALRM, signal.SIGVTALRM),
    }
)
"""Not catchable, about this very process, or (SIGCHLD) watched otherwise."""

_OF_TERMINALS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
"""What a terminal sends to the whole group: survived, and not sent a second time."""
_LEFT_TO_TERMINALS = frozenset({signal.SIGTSTP, signal.SIGWINCH, signal.SIGCONT})
"""What a terminal sends, and has its effect on us, too: Ctrl-Z stops both."""
_STOPS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_GUARD = 'trap "" HUP INT TERM QUIT TSTP USR1 USR2; read -r word || kill -s KILL -- "$1"'


class Ended(Struct, frozen=True, kw_only=True):
    """How a command ended. ``code``: its own, or 128 + the ``signal`` it died of."""

    code: int
    signal: int | None = None
    lived_s: float
    was_told_to_stop: bool = False


Watch = Callable[[float], float | None]
"""Given how long the command has lived, says after how many seconds it wants to be called again."""


def _nothing(ended: Ended) -> None:
    del ended


def supervise(
    words: Sequence[str],
    environ: Mapping[str, str],
    *,
    clock: Clock,
    watch: Watch,
    at_end: Callable[[Ended], None] = _nothing,
    owns_group: bool | None = None,
) -> Ended:
    """Start the command, pass signals on, and wait for its end.

    For the main thread only. ``at_end`` is called while signals still cannot end this process.
    ``owns_group`` None: where no terminal is in front.

    Raises:
        UsageError: it cannot be started: not there, or not executable.
    """
    owns = not _is_on_terminal() if owns_group is None else owns_group
    with _caught(on_terminal=not owns) as signals:
        began = clock.monotonic()
        pid = _spawn(words, environ, owns_group=owns)
        with _guarded(-pid if owns else pid):
            status, stops = _until_end(pid, signals, owns, clock, began, watch)
            lived_s = clock.monotonic() - began
            if owns and stops:
                _end_left_behind(pid, stops[-1], clock)
        code = os.waitstatus_to_exitcode(status)
        ended = Ended(
            code=code if code >= 0 else 128 - code,
            signal=-code if code < 0 else None,
            lived_s=lived_s,
            was_told_to_stop=bool(stops),
        )
        at_end(ended)
    return ended


def _is_on_terminal() -> bool:
    """Whether a terminal is in front of us and would signal our group."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


class _Signals:
    """Signals that arrived, in order, and a descriptor that becomes readable with them."""

    def __init__(self, wake: int, *, on_terminal: bool) -> None:
        self.wake = wake
        self.on_terminal = on_terminal
        self._arrived: list[int] = []

    def note(self, signum: int, frame: FrameType | None) -> None:
        del frame
        self._arrived.append(signum)

    def wait(self, timeout_s: float | None) -> None:
        select.select([self.wake], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake, 512):
                pass

    def take(self) -> list[int]:
        """What arrived since the last time, the ends of children aside."""
        arrived, self._arrived = self._arrived, []
        return [signum for signum in arrived if signum != signal.SIGCHLD]


@contextmanager
def _caught(*, on_terminal: bool) -> Iterator[_Signals]:
    """Note every signal that can be passed on; what was ignored stays ignored (``nohup``)."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signals = _Signals(reading, on_terminal=on_terminal)
    wanted = set(signal.valid_signals()) - _NEVER_OURS
    if on_terminal:
        wanted -= _LEFT_TO_TERMINALS
    ours = {one for one in wanted if signal.getsignal(one) not in (signal.SIG_IGN, None)}
    before = {one: signal.signal(one, signals.note) for one in sorted(ours | {signal.SIGCHLD})}
    woken_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(woken_before)
        for signum, disposition in before.items():
            signal.signal(signum, disposition)
        os.close(reading)
        os.close(writing)


def _spawn(words: Sequence[str], environ: Mapping[str, str], *, owns_group: bool) -> int:
    """Descriptors a launcher opened for its command stay open in it."""
    argv = list(words)
    try:
        if owns_group:
            return os.posix_spawnp(
                argv[0], argv, environ, setpgroup=0, setsigdef=_IGNORED_BY_PYTHON
            )
        return os.posix_spawnp(argv[0], argv, environ, setsigdef=_IGNORED_BY_PYTHON)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{argv[0]}: cannot be started: {reason}") from error


@contextmanager
def _guarded(target: int) -> Iterator[None]:
    """Have the command (its group, if below 0) killed should this process vanish."""
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "ckptgov-guard", str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    assert guard.stdin is not None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            guard.stdin.write(b"ended\n")
            guard.stdin.close()
        guard.wait()


def _until_end(
    pid: int, signals: _Signals, owns: bool, clock: Clock, began: float, watch: Watch
) -> tuple[int, list[int]]:
    stops: list[int] = []
    due: float | None = 0.0
    while True:
        for signum in signals.take():
            if signum in _STOPS:
                stops.append(signum)
            if owns or signum not in _OF_TERMINALS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status, stops
        lived_s = clock.monotonic() - began
        if due is not None and lived_s >= due:
            pause_s = watch(lived_s)
            due = None if pause_s is None else lived_s + pause_s
        signals.wait(None if due is None else max(0.0, due - lived_s))


def _end_left_behind(pid: int, signum: int, clock: Clock) -> None:
    """Tell what is left of the group the same, and give it a moment."""
    give_up = clock.monotonic() + LEFT_BEHIND_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)
        while clock.monotonic() < give_up:
            clock.sleep(0.05)
            os.killpg(pid, 0)


def watch_for_start(
    *, ready_file: str | None, started_after_s: float | None, tell: Callable[[], None]
) -> Watch:
    """Tells once that the command has started: its file appeared, or it lived long enough."""

    def watch(lived_s: float) -> float | None:
        is_ready = ready_file is not None and os.path.lexists(ready_file)
        left_s = None if started_after_s is None else started_after_s - lived_s
        if is_ready or (left_s is not None and left_s <= 0):
            tell()
            return None
        if ready_file is None:
            return left_s
        return READY_EVERY_S if left_s is None else min(READY_EVERY_S, left_s)

    return watch
