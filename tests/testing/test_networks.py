"""Nodes with networks of their own: what is cut off is not reached, and is again afterwards."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest

from ckptgov.testing._members import wait_until
from ckptgov.testing._networks import NodeNetworks

SEND = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"


@pytest.fixture
def networks() -> Iterator[NodeNetworks]:
    with NodeNetworks(2) as made:
        if made.why_shared is not None:
            pytest.skip(made.why_shared)
        yield made


def reaches(networks: NodeNetworks, number: int) -> bool:
    """Whether a process on a node gets through to this machine."""
    with socket.create_server((networks.host(number), 0)) as server:
        port = server.getsockname()[1]
        words = ["python3", "-c", SEND, networks.host(number), str(port)]
        done = subprocess.run(
            [*networks.entering(number), *words], capture_output=True, check=False
        )
        return done.returncode == 0


def test_a_node_reaches_this_machine_unless_it_is_cut_off(networks: NodeNetworks) -> None:
    assert reaches(networks, 0)
    networks.cut(0)
    assert not reaches(networks, 0)
    assert reaches(networks, 1)
    networks.plug_in(0)
    wait_until("the way to be found again", lambda: reaches(networks, 0))


def test_no_name_of_a_network_is_left(networks: NodeNetworks) -> None:
    networks.close()
    told = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    for number in range(2):
        assert networks.entering(number)[1].rpartition("/")[2] not in told.stdout


def test_mounts_of_this_machine_are_not_copied_for_a_node(networks: NodeNetworks) -> None:
    words = ["readlink", "/proc/self/ns/mnt"]
    here = subprocess.run(words, capture_output=True, check=True).stdout
    there = subprocess.run([*networks.entering(0), *words], capture_output=True, check=True).stdout
    assert there == here
