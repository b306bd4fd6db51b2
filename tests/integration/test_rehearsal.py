"""Nodes that join on real rank processes are compared with one that trains, and those that resume with those that were
killed; who differs ends before its gradients count.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.checkpoint import names, store
from pilot.protocol import wire
from tests.integration.plane import plane

SCRIPT = Path(__file__).with_name("own_constant.py")


@pytest.mark.parametrize("size", ["batch_size", "global_batch_size"])
@pytest.mark.parametrize("options", [{}, {"rails": 2}, {"ranks_per_node": 2}], ids=["", "rails", "two processes"])
def test_nodes_that_compute_something_else_end_and_the_others_lose_no_step(
    tmp_path: Path, size: str, options: dict[str, int]
) -> None:
    """The node that trains is the third of four, whose first process leads. It does the step in which the others end,
    or does it again.
    """
    with plane(tmp_path, SCRIPT, f"--size={size}", f"--folder={tmp_path}", **options) as cluster:
        per_node = options.get("ranks_per_node", 1)
        processes = cluster.start(4 * per_node)
        a, b, c, d = (processes[i * per_node :][:per_node] for i in range(4))
        cluster.form(a)
        cluster.wait_step(20)
        joined = cluster.wait_up(cluster.form([*b, *c, *a, *d], switch=True))
        cluster.wait_raised([*b, *c, *d])
        for number, node in ((0, b), (1, c), (3, d)):
            for process in node:
                assert f"rank {number * per_node} computes another gradient of weight than" in process.log.read_text()
        cluster.dissolve()
        up = cluster.wait_up(cluster.form(a))
        assert joined.step <= up.step <= joined.step + 1
        assert up.resumed is None
        cluster.wait_step(up.step + 20)
        assert all("computes another" not in process.log.read_text() for process in a)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_trainer_that_computes_something_else_than_before_a_kill_ends(tmp_path: Path, nodes: int) -> None:
    """All of its ranks do, also those that rehearse, and none of them has done a step."""
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
        cluster.wait_raised(others)
        for node in others:
            assert f"step {(up.resumed or 0) + 1} has another gradient of weight than" in node.log.read_text()
            assert not node.heard(wire.Progress)
        assert len(names.next_steps(checkpoints)) <= len(store.listing(checkpoints)), "they go with their checkpoints"
