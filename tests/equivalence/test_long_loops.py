"""A look at a script's code sees the same in a long function: with jumps over more than 255 code units, and with more
than 127 names, whose instructions have arguments in several parts.
"""

from __future__ import annotations

from textwrap import indent
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

LONG = "(0).real\n" * 40
MANY_NAMES = "for _ in ():\n" + "".join(f"    (0).name{number}\n" for number in range(200))
STOPS_EARLY = """
def script(ours, loader, step):
    {names}
    best, waited, kept, count = None, 0, [], 0
    for epoch in ours.epochs(2):
        for x, y in loader:
            step(x, y)
            count += 1
            {body}
        kept.append(epoch)
        best = epoch if best is None else best + epoch
        waited += 1
"""
NOTHING_KEPT = """
def script(ours, loader, step):
    {names}
    for epoch in ours.epochs(2):
        total, best = 0.0, None
        for x, y in loader:
            total += step(x, y)
            {body}
        mean = total / len(loader)
        if epoch:
            best = mean
        print(epoch, mean, best)
"""
HANDED_ON = """
def script(ours, loader, step):
    {names}
    for _ in ours.epochs(2):
        scale = 1.0
        for x, y in loader:
            step(x, y, scale)
            scale *= 0.9
            {body}
"""


def told(text: str, capsys: pytest.CaptureFixture[str], names: str, body: str) -> list[str]:
    """What the script is told, after its place."""
    for part, lines in (("{names}", names), ("{body}", body)):
        before = next(line for line in text.splitlines() if part in line)
        text = text.replace(before, indent(lines or "pass", before.partition(part)[0]))
    found: dict[str, Any] = {}
    exec(compile(text, __file__, "exec"), found)
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> float:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y) * scale
        loss.backward()
        ours.step(loss)
        return loss.item()

    found["script"](ours, loader, step)
    lines = capsys.readouterr().err.splitlines()
    return [line.partition(": the script")[2] for line in lines if line.startswith("pilot: ")]


@pytest.mark.parametrize(("text", "count"), [(STOPS_EARLY, 2), (HANDED_ON, 1), (NOTHING_KEPT, 0)])
def test_a_long_loop_and_a_function_with_many_names(text: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    short = told(text, capsys, "", "")
    assert len(short) == count
    assert told(text, capsys, "", LONG) == short
    assert told(text, capsys, MANY_NAMES, LONG) == short
