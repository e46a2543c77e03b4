"""Networks of their own for the nodes of a cluster on one machine: namespaces, which root makes.

Only the network is another one: a process enters it with ``nsenter``, not with ``ip netns exec``,
whose own mount namespace would keep every mount of this machine alive for as long as it runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

from ckptgov.model.closing import Closing
from ckptgov.testing._mounting import FixtureFailed

_NET, _NETS = (198 << 24) | (18 << 16), 1 << 15
"""198.18.0.0/15 is for benchmarks (RFC 2544) and routed nowhere: 32,768 networks of 4 addresses."""
_MOST_NODES = 8
LOOPBACK = "127.0.0.1"


class NodeNetworks(Closing):
    """A network for each node, numbered from 0, where they can be made; else all share loopback.

    ``why_shared``: why they do, None where each has its own.
    """

    def __init__(self, nodes: int) -> None:
        if nodes > _MOST_NODES:
            raise ValueError(f"at most {_MOST_NODES} nodes")
        self._made: list[int] = []
        self.why_shared = _why_not()
        if self.why_shared is None:
            try:
                for number in range(nodes):
                    self._make(number)
            except FixtureFailed as error:
                self.close()
                self.why_shared = str(error)

    def entering(self, number: int) -> list[str]:
        """What to put before a command so that it runs on a node."""
        return [] if self.why_shared else ["nsenter", f"--net=/run/netns/{_name(number)}"]

    def address(self, number: int) -> str:
        """Where this machine reaches a node."""
        return LOOPBACK if self.why_shared else _address(number, 2)

    def host(self, number: int) -> str:
        """Where a node reaches this machine."""
        return LOOPBACK if self.why_shared else _address(number, 1)

    def cut(self, number: int) -> None:
        """Unplug a node: what is sent to it or by it is lost without a word.

        Raises:
            FixtureFailed: it shares its network with this machine.
        """
        self._switch(number, "down")

    def plug_in(self, number: int) -> None:
        """Plug it in again; raises as ``cut`` does."""
        self._switch(number, "up")

    def close(self) -> None:
        while self._made:
            number = self._made.pop()
            # The cable by name, which is gone at once: with its namespace it goes some time later.
            for step in (f"link delete {_plug(number)}", f"netns delete {_name(number)}"):
                with suppress(FixtureFailed):
                    _ip(step)

    def _switch(self, number: int, state: str) -> None:
        if self.why_shared is not None:
            raise FixtureFailed(f"no network of its own: {self.why_shared}")
        _ip(f"link set {_plug(number)} {state}")

    def _make(self, number: int) -> None:
        name, plug = _name(number), _plug(number)
        _ip(f"netns add {name}")
        self._made.append(number)
        for step in (
            f"link add {plug} type veth peer name inside netns {name}",
            f"addr add {_address(number, 1)}/30 dev {plug}",
            f"link set {plug} up",
            f"-n {name} addr add {_address(number, 2)}/30 dev inside",
            f"-n {name} link set inside up",
            f"-n {name} link set lo up",
        ):
            _ip(step)


def _why_not() -> str | None:
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed (Debian: iproute2, util-linux)"
    return None


def _ip(words: str) -> None:
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FixtureFailed(f"ip {words}: {done.stderr.strip()}")


def _name(number: int) -> str:
    return f"ckptgov-{os.getpid()}-{number}"


def _plug(number: int) -> str:
    """The end of a node's cable in this machine; such names have at most 15 characters."""
    return f"cg{os.getpid()}n{number}"


def _address(number: int, last: int) -> str:
    at = _NET + 4 * ((os.getpid() * _MOST_NODES + number) % _NETS) + last
    return ".".join(str(at >> shift & 255) for shift in (24, 16, 8, 0))
