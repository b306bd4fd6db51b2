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
{before}
session = pilot.train.session(model, optimizer)
{after}
loader = session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)
for _ in session.epochs(1):
    for (x,) in loader:
        model(x).sum().backward()
        {line}
        session.step()
"""


PROCESS_GROUP = (
    "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)"
)
"""It wraps the hook that shows exceptions: before our session, or after it."""
OURS = "from pilot.train.script.refusal import show_in_one_line; show_in_one_line(); "
"""As on a node, where the hook is ours from the beginning."""


LEFT = "optimizer.step()", 2, "pilot.train: {script}, line 15: the script calls optimizer.step() in its loop"
MISSING = "pass", 2, "pilot.train: {script}, line 14: zero_grad is missing"
OWN = "raise ValueError('own')", 1, "Traceback (most recent call last):\n{script}"


@pytest.mark.parametrize(
    ("before", "after", "line", "status", "error"),
    [
        *(("", "", *ending) for ending in (LEFT, MISSING, OWN)),
        *((PROCESS_GROUP, "", *ending) for ending in (MISSING, OWN)),
        ("", PROCESS_GROUP, *LEFT),
        *((OURS + PROCESS_GROUP, "", *ending) for ending in (LEFT, OWN)),
    ],
)
def test_a_script_that_ends(tmp_path: Path, before: str, after: str, line: str, status: int, error: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(before=before, after=after, line=line))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == status
    text = done.stderr.replace("[rank0]: ", "").replace('  File "', "")
    assert text.startswith(error.format(script=script))
    assert (text.count("\n") == 1) == (status == 2)
    assert text.count("Traceback") == (status == 1)


IN_A_THREAD = """
import queue, threading
import torch
from torch.utils.data import TensorDataset
import pilot.train

model = torch.nn.Linear(2, 1)
session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader, batches = session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4), queue.Queue()
for _ in session.epochs(1):
    threading.Thread(target=lambda: [batches.put(batch) for batch in loader]).start()
    batches.get()
"""


def test_a_refusal_in_a_thread_ends_the_script(tmp_path: Path) -> None:
    """The rest of it would wait for the thread without end."""
    script = tmp_path / "train.py"
    script.write_text(IN_A_THREAD)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"pilot.train: {script}, line 11: another thread takes the batches")


def test_a_script_beside_a_clone_of_this_repository_runs(tmp_path: Path) -> None:
    """A folder named ``pilot`` beside it is a package for Python, without a file of its own."""
    (tmp_path / "pilot").mkdir()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(before="", after="", line="model.zero_grad"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stderr.startswith(f"pilot.train: {script}, line 14: zero_grad is missing")
