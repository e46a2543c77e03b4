"""A cluster on one machine, start to end: what ``make demo-cluster`` runs.

PostgreSQL, two replicas of the service, three agents with networks and "NVMe" of their own,
JuiceFS as the shared tier and SeaweedFS as the object tier. A checkpoint that three nodes wrote
in parts is sealed, flushed under a budget and answered for; then a node and a replica are killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ckptgov.testing import cluster_processes
from ckptgov.testing._members import wait_until
from ckptgov.testing.cluster_processes import ProcessCluster

RUN = "llm-7b"
BUDGET_BYTES_PER_S = 200_000
PARTITION = 65_536
"""So many numbers for each rank: with 6 ranks, a save of 1.6 MB."""
NODE_TIMEOUT_S = 10
SETTINGS = f"""\
settle: 0s
service:
  node_timeout: {NODE_TIMEOUT_S}s
  activities: {{scan: {{every: 5s}}, flush: {{every: 2s}}, verify: {{every: 0s}}}}
"""


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def show(cluster: ProcessCluster, *words: str) -> None:
    """Run a command against the service, shown with what it prints."""
    print(f"$ ckptgov {' '.join(words)}", flush=True)
    told = cluster.ask(*words)
    text = (told.out + told.err).replace(str(cluster.scratch), "")
    print("".join(f"  {line}\n" for line in text.splitlines()), end="", flush=True)


def is_on(cluster: ProcessCluster, step: int, tier: str) -> bool:
    """Whether this step is the answer, and a tier has all of it."""
    told: dict[str, Any] = cluster.latest(RUN)
    return told.get("step") == step and any(
        copy["tier"] == tier and copy["shards"] is None for copy in told["copies"]
    )


def show_flows(cluster: ProcessCluster, step: int) -> float:
    """Show what moves until the shared tier has it; seconds from the first byte on."""
    standing = "shards for other nodes"  # one of each agent, as long as it lives

    def are_moving() -> bool:
        flows = cluster.ask("flows", "--json").document["flows"]
        return any(one["what"] != standing and one["moved_bytes"] for one in flows)

    wait_until("the first bytes", lambda: are_moving() or is_on(cluster, step, "lustre"))
    began = time.monotonic()
    while not is_on(cluster, step, "lustre"):
        show(cluster, "flows")
        time.sleep(1)
    return time.monotonic() - began


def play(cluster: ProcessCluster) -> None:
    say("a checkpoint, written in parts by three nodes; nobody tells ckptgov")
    cluster.save(RUN, 1, partition=PARTITION)
    wait_until("it to be sealed", lambda: cluster.latest(RUN).get("step") == 1)
    show(cluster, "latest", RUN, "--explain")
    say(
        "it is flushed: each agent brings its part to the shared tier, "
        f"within {BUDGET_BYTES_PER_S / 1000:.0f} kB/s in all"
    )
    took_s = show_flows(cluster, 1)
    size_bytes = cluster.latest(RUN)["bytes"]
    print(f"{size_bytes} bytes in {took_s:.1f} s: {size_bytes / took_s / 1000:.0f} kB/s")
    wait_until("the copy in object storage", lambda: is_on(cluster, 1, "s3"))
    show(cluster, "latest", RUN, "--explain")
    show(cluster, "node", "list")

    say("the replica that leads is killed; the other one answers, and leads")
    cluster.replicas[cluster.leader() or 0].kill()
    show(cluster, "latest", RUN)
    wait_until("another leader", lambda: cluster.leader() is not None)
    print(f"replica {cluster.leader()} leads now")

    say("a newer checkpoint; node2 dies before its part has left it")
    unplug(cluster, 2)
    cluster.agents["node2"].kill()
    cluster.save(RUN, 2, partition=PARTITION)
    time.sleep(NODE_TIMEOUT_S + 2)
    show(cluster, "node", "list")
    print("step 2 is not whole anywhere that can be reached, and is never offered:")
    show(cluster, "latest", RUN, "--explain")
    if cluster.latest(RUN).get("step") != 1:
        raise SystemExit(f"half a checkpoint was offered: {cluster.latest(RUN)}")

    say("the node comes back, and its part with it")
    plug_in(cluster, 2)
    cluster.agents["node2"].start()
    wait_until("step 2 in object storage", lambda: is_on(cluster, 2, "s3"))
    show(cluster, "latest", RUN, "--explain")

    say("the bucket alone, without a service, a catalog or a configuration, says the same")
    told = cluster.run(
        "latest", f"{cluster.object_url}/{RUN}", home=cluster.scratch / "nobody-at-all"
    )
    print(f"  {told.out.strip()}")
    if not told.out.strip().endswith("checkpoint-2"):
        raise SystemExit("the store tells something else")


def unplug(cluster: ProcessCluster, number: int) -> None:
    if cluster.networks.why_shared is None:
        cluster.networks.cut(number)


def plug_in(cluster: ProcessCluster, number: int) -> None:
    if cluster.networks.why_shared is None:
        cluster.networks.plug_in(number)


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ckptgov-cluster-"))
    try:
        yield path
    finally:
        if os.environ.get("KEEP") is None:
            shutil.rmtree(path, ignore_errors=True)
        else:
            print(f"kept: {path}")


def main() -> int:
    """Play it, or say what is missing here."""
    if reason := cluster_processes.reason_to_skip():
        print(f"the demo needs more than this machine has: {reason}")
        return 1
    began = time.monotonic()
    with scratch_directory() as scratch:
        cluster = ProcessCluster(
            scratch, write_budget=f"{BUDGET_BYTES_PER_S // 1000}kB/s", settings=SETTINGS, say=say
        )
        with cluster:
            try:
                cluster.come_up()
                play(cluster)
            except BaseException:
                print(cluster.last_words())
                raise
    say(f"done in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
