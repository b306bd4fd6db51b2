"""Acts that several tests of real pools share: a script with a small loop, a trainer that trains, a crash."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

from pilot.rundir.journal import Contents, read, replay
from pilot.service.settings import fresh_core
from tests.pools import Pool

LOOP = """
import itertools, os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
import pilot.train

{before}
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session = pilot.train.session(model, optimizer)
loader = session.loader(TensorDataset(torch.randn({samples}, 4)), global_batch_size=16)
for epoch in session.epochs({epochs}):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = {factor} * (model(x) - x.square().sum(1, keepdim=True)).square().mean()
        loss.backward()
{inside}
        session.step(loss)
    if Path("enough").exists():
        session.stop()
{after}
"""


def script(
    pool: Pool,
    inside: str = "",
    *,
    before: str = "",
    factor: str = "1",
    after: str = "",
    epochs: int = 100_000,
    samples: int = 64,
) -> Path:
    """A script that does ``inside`` in each step, and ``after`` when its loop is over; ``factor`` multiplies its loss.
    A file ``enough`` ends it.
    """
    path, inside = pool.folder / "loop.py", textwrap.indent(inside, 8 * " ")
    path.write_text(
        LOOP.format(before=before, samples=samples, epochs=epochs, factor=factor, inside=inside, after=after)
    )
    return path


def training(pool: Pool, nodes: int, *options: str, step: int = 20) -> str:
    """A pool that is up, with ``nodes`` agents on which a lasting trainer has done ``step`` steps."""
    pool.up()
    for _ in range(nodes):
        pool.agent()
    name = pool.submit_lasting(options=options)
    pool.until_step(name, step, nodes=nodes)
    return name


def crash(pool: Pool) -> None:
    """Kill the coordinator; its supervisor restarts it."""
    pid = pool.coordinator()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    pool.back_from(pid)


def replayed(pool: Pool) -> Contents:
    """The pool's journal, which replays to the same commands."""
    contents = read(pool.run_dir / "journal.jsonl")
    assert replay(contents, fresh_core(contents)) == ""
    return contents
