"""A cluster of real processes on one machine, any of which may be killed, stopped or cut off.

PostgreSQL, SeaweedFS as the object tier ``s3``, JuiceFS as the shared tier ``lustre``, replicas of
the service, and an agent for each node with its own ``nvme`` and, where root may make one, its own
network.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ckptgov.catalog.catalog import Catalog
from ckptgov.model.clock import SystemClock
from ckptgov.model.closing import Closing
from ckptgov.testing import juicefs, postgres, seaweedfs
from ckptgov.testing._members import Answer, Member, wait_until
from ckptgov.testing._mounting import FixtureFailed, free_ports, tail
from ckptgov.testing._networks import LOOPBACK, NodeNetworks
from ckptgov.testing._ranks import digest_of, in_order, move, ranks_part

RANKS_PER_NODE = 2
_SECRET = "shared-by-the-agents-of-this-cluster"

_T = TypeVar("_T")
_U = TypeVar("_U")


def reason_to_skip() -> str | None:
    """Why a cluster cannot run here; None where it can."""
    reasons = (each.reason_to_skip() for each in (postgres, juicefs, seaweedfs))
    return next((reason for reason in reasons if reason is not None), None)


class ProcessCluster(Closing):
    """The processes, and commands as a person would give them. ``say`` hears what is being done.

    ``write_budget``: of the shared tier. ``settings``: more lines of everyone's ``ckptgov.yaml``.
    """

    def __init__(
        self,
        scratch: Path,
        *,
        nodes: int = 3,
        replicas: int = 2,
        write_budget: str,
        settings: str,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.scratch = scratch
        self.nodes = tuple(f"node{number}" for number in range(nodes))
        self.nvme = {node: scratch / "nvme" / node for node in self.nodes}
        self._budget, self._settings, self._say = write_budget, settings, say
        self._stack = contextlib.ExitStack()
        self._logs = scratch / "logs"
        self._environ = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("AWS_", "CKPTGOV"))
        }
        self._environ["PYTHONUNBUFFERED"] = "1"
        self._token = ""
        self.ports = free_ports(replicas)
        self.written: dict[tuple[str, int], dict[str, str]] = {}
        """By run and step: each file of the save, by its name below it, and its SHA-256."""
        self.replicas: list[Member] = []
        self.agents: dict[str, Member] = {}

    def come_up(self) -> None:
        """Start everything, as an administrator would.

        Raises:
            FixtureFailed: something did not come up.
        """
        self._logs.mkdir()
        self._say("PostgreSQL, SeaweedFS, JuiceFS mounted on each node")
        self.database = self._stack.enter_context(postgres.postgres())
        self.store = self._stack.enter_context(seaweedfs.weed_s3())
        volume = self.scratch / "juicefs"
        volume.mkdir()
        mounts = juicefs.juice_nodes(volume, nodes=len(self.nodes) + 1)
        self._lustre = self._stack.enter_context(mounts)
        self.networks = self._stack.enter_context(NodeNetworks(len(self.nodes)))
        self._environ |= self.store.environment
        self.catalog_url = self.database.url()
        self._configure(None)  # whose catalog meets a tier first governs it
        _at_once(self._configure, self.nodes)
        self._say(f"{len(self.ports)} replicas of the service, one catalog")
        self._begin_replicas()
        self._say("an agent on each node, which has an NVMe and a network of its own")
        if self.networks.why_shared is not None:
            self._say(f"(they share this machine's network: {self.networks.why_shared})")
        tokens = _at_once(self._token_of, self.nodes)
        for node, token in zip(self.nodes, tokens, strict=True):
            self._begin_agent(node, token)

    def close(self) -> None:
        for member in (*self.agents.values(), *self.replicas):
            member.ask_to_end()  # all at once, and only then waited for
        self._stack.close()

    @property
    def world_size(self) -> int:
        """Ranks of a training run: as many on each node."""
        return RANKS_PER_NODE * len(self.nodes)

    @property
    def lustre(self) -> Path:
        """The shared tier as the replicas see it."""
        return self._lustre[-1]

    @property
    def object_url(self) -> str:
        """The object tier."""
        return f"s3://{self.store.bucket}/ckpt"

    def home(self, node: str | None) -> Path:
        """CKPTGOV_HOME of a node's agent, or of the replicas."""
        return self.scratch / ("home" if node is None else f"home-{node}")

    def run(
        self, *words: str, home: Path, environ: Mapping[str, str] | None = None, expect: int = 0
    ) -> Answer:
        """Run a command without the service.

        Raises:
            FixtureFailed: another exit code than expected.
        """
        told = self._command(words, {"CKPTGOV_HOME": str(home), **(environ or {})})
        return _expected(words, told, expect)

    def ask(self, *words: str, expect: int | None = 0, timeout_s: float | None = None) -> Answer:
        """Run a command against the service; ``expect`` None takes any exit code.

        Raises:
            FixtureFailed: another exit code than expected.
            subprocess.TimeoutExpired: it took too long, and was ended.
        """
        urls = ",".join(f"http://{LOOPBACK}:{port}" for port in self.ports)
        environ = {
            "CKPTGOV_HOME": str(self.scratch / "nobodys"),
            "CKPTGOV_URL": urls,
            "CKPTGOV_TOKEN": self._token,
        }
        told = self._command(words, environ, timeout_s)
        return told if expect is None else _expected(words, told, expect)

    def get(self, replica: int, path: str, *, timeout_s: float) -> tuple[int, dict[str, Any]]:
        """Ask one replica over HTTP: status and document.

        Raises:
            OSError, http.client.HTTPException: it gave no whole answer in time.
        """
        connection = http.client.HTTPConnection(LOOPBACK, self.ports[replica], timeout=timeout_s)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {self._token}"}
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def latest(self, run: str) -> dict[str, Any]:
        """What the service says of a run; an error is a document, too."""
        return self.ask("latest", run, "--json", expect=None).document

    def catalog(self) -> Catalog:
        """The catalog itself; the caller closes it."""
        return Catalog.connect(self.catalog_url, clock=SystemClock())

    def leader(self) -> int | None:
        """The replica that leads now, by its number; None where none of those that run does."""
        with contextlib.closing(self.catalog()) as catalog:
            leader = catalog.activities.leader()
        if leader is None:
            return None
        pids = [f":{replica.pid}:" in leader.holder for replica in self.replicas]
        return pids.index(True) if any(pids) else None

    def is_up(self, replica: int) -> bool:
        """Whether a replica answers."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            return self.get(replica, "/healthz", timeout_s=2.0)[0] == 200
        return False

    def save(
        self, run: str, step: int, *, partition: int = 32, pause: Callable[[], None] = lambda: None
    ) -> None:
        """Each node writes what its ranks hold and what all of them hold alike, the marker last.

        ``partition``: elements in each rank's part of the optimizer. ``pause`` is called between
        files.
        """
        written = self.written.setdefault((run, step), {})
        for number, node in enumerate(self.nodes):
            with tempfile.TemporaryDirectory(dir=self.scratch) as aside:
                ranks = range(RANKS_PER_NODE * number, RANKS_PER_NODE * (number + 1))
                ranks_part(Path(aside), step, ranks, self.world_size, partition)
                target = self.nvme[node] / run / f"checkpoint-{step}"
                for path in in_order(Path(aside)):
                    pause()
                    name = path.relative_to(aside)
                    written[str(name)] = digest_of(path)
                    move(path, target / name)

    def last_words(self) -> str:
        """The end of what each process said."""
        return "\n".join(f"--- {one.name}\n{tail(one)}" for one in sorted(self._logs.iterdir()))

    def _configure(self, node: str | None) -> None:
        """Tiers are met and given their identity once, then linked. None: for the replicas.

        The shared tier that is met first is where the runs' journals are at home.
        """
        own: tuple[str, ...]
        if node is None:
            own = ("tier", "add", "s3", self.object_url)
            shared, source, target = self.lustre, "lustre", "s3"
        else:
            self.nvme[node].mkdir(parents=True)
            path = str(self.nvme[node])
            own = ("tier", "add", "nvme", path, "--scope", "node", "--node", node, "--ingest")
            shared = self._lustre[self.nodes.index(node)]
            source, target = "nvme", "lustre"
        home = self.home(node)
        for words in (
            ("tier", "add", "lustre", str(shared)),
            own,
            ("tier", "link", source, target, "--every", "1"),
            ("tier", "budget", "lustre", "--write", self._budget),
        ):
            self.run(*words, home=home, environ=self._shares(node))
        with (home / "ckptgov.yaml").open("a") as file:
            file.write(self._settings)

    def _shares(self, node: str | None) -> dict[str, str]:
        """The catalog is the replicas'; an agent has one of its own."""
        return {"CKPTGOV_CATALOG": self.catalog_url} if node is None else {}

    def _begin_replicas(self) -> None:
        for number, port in enumerate(self.ports):
            words = ["serve", "--listen", f"0.0.0.0:{port}"]
            environ = {"CKPTGOV_HOME": str(self.home(None)), **self._shares(None)}
            self.replicas.append(self._member(f"replica{number}", words, environ))
        for number, replica in enumerate(self.replicas):
            wait_until(replica.name, lambda number=number: self.is_up(number))  # type: ignore[misc]
        said = " ".join(replica.log.read_text() for replica in self.replicas)
        self._token = next(word for word in said.split() if word.startswith("ckptgov_"))

    def _begin_agent(self, node: str, token: str) -> None:
        number = self.nodes.index(node)
        host, (port,) = self.networks.host(number), free_ports(1)
        self.agents[node] = self._member(
            node,
            ["agent", "--node", node, "--listen", f"{self.networks.address(number)}:{port}"],
            {
                "CKPTGOV_HOME": str(self.home(node)),
                "CKPTGOV_URL": ",".join(f"http://{host}:{port}" for port in self.ports),
                "CKPTGOV_TOKEN": token,
            },
            before=self.networks.entering(number),
        )

    def _member(
        self,
        name: str,
        words: Sequence[str],
        environ: Mapping[str, str],
        *,
        before: Sequence[str] = (),
    ) -> Member:
        command = [*before, sys.executable, "-m", "ckptgov_cli.main", *words]
        told = {**self._environ, "CKPTGOV_PEER_TOKEN": _SECRET, **environ}
        member = self._stack.enter_context(Member(name, command, told, self._logs / name))
        member.start()
        return member

    def _token_of(self, node: str) -> str:
        words = ("token", "add", node, "--right", "agent", "--node", node, "--json")
        return str(self.ask(*words).document["secret"])

    def _command(
        self, words: Sequence[str], environ: Mapping[str, str], timeout_s: float | None = None
    ) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "ckptgov_cli.main", *words],
            env={**self._environ, **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        return Answer(code=done.returncode, out=done.stdout, err=done.stderr)


def _expected(words: Sequence[str], told: Answer, code: int) -> Answer:
    if told.code != code:
        raise FixtureFailed(f"{' '.join(words)}: exit {told.code}\n{told.out}{told.err}")
    return told


def _at_once(work: Callable[[_T], _U], items: Iterable[_T]) -> list[_U]:
    """Most of what a command does is waiting, and importing, which two processors share well."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(work, items))
