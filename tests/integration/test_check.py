"""``pilot check``: what no guard can see in a script is found on two emulated ranks, and nothing is left behind."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from pilot.cli.main import run

SCRIPT = """
import os, subprocess, sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import pilot.train

kind = sys.argv[1]
if kind in ("exec", "subprocess") and "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "yes"
    again = [sys.executable, *sys.argv]
    if kind == "exec":
        os.execv(again[0], again)
    sys.exit(subprocess.call(again))
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
if kind in ("sum", "contrastive", "seed"):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters())
session = pilot.train.session(model, optimizer, seed=os.getpid() if kind == "seed" else 0)
loader = session.loader(TensorDataset(torch.randn(40, 4)), global_batch_size=8)
for _ in session.epochs(2):
    for (x,) in loader:
        optimizer.zero_grad()
        y = model(x)
        if kind == "contrastive":
            loss = nn.functional.cross_entropy(y @ y.t(), torch.arange(len(y)))
        elif kind == "sum":
            loss = y.square().sum()
        else:
            loss = y.square().mean()
        loss.backward()
        session.step(loss)
torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(
    ("kind", "status", "script_class", "text", "by_design"),
    [
        ("sum", 1, "differs", "the gradient of 0.weight: on two ranks it is 0.5 times its value on one", []),
        ("contrastive", 1, "differs", "the gradient of 0.weight: on two ranks it is different", []),
        ("noise", 0, "different by design", "6 gradients of 8 samples are the same", ["batch norm", "dropout"]),
        ("seed", 1, "refused", "the seed is", []),
        ("exec", 1, "refused", "train.py, line 19: pilot.train.session is called in a new interpreter", []),
        ("subprocess", 1, "refused", "train.py, line 19: pilot.train.session is called in a new interpreter", []),
    ],
)
def test_a_script_is_checked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    status: int,
    script_class: str,
    text: str,
    by_design: list[str],
) -> None:
    temporary, folder = tmp_path / "tmp", tmp_path / "own"
    temporary.mkdir()
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    Path("train.py").write_text(SCRIPT)
    Path("model.pt").write_text("precious")
    assert run(["check", "--json", "train.py", kind]) == status
    told = json.loads(capsys.readouterr().out)
    assert told["script_class"] == script_class
    assert text in told["text"]
    assert sorted(told["by_design"]) == by_design
    assert told["passed"] == (status == 0)
    assert sorted(path.name for path in folder.iterdir()) == ["model.pt", "train.py"]
    assert Path("model.pt").read_text() == "precious"
    assert list(temporary.iterdir()) == []


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
