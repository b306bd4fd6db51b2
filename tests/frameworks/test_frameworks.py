"""Lightning's and Hugging Face's Trainer in ``--ddp`` scripts: growth and a kill, resumed from their own
checkpoints.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pools import Pool

HERE = Path(__file__).parent


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("needs", "script"), [("lightning", "lightning_script.py"), ("transformers", "trainer_script.py")]
)
def test_it_grows_and_goes_on_after_a_kill_from_its_own_checkpoints(pool: Pool, needs: str, script: str) -> None:
    pytest.importorskip(needs, reason=f"{needs} is not installed; pip install -e '.[frameworks]' has it")
    folder = pool.folder / "checkpoints"
    pool.up()
    agents = [pool.agent()]
    name = pool.submit(HERE / script, str(folder), "0.02", options=("--ddp", "--max-nodes", "2"))
    pool.until_step(name, 60, nodes=1)
    agents.append(pool.agent())
    pool.until_step(name, 0, nodes=2)
    pool.until_step(name, pool.trainer(name).step + 60, nodes=2)
    pool.kill_tree(agents[1])
    pool.until_step(name, pool.trainer(name).step + 10, nodes=1)
    (folder / "enough").touch()
    assert pool.pilot("wait", name).stdout == f"{name} finished\n"
    log = pool.pilot("logs", name).stdout
    begun = [(int(size), int(step)) for size, step in re.findall(r"begins on (\d) at .*step (\d+)", log)]
    assert [size for size, _ in begun] == [1, 2, 1]
    first, grown, killed = (step for _, step in begun)
    assert first == 0 < grown < killed
    losses = [float(loss) for loss in re.findall(r"(?:val|eval)_loss (\S+)", log)]
    assert losses[-1] < losses[0]
    assert "done" in log
