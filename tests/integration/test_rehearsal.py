"""Nodes that join on real rank processes are compared with one that trains, whose user is told of what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

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
