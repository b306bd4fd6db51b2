"""From a command to the first step: plain ``python train.py``, a script's first ``pilot submit``, and its second one.

The pool is warm: its pilot is there, and between the two submissions its fork server has had time to load what the
first one imported (:mod:`pilot.agent.preload`). All times are from one run on one machine; compare them only with one
another.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.integration.live_pool import until
from tests.pools import Pool

DEADLINE_S = 240.0
LOOP = """
import sys, time, torch, pilot.train
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = pilot.train.session(model, optimizer)
loader = session.loader(torch.utils.data.TensorDataset(inputs), global_batch_size=8)
for epoch in session.epochs(10**6):
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        session.step(loss)
        if session.steps == 1:
            print("first step", time.time(), flush=True)
            if len(sys.argv) > 1:
                raise SystemExit
        time.sleep(0.05)
"""
SUBJECTS = {
    "sklearn": """
import torch
from sklearn.datasets import load_digits
inputs = torch.tensor(load_digits().data, dtype=torch.float32)
model = torch.nn.Linear(64, 1)
loss_of = lambda batch: model(batch).square().mean()
""",
    "transformers": """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1, loss_type="ForCausalLMLoss")
model = GPT2LMHeadModel(config)
inputs = torch.randint(64, (64, 16))
loss_of = lambda batch: model(batch, labels=batch).loss
""",
    "lightning": """
import torch, lightning
inputs = torch.randn(64, 8)
model = torch.nn.Linear(8, 1)
loss_of = lambda batch: model(batch).square().mean()
""",
}


def plain_s(script: Path) -> float:
    """Seconds from ``python train.py`` to its first step."""
    began_s = time.time()
    done = subprocess.run([sys.executable, script, "alone"], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1]) - began_s


def submitted_s(pool: Pool, script: Path, number: int) -> float:
    """Seconds from ``pilot submit`` to the first step; the trainer is then stopped."""
    name = f"{script.stem}{number}"
    began_s = time.time()
    pool.submit(script, options=("--name", name, "--max-nodes", "1"))
    logs = pool.run_dir / "trainers" / name / "logs"
    until(lambda: any("first step" in log.read_text() for log in logs.glob("*.log")), deadline_s=DEADLINE_S)
    (log,) = logs.glob("*.log")
    line = next(line for line in log.read_text().splitlines() if "first step" in line)
    pool.pilot("cancel", name)
    pool.pilot("wait", name, check=False)
    return float(line.split()[-1]) - began_s


def measure(subject: str, repeats: int) -> dict[str, float]:
    """Seconds; medians of ``repeats``, except for the first submission of its pool."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / f"train_{subject}.py"
        script.write_text(SUBJECTS[subject] + LOOP)
        pool = Pool(folder)
        try:
            plain = median(plain_s(script) for _ in range(repeats))
            pool.up()
            pool.agent()
            pool.until_pilots(1)
            first = submitted_s(pool, script, 0)
            agent = folder / "agent0.log"
            until(lambda: "preloaded:" in agent.read_text(), deadline_s=DEADLINE_S)
            second = median(submitted_s(pool, script, number) for number in range(1, repeats + 1))
        finally:
            pool.pilot("down", check=False)
            for process in pool.agents:
                process.wait(DEADLINE_S)
    return {"plain_s": plain, "first_s": first, "second_s": second}


def main() -> None:
    """Print and write the medians, and their ratios to the plain script."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_step", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = {subject: subject for subject in SUBJECTS if importlib.util.find_spec(subject) is not None}
    results = {subject: measure(subject, arguments.repeats) for subject in found}
    for subject, took in results.items():
        ratios = {what: f"{took[what] / took['plain_s']:.2f}" for what in ("first_s", "second_s")}
        print(f"{subject}: plain {took['plain_s']:.2f} s; submitted first {took['first_s']:.2f} s, again", end=" ")
        print(f"{took['second_s']:.2f} s; to plain {ratios['first_s']} and {ratios['second_s']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
