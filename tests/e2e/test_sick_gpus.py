"""A GPU that fails, or that torch cannot use: the node is set aside, and the others train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pools import Pool

SCRIPT = Path(__file__).with_name("sick_gpu_script.py")


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("fails", "CUDA error: uncorrectable ECC error encountered"),
        ("missing", "this node trains on the CPU, and the trainer's other nodes on GPUs"),
    ],
)
def test_its_node_is_set_aside_and_the_others_train_on(kind: str, line: str, pool: Pool) -> None:
    enough = pool.folder / "enough"
    pool.up()
    pool.agent()
    name = pool.submit(SCRIPT, kind, str(pool.folder / "mark"), str(enough), options=pool.gains())
    pool.until_step(name, 20, nodes=1)
    pool.agent()
    aside = pool.until("a node is set aside", lambda s: any("set aside" in r for r in s.trainer(name).remarks))
    assert line in str(aside.trainer(name).remarks)
    pool.until_step(name, aside.trainer(name).step + 20, nodes=1)
    enough.touch()
    assert pool.finish(name).lost_steps == 0
