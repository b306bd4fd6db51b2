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
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
import pilot.train

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session = pilot.train.session(model, optimizer)
loader = session.loader(TensorDataset(torch.ones({samples}, 4)), global_batch_size=16)
for epoch in session.epochs({epochs}):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
{inside}
        session.step(loss)
{after}
"""


def script(pool: Pool, inside: str = "", after: str = "", *, epochs: int = 2, samples: int = 32) -> Path:
    """A script whose loop does ``inside`` in each step, and that does ``after`` when it is over."""
    path = pool.folder / "loop.py"
    inside = textwrap.indent(textwrap.dedent(inside), 8 * " ")
    path.write_text(LOOP.format(samples=samples, epochs=epochs, inside=inside, after=textwrap.dedent(after)))
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
