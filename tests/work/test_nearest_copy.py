"""Which copy of a checkpoint a path is told of: the nearest that loads by itself."""

from __future__ import annotations

from ckptgov.model.checkpoint import Evidence
from ckptgov.model.facts import CopyFacts
from ckptgov.work.ask import nearest_copy


def copy(node: str | None, *shards: str) -> CopyFacts:
    """A sound copy; with ``shards`` only these of it."""
    return CopyFacts(
        place=f"place of {node}",
        tier="nvme" if node else "lustre",
        node=node,
        root=f"/{node}/run",
        name="step_10",
        shards=shards or None,
        evidence=Evidence.DIGEST,
    )


def test_the_asking_nodes_own_disk_is_nearest_then_a_shared_place() -> None:
    copies = [copy("n2"), copy(None), copy("n1")]
    assert nearest_copy(copies, node="n1") is copies[2]
    assert nearest_copy(copies, node="n9") is copies[1]


def test_a_part_on_the_asking_node_is_no_answer_while_the_whole_lies_elsewhere() -> None:
    copies = [copy("n1", "a.bin"), copy("n2", "b.bin"), copy(None)]
    assert nearest_copy(copies, node="n1") is copies[2]


def test_where_there_are_only_parts_the_asking_nodes_own_is_told() -> None:
    copies = [copy("n2", "b.bin"), copy("n1", "a.bin")]
    assert nearest_copy(copies, node="n1") is copies[1]
