"""Nodes that join on real rank processes are compared with one that trains, and those that resume with those that were
killed; the user is told of what differs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.checkpoint import names, store
from pilot.io import wire
from tests.integration.plane import plane

SCRIPT = Path(__file__).with_name("own_constant.py")


@pytest.mark.parametrize("size", ["batch_size", "global_batch_size"])
@pytest.mark.parametrize("options", [{}, {"rails": 2}, {"ranks_per_node": 2}], ids=["", "rails", "two processes"])
def test_a_node_that_computes_something_else_is_told_of(tmp_path: Path, size: str, options: dict[str, int]) -> None:
    """The node that trains is the third of four, whose first process leads."""
    with plane(tmp_path, SCRIPT, f"--size={size}", f"--folder={tmp_path}", **options) as cluster:
        per_node = options.get("ranks_per_node", 1)
        processes = cluster.start(4 * per_node)
        a, b, c, d = (processes[i * per_node :][:per_node] for i in range(4))
        cluster.form(a)
        cluster.wait_step(20)
        cluster.form([*b, *c, *a, *d], switch=True)
        cluster.wait_finished()
        (remark,) = [remark.text for node in processes for remark in node.heard(wire.Remark)]
        for told in (remark, *(node.log.read_text() for node in processes)):
            assert f"rank 0 computes another gradient of weight than rank {2 * per_node}" in told
            assert f"({3 * per_node - 1} more differ, too)" in told
        cluster.stop()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_trainer_that_computes_something_else_than_before_a_kill_is_told_of(tmp_path: Path, nodes: int) -> None:
    checkpoints = tmp_path / "checkpoints"

    def next_steps() -> set[names.Age]:
        return {entry.age for entry in names.next_steps(checkpoints)} & {one.age for one in store.listing(checkpoints)}

    arguments = ("--size=global_batch_size", f"--folder={tmp_path}")
    with plane(tmp_path, SCRIPT, *arguments, interval_s=0.1) as cluster:
        killed = cluster.start(nodes)
        cluster.form(killed)
        cluster.wait(lambda: len(next_steps()) > 1, "checkpoints, and what followed them")
        for node in killed:
            cluster.kill(node)
        for checkpoint in store.listing(checkpoints):
            if checkpoint.age not in next_steps():  # it was killed just then
                checkpoint.path.unlink()
        others = cluster.start(4)
        up = cluster.wait_up(cluster.form(others))
        cluster.wait_finished()
        remarks = [remark.text for remark in others[0].heard(wire.Remark) if "before the trainer" in remark.text]
        assert len(remarks) == 1
        assert f"step {(up.resumed or 0) + 1} has another gradient of weight than" in remarks[0]
        assert remarks[0].partition(";")[0] in others[0].log.read_text()
        assert len(names.next_steps(checkpoints)) <= len(store.listing(checkpoints)), "they go with their checkpoints"
        cluster.stop()
