"""A started command gets our signals once, and its end is ours."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ckptgov.errors import UsageError
from ckptgov.integrations.supervising import supervise, watch_for_start
from ckptgov.model.clock import SystemClock

COUNTS = """
import signal, sys
NAMES = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM", "SIGCONT", "SIGRTMIN")
awaited = {signal.Signals[name] for name in NAMES}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("ready", flush=True)
while True:
    number = signal.sigwait(awaited)
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(5)
"""
HAS_HELPER = """
import os, signal, sys
awaited = {signal.SIGUSR1, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
if os.fork() == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
    print("ready", os.getpid(), flush=True)
    while True:
        signal.pause()
while True:
    if signal.sigwait(awaited) == signal.SIGTERM:
        sys.exit(5)
    print("noted", flush=True)
"""


@pytest.fixture
def start(ckptgov, run: Path, python) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``exec`` over a few lines of Python and waits for their "ready"."""
    begun: list[subprocess.Popen[str]] = []

    def begin(code: str, *options: str) -> subprocess.Popen[str]:
        words = ("exec", run, "--restart-id", "r", *options, "--", *python(code))
        process = ckptgov.start(*words)
        begun.append(process)
        assert process.stdout is not None
        process.first = process.stdout.readline().split()
        assert process.first[:1] == ["ready"], process.communicate()
        return process

    yield begin
    for process in begun:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def gone(pid: int) -> None:
    """Wait until a process that is none of ours has ended."""
    try:
        psutil.Process(pid).wait(timeout=20)
    except psutil.NoSuchProcess:
        return


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGCONT"])
def test_a_signal_goes_through_and_ends_nothing(start, name: str) -> None:
    process = start(COUNTS)
    for _ in range(2):
        process.send_signal(signal.Signals[name])
        assert line(process) == name
    assert process.poll() is None


def test_a_command_that_ends_in_its_own_way_gives_its_own_code(start) -> None:
    process = start(COUNTS)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert (out, process.returncode) == ("SIGTERM\n", 5)


def test_a_signal_to_the_whole_group_arrives_once(ckptgov, run: Path, python, environ) -> None:
    words = ("-m", "ckptgov_cli.main", "exec", str(run), "--restart-id", "r", "--")
    process = subprocess.Popen(
        [sys.executable, *words, *python(COUNTS)],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert line(process) == "ready"
    os.killpg(process.pid, signal.SIGRTMIN)  # of a kind that is counted while it waits
    assert line(process) == "SIGRTMIN"
    process.send_signal(signal.SIGCONT)  # goes through behind whatever still went through
    assert line(process) == "SIGCONT"
    os.killpg(process.pid, signal.SIGTERM)
    out, _ = process.communicate()
    assert (out, process.returncode) == ("SIGTERM\n", 5)


def test_a_command_that_dies_of_a_signal_gives_128_and_its_number(ckptgov, run, python) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert ckptgov.exec(run, "--", *python(code)).returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("code", [0, 1, 9, 255])
def test_the_exit_code_comes_back(ckptgov, run: Path, python, code: int) -> None:
    assert ckptgov.exec(run, "--", *python(f"raise SystemExit({code})")).returncode == code


def test_a_helper_of_the_command_is_left_alone_by_its_signals(start) -> None:
    process = start(HAS_HELPER)
    process.send_signal(signal.SIGUSR1)  # the helper would die of it
    assert line(process) == "noted"
    assert psutil.pid_exists(int(process.first[1]))


def test_what_a_stopped_command_leaves_behind_is_stopped_too(start) -> None:
    process = start(HAS_HELPER)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 5
    gone(int(process.first[1]))


def test_killed_itself_it_takes_the_command_and_its_helpers_along(start) -> None:
    process = start(HAS_HELPER)
    (helper,) = process.first[1:]
    command = psutil.Process(int(helper)).ppid()
    process.kill()
    for pid in (command, int(helper)):
        gone(pid)


def test_a_hang_up_that_was_ignored_stays_ignored(ckptgov, run: Path, python) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        answer = ckptgov.exec(run, "--", *python(code))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert answer.stdout == "True\n"


def test_a_broken_pipe_ends_the_command_as_it_would_without_us(ckptgov, run, python) -> None:
    code = "import signal; print(int(signal.getsignal(signal.SIGPIPE)))"
    assert ckptgov.exec(run, "--", "/bin/sh", "-c", "kill -s PIPE $$").returncode == 128 + 13
    assert ckptgov.exec(run, "--", *python(code)).returncode == 0


def test_descriptors_of_the_launcher_stay_open(environ, run: Path, python) -> None:
    reading, writing = os.pipe()
    words = ("-m", "ckptgov_cli.main", "exec", str(run), "--restart-id", "r", "--")
    subprocess.run(
        [sys.executable, *words, *python(f"import os; os.write({writing}, b'through')")],
        env=environ,
        pass_fds=(writing,),
        check=True,
        capture_output=True,
    )
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "through"


def test_a_command_that_is_not_there_is_2(ckptgov, run: Path) -> None:
    answer = ckptgov.exec(run, "--", "no-such-command-anywhere")
    assert answer.returncode == 2
    assert "cannot be started" in answer.stderr


def test_a_command_with_a_nul_is_refused() -> None:
    with pytest.raises(UsageError):
        supervise(["a\0b"], {}, clock=SystemClock(), watch=lambda running: None, owns_group=True)


def test_ctrl_c_on_a_terminal_arrives_once(environ, run: Path, python) -> None:
    """The terminal signals its whole foreground group: ours and the command's."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.clear()
        os.environ.update(environ)
        words = ("-m", "ckptgov_cli.main", "exec", str(run), "--restart-id", "r", "--")
        os.execv(sys.executable, [sys.executable, *words, *python(COUNTS)])
    try:
        _until(terminal, b"ready")
        os.write(terminal, b"\x03")
        assert _until(terminal, b"SIGINT").count(b"SIGINT") == 1
        # What the terminal sends to all is not passed on; sent to us alone, it stays with us.
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGUSR1)
        assert b"SIGINT" not in _until(terminal, b"SIGUSR1")
        os.kill(pid, signal.SIGTERM)
        _until(terminal, b"SIGTERM")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    finally:
        os.close(terminal)


def _until(terminal: int, words: bytes) -> bytes:
    told = b""
    give_up = time.monotonic() + 60
    while words not in told:
        assert time.monotonic() < give_up, told
        told += os.read(terminal, 4096)
    return told


class Told:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_a_ready_file_tells_of_the_start_once(tmp_path: Path) -> None:
    told = Told()
    watch = watch_for_start(ready_file=str(tmp_path / "ready"), started_after_s=None, tell=told)
    assert watch(0.0) is not None
    (tmp_path / "ready").touch()
    assert watch(1.0) is None
    assert told.count == 1


def test_having_lived_long_enough_tells_of_the_start() -> None:
    told = Told()
    watch = watch_for_start(ready_file=None, started_after_s=300.0, tell=told)
    assert watch(100.0) == 200.0
    assert told.count == 0
    assert watch(300.0) is None
    assert told.count == 1


def test_without_a_sign_nothing_is_watched_for() -> None:
    watch = watch_for_start(ready_file=None, started_after_s=None, tell=Told())
    assert watch(0.0) is None
