"""How an error ends a script that runs by itself: a refusal in one line, an error of the script's own with its
traceback.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch
from torch.utils.data import TensorDataset
import pilot.train

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = pilot.train.session(model, optimizer)
loader = session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)
for _ in session.epochs(1):
    for (x,) in loader:
        model(x).sum().backward()
        {line}
        session.step()
"""


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("optimizer.step()", 2, "pilot.train: {script}, line 13: the script calls optimizer.step() in its loop"),
        ("pass", 2, "pilot.train: {script}, line 12: zero_grad is missing"),
        ("raise ValueError('own')", 1, "Traceback (most recent call last):\n"),
    ],
)
def test_a_script_that_ends(tmp_path: Path, line: str, status: int, said: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(line=line))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stderr.startswith(said.format(script=script))
    assert (done.stderr.count("\n") == 1) == (status == 2)
