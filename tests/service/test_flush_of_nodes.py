"""What the service flushes is what it sees; what lies on nodes alone, their agents do."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ckptgov.ops.flush import FlushRequest, flush
from ckptgov.testing.builders import write_dcp
from ckptgov.testing.cluster import LocalCluster


def test_a_run_that_lies_on_a_nodes_disk_alone_is_no_failure_of_the_services_flush(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        cluster = LocalCluster(tmp_path, stack, "node0")
        node = cluster.nodes["node0"]
        write_dcp(node.disk / "run/step_10")
        node.agent.beat()
        node.agent.look()
        node.agent.tell()
        assert cluster.restorable("run") == ["step_10"]
        with cluster.serving.context() as context:
            answer = flush(context, FlushRequest(run=None))
        assert answer.error is None
