"""``pilot check``: what no guard can see in a script is found in scenarios, and nothing is left behind."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pilot.cli.main import run
from pilot.host import sandbox

DRAWN = "random numbers that are drawn for each batch (not disabled: turn them off for the check)"
SCRIPT = """
import copy, os, random, signal, sys, time
from pathlib import Path
import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset
import pilot.train

kind = sys.argv[1]
coarse = torch.float16 if "float16 " in kind and "bfloat16 " not in kind else torch.bfloat16
if kind == "exec" and "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "yes"
    os.execv(sys.executable, [sys.executable, *sys.argv])
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
if kind == "noise":
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
if "bfloat16 parameters" in kind:
    model.bfloat16()
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cpu") if "scaled" in kind else None
seed = os.getpid() if kind == "seed" else 0
session = pilot.train.session(model, optimizer, scaler=scaler, seed=seed, lr_rule="linear")
dataset = TensorDataset(torch.randn(46, 4))
loader = session.loader(dataset, **{"batch_size" if "per node" in kind else "global_batch_size": 8})
average = copy.deepcopy(model)
if "average" in kind and "forgotten" not in kind:
    session.track("average", average)
best, momentum, enumerated = 1e9, 0.0, signal.SIGTERM
for epoch in session.epochs(4):
    if "float" in kind:
        assert next(model.parameters()).dtype != torch.float64
    total = numpy.float64(0.0)
    for (x,) in loader:
        optimizer.zero_grad()
        if kind == "numpy noise":
            x = x + torch.tensor(numpy.random.normal(size=x.shape), dtype=x.dtype)
        if kind == "python noise":
            x = x * random.random()
        if kind == "waits" and session.size > 1 and session.rank == 1:
            time.sleep(1000)
        x = x.to(next(model.parameters()).dtype)
        with torch.autocast("cpu", coarse, enabled="autocast" in kind):
            y = (checkpoint(model, x, use_reentrant=False) if "checkpointed" in kind else model(x)).to(x.dtype)
        if "sum" in kind:
            loss = y.square().sum()
        else:
            loss = y.square().mean()
        if kind == "counts":
            momentum += 0.1
            loss = loss * (1 + momentum)
        if kind == "unseeded":
            loss = loss * (1 + random.SystemRandom().random())
        (loss if scaler is None else scaler.scale(loss)).backward()
        session.step(loss)
        total += float(loss)
        if "average" in kind:
            with torch.no_grad():
                for ours, its in zip(average.parameters(), model.parameters()):
                    ours.lerp_(its, 0.1)
    if kind == "best" and total < best:
        best = total
    if kind == "best" and epoch == 1:
        session.state["best"] = best
    with Path("log.csv").open("a") as log:
        log.write(f"{epoch},{total}\\n")
    Path("old/results").unlink(missing_ok=True)
torch.save(model.state_dict(), "model.pt")
"""

RIGHTS = """
import subprocess
path = "/proc/self/status"
for status in open(path).read(), subprocess.check_output(["cat", path], text=True):
    sets = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
    assert sets == ["0" * 16] * 5, sets
"""
"""Neither the script nor what it executes has any of root's rights."""
SUM = "the loss is not a mean over the batch's samples"


@pytest.fixture(scope="module")
def covered(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether this machine makes sandboxes."""
    enter = f"import pathlib, pilot.host.sandbox as s; s.enter(pathlib.Path({str(tmp_path_factory.mktemp('own'))!r}))"
    return subprocess.run(sandbox.command([sys.executable, "-c", enter]), check=False).returncode == 0


@pytest.mark.parametrize(
    ("kind", "status", "script_class", "text", "by_design"),
    [
        ("average, per node", 0, "equal", "9 steps train the same on changing nodes as undisturbed (in float64)", []),
        ("float32", 0, "equal", "(in its own type)", []),
        ("bfloat16 parameters", 0, "equal", "(in its own type)", []),
        ("float32 in bfloat16 autocast, checkpointed", 0, "equal", "(in its own type)", []),
        ("float32 in float16 autocast, scaled", 0, "equal", "(in its own type)", []),
        ("noise", 0, "different by design", "steps train the same", ["batch norm", "dropout"]),
        ("numpy noise", 0, "different by design", "steps train the same", [DRAWN]),
        ("python noise", 0, "different by design", "steps train the same", [DRAWN]),
        ("waits", 1, "differs", "it fails: a rank has waited for the others for 1", []),
        ("sum", 1, "differs", SUM, []),
        ("sum, float32", 1, "differs", SUM, []),
        ("sum, bfloat16 parameters", 1, "differs", SUM, []),
        ("sum, float32 in bfloat16 autocast, checkpointed", 1, "differs", SUM, []),
        ("sum, float32 in float16 autocast, scaled", 1, "differs", SUM, []),
        ("counts", 1, "differs", "(so do the script's momentum", []),
        ("forgotten average", 1, "differs", "the module average", []),
        ("best", 1, "differs", "session.state['best'] differs", []),
        ("unseeded", 1, "not reproducible", "undisturbed runs differ: after step 1", []),
        ("seed", 1, "refused", "the seed is", []),
        ("exec", 1, "refused", "train.py, line 24: pilot.train.session is called in a new interpreter", []),
        ("no kind", 1, "failed", "NameError: name 'undefined' is not defined", []),
        ("nothing", 1, "refused", "the script ended without a step of a pilot.train session", []),
    ],
)
def test_a_script_is_checked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    covered: bool,
    kind: str,
    status: int,
    script_class: str,
    text: str,
    by_design: list[str],
) -> None:
    temporary, folder = tmp_path / "tmp", tmp_path / "own"
    temporary.mkdir()
    (folder / "old").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    ends = {"no kind": "undefined", "nothing": RIGHTS if covered else ""}
    Path("train.py").write_text(ends.get(kind, SCRIPT))
    for precious in ("model.pt", "log.csv", "old/results"):
        Path(precious).write_text("precious")
    assert run(["check", "--json", *([] if covered else ["--writes"]), "train.py", kind]) == status
    answer = json.loads(capsys.readouterr().out)
    assert answer["script_class"] == script_class, answer
    assert text in answer["text"]
    assert sorted(answer["by_design"]) == by_design
    assert answer["passed"] == (status == 0)
    assert answer["files"] == {str(folder / "train.py"): hashlib.sha256(Path("train.py").read_bytes()).hexdigest()}
    assert [*temporary.iterdir()] == []
    if covered:
        assert sorted(path.name for path in folder.iterdir()) == ["log.csv", "model.pt", "old", "train.py"]
        for precious in ("model.pt", "log.csv", "old/results"):
            assert Path(precious).read_text() == "precious"


def test_without_a_sandbox_nothing_is_run_unless_that_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sandbox, "command", lambda _inside: ["false"])
    Path("train.py").write_text("open('written', 'w')")
    assert run(["check", "train.py"]) == 2
    assert "--writes" in capsys.readouterr().err
    assert not Path("written").exists()
    assert run(["check", "--writes", "train.py"]) == 1
    assert "nothing to check" in capsys.readouterr().out
    assert Path("written").exists()


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
