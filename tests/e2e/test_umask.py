"""File ownership: a script's files get its user's umask, ours are private; checkpoints are named after the trainer."""

from __future__ import annotations

import os
import stat

from tests.pools import Pool

SCRIPT = """
from pathlib import Path
from torch import nn, optim, zeros
from torch.utils.data import TensorDataset
import pilot.train

model = nn.Linear(1, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
session = pilot.train.session(model, optimizer)
loader = session.loader(TensorDataset(zeros(8, 1)), batch_size=4)
for _ in session.epochs(2):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        session.step(loss)
Path("made.txt").write_text("result")
"""


def test_a_script_s_files_are_the_user_s_and_its_checkpoints_go_by_its_name(pool: Pool) -> None:
    script = pool.folder / "made.py"
    script.write_text(SCRIPT)
    pool.up()
    pool.agent()
    before = os.umask(0o027)
    try:
        pool.pilot("submit", "--name", "mine", script)
    finally:
        os.umask(before)
    pool.pilot("wait", "mine")
    assert stat.S_IMODE((pool.folder / "made.txt").stat().st_mode) == 0o640
    ours = [path for path in (pool.run_dir / "trainers").resolve().rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in ours} == {0o600}
    listed = pool.pilot("checkpoint", "ls", "mine").stdout.splitlines()
    assert listed
    assert all("trainers/mine/checkpoints/" in line for line in listed)
    pool.pilot("down")
    assert pool.pilot("checkpoint", "verify", "mine").stdout.endswith("ok\n"), "also when the pool is down"
    unknown = pool.pilot("checkpoint", "ls", "yours", check=False)
    assert (unknown.returncode, "no trainer of this name" in unknown.stderr) == (2, True)
