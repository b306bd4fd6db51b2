"""A GPU that fails, or that torch cannot use: the node is set aside, and the others train on."""

from __future__ import annotations

import pytest

from tests.e2e.acts import script
from tests.pools import Pool

BEFORE = """
from pilot.train.state.training import Training

try:  # the first process is well
    Path("mark").touch(exist_ok=False)
    sick = False
except FileExistsError:
    sick = True
if sys.argv[1] == "missing":
    Training.is_on_gpu = property(lambda _training: not sick)
"""
FAIL = """
if sys.argv[1] == "fails" and sick:
    raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")
"""


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("fails", "CUDA error: uncorrectable ECC error encountered"),
        ("missing", "this node trains on the CPU, and the trainer's other nodes on GPUs"),
    ],
)
def test_its_node_is_set_aside_and_the_others_train_on(kind: str, line: str, pool: Pool) -> None:
    pool.up()
    pool.agent()
    name = pool.submit(script(pool, FAIL, before=BEFORE), kind, options=pool.gains())
    pool.until_step(name, 20, nodes=1)
    pool.agent()
    aside = pool.until("a node is set aside", lambda s: any("set aside" in r for r in s.trainer(name).remarks))
    assert line in str(aside.trainer(name).remarks)
    pool.until_step(name, aside.trainer(name).step + 20, nodes=1)
    assert pool.finish(name).lost_steps == 0
