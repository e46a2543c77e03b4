"""An agent from its start to its end: the steps in turn, until it is told to stop.

Looking is asked for by the kernel (inotify) or by the clock. Looking, what the service asks for,
moving, and beats with leases have a thread each, so that none keeps another waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from ckptgov import __version__
from ckptgov.errors import CkptgovError, CouldNotLook, Interrupted, StorageError
from ckptgov.model.clock import Clock
from ckptgov.model.verbs import end_if
from ckptgov.ops.flows_remote import RemoteDesk
from ckptgov.service.agent import Agent, AgentIdentity
from ckptgov.service.agent_cluster import HttpCluster
from ckptgov.service.serving import Serving
from ckptgov.storage.watching import Watching

T = TypeVar("T")

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Pace(Struct, frozen=True, kw_only=True):
    """Seconds between things; ``settle_s`` from a change to the look at it."""

    beat_s: float = 5.0
    work_s: float = 2.0
    rescan_s: float = 60.0
    settle_s: float = 2.0


class EndingClock:
    """A clock whose waits end with Interrupted once it is told to: what waits for its turn to
    move bytes must not keep the agent from ending."""

    def __init__(self, clock: Clock, stop: Callable[[], bool]) -> None:
        self._clock = clock
        self._stop = stop

    def now_ns(self) -> int:
        """As the clock beneath."""
        return self._clock.now_ns()

    def monotonic(self) -> float:
        """As the clock beneath."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait; raises Interrupted instead where it was told to end."""
        end_if(self._stop)
        self._clock.sleep(seconds)


def ask_for_grants(
    serving: Serving, cluster: HttpCluster, node: str, *, stop: Callable[[], bool]
) -> None:
    """From now on what this process moves is granted by the service."""
    serving.desk.close()
    serving.desk = RemoteDesk(
        cluster.post,
        serving.settings(),
        EndingClock(serving.clock, stop),
        node=node,
        talk=serving.talk,
    )


def boot_id() -> str:
    """The kernel's id of this boot.

    Raises:
        StorageError: the kernel does not tell.
    """
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError as error:
        raise StorageError(f"{BOOT_ID}: {error.strerror}") from error


def identity_of(node: str, *, peer_url: str | None = None) -> AgentIdentity:
    """What the agent of this process says of itself."""
    return AgentIdentity(node=node, boot=boot_id(), version=__version__, peer_url=peer_url)


def one_turn(agent: Agent, *, talk: Callable[[str], None]) -> bool:
    """Everything once: look, tell, bring parts, do what is asked, flush, tell again; whether the
    service answered throughout.

    Raises:
        Interrupted: told to stop.
    """
    answered = _answered(agent.beat, talk)
    agent.look()
    answered &= _answered(agent.tell, talk)
    answered &= _answered(agent.deliver_parts, talk)
    while answered and agent.work():
        pass
    agent.flush()
    return _answered(agent.tell, talk) and answered


def _answered(step: Callable[[], object], talk: Callable[[str], None]) -> bool:
    """Whether a step that needs the service was done; it is done the next time otherwise."""
    try:
        step()
    except CouldNotLook as error:
        talk(f"the service does not answer: {error.message}")
        return False
    return True


class _Line:
    """Whether the service is heard; what is said of it is said once."""

    def __init__(self, talk: Callable[[str], None]) -> None:
        self._talk = talk
        self._lock = threading.Lock()
        self._is_silent = False

    def over(self, step: Callable[[], T], otherwise: T) -> T:
        """What a step gives that needs the service; ``otherwise`` while it does not answer."""
        try:
            found = step()
        except CouldNotLook as error:
            self._say(True, f"the service does not answer, working on: {error.message}")
            return otherwise
        except Interrupted:
            raise
        except CkptgovError as error:
            self._talk(error.message)
            return otherwise
        self._say(False, "the service answers again")
        return found

    def _say(self, is_silent: bool, text: str) -> None:
        with self._lock:
            is_news, self._is_silent = self._is_silent is not is_silent, is_silent
        if is_news:
            self._talk(text)


class _Running:
    """The agent's loops: one looks and tells, one does what is asked, one moves."""

    def __init__(
        self,
        agent: Agent,
        watching: Watching,
        pace: Pace,
        clock: Clock,
        stop: threading.Event,
        talk: Callable[[str], None],
    ) -> None:
        self._agent = agent
        self._watching = watching
        self._pace = pace
        self._clock = clock
        self._stop = stop
        self._talk = talk
        self._line = _Line(talk)
        self._next_look = clock.monotonic()
        self._may_move = threading.Event()
        self._broken: list[BaseException] = []

    def until_stopped(self) -> None:
        """Run all loops until the end; what broke one of them is raised."""
        loops = (self._beat, self._work, self._move, self._wake)
        threads = [
            threading.Thread(target=self._guarded, args=(loop,), name=loop.__name__, daemon=True)
            for loop in loops
        ]
        for thread in threads:
            thread.start()
        self._guarded(self._look)
        for thread in threads:
            thread.join()
        if self._broken:
            raise self._broken[0]

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Interrupted:
            pass
        except BaseException as error:
            self._broken.append(error)
        finally:
            self._stop.set()
            self._may_move.set()

    def _look(self) -> None:
        while not self._stop.is_set():
            now = self._clock.monotonic()
            if now >= self._next_look:
                self._next_look = now + self._pace.rescan_s
                self._look_once()
            if self._watching.wait(max(0.0, self._next_look - self._clock.monotonic())):
                soon = self._clock.monotonic() + self._pace.settle_s
                self._next_look = min(self._next_look, soon)

    def _look_once(self) -> None:
        try:
            self._agent.look()
            self._watching.watch(self._agent.watched())
        except Interrupted:
            raise
        except CkptgovError as error:
            self._talk(error.message)
        self._line.over(self._agent.tell, None)
        self._line.over(self._agent.deliver_parts, 0)
        self._may_move.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            if not self._line.over(self._agent.work, 0):
                self._stop.wait(self._pace.work_s)
                continue
            self._line.over(self._agent.tell, None)
            self._next_look = self._clock.monotonic()  # what was published may now be moved
            self._watching.wake()

    def _move(self) -> None:
        while not self._stop.is_set():
            self._may_move.wait()
            self._may_move.clear()
            if self._stop.is_set():
                return
            try:
                self._agent.flush()
            except Interrupted:
                raise
            except CkptgovError as error:
                self._talk(error.message)
            self._line.over(self._agent.tell, None)

    def _beat(self) -> None:
        while not self._stop.is_set():
            with suppress(CkptgovError):  # silence is what tells the service
                self._agent.beat()
            self._agent.renew()
            self._stop.wait(self._pace.beat_s)

    def _wake(self) -> None:
        self._stop.wait()
        self._watching.wake()


def run_agent(
    agent: Agent,
    *,
    clock: Clock,
    stop: threading.Event,
    talk: Callable[[str], None],
    pace: Pace | None = None,
) -> None:
    """Work until ``stop`` is set; what is under way then is given back or goes on the next time."""
    pace = pace or Pace()
    with Watching() as watching:
        if watching.is_blind:
            talk(f"the kernel gives no watches: looking every {pace.rescan_s:.0f} s instead")
        _Running(agent, watching, pace, clock, stop, talk).until_stopped()
    with suppress(CkptgovError):
        agent.tell()
