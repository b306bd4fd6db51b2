"""The commands in the documents can be typed, and their Python code runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pilot.cli.main import cli
from tests.unit.documented import ROOT, Block, begins_as_typed, blocks, module_options, pilot_commands, shell_lines

SHARED = """
import math, os
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.data import TensorDataset
import pilot.train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.backbone(x)))


torch.manual_seed(0)
model, criterion = Net(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = crops = validation = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
"""
SESSION = SHARED + "session = pilot.train.session(model, optimizer)\n"
LOADER = SESSION + "loader = session.loader(dataset, global_batch_size=32)\n"
NOTICED = """
import os, signal
from types import SimpleNamespace


def batches():
    yield 0, 0
    raise SystemExit("it has not saved")


rank, loader, save = 0, batches(), lambda: os._exit(0)
optimizer = SimpleNamespace(step=lambda: None)
"""
STEP = "optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward(); session.step(loss)"
CONTEXTS: dict[tuple[str, int], tuple[str, dict[str, str]]] = {
    ("README.md", 0): ("", {"int(sys.argv[1])": "1"}),
    ("elastic/tutorial.md", 0): ("", {}),
    ("elastic/tutorial.md", 1): ("", {}),
    ("elastic/optimizers.md", 0): (
        SHARED + "muon = torch.optim.Muon([model.head.weight, model.backbone.weight])\n"
        "adamw = torch.optim.AdamW([model.head.bias, model.backbone.bias])\n",
        {},
    ),
    ("elastic/optimizers.md", 1): (
        LOADER,
        {
            "...\n        session.step(loss)": "for epoch in session.epochs(1):\n    for x, y in loader:\n"
            "        optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward()\n        session.step(loss)"
        },
    ),
    ("elastic/data.md", 0): (
        SESSION + "max_iters, learning_rate = 2, lambda iteration: 0.1 / (1 + iteration)\n",
        {},
    ),
    ("elastic/models.md", 0): (LOADER, {"...": STEP, "epochs(100)": "epochs(2)"}),
    ("elastic/optimizers.md", 2): (LOADER, {}),
    ("elastic/models.md", 1): (
        SHARED + "model.backbone.requires_grad_(False)\noptimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)\n"
        "session = pilot.train.session(model, optimizer)\nloader = session.loader(dataset, global_batch_size=32)\n",
        {"...": STEP},
    ),
    ("elastic/optimizers.md", 3): (LOADER, {}),
    ("elastic/models.md", 3): (SHARED + "model.blocks = [model.backbone]\n", {}),
    ("elastic/models.md", 2): (SHARED, {}),
    ("elastic/torchrun.md", 0): (NOTICED, {"...": "os.kill(os.getpid(), signal.SIGUSR1)"}),
    ("elastic/mixed-nodes.md", 0): (SESSION, {}),
    ("elastic/seldom.md", 0): (SHARED, {}),
    ("how/planners.md", 0): ("", {}),
    ("reference/site-file.md", 0): ("", {}),
    ("admin/types-and-pools.md", 0): ("", {}),
}
"""(page, number) → code to run before the block, and replacements for its ellipses."""

RUN_ELSEWHERE = {
    ("reference/api.md", 0): "tests/e2e/test_from_python.py, on a pool",
    ("elastic/torchrun.md", 1): "tests/frameworks, where Lightning and transformers are installed",
    ("reference/checkpoint-format.md", 0): "tests/integration/test_checkpoint_readers.py, on a checkpoint",
    ("reference/checkpoint-format.md", 1): "tests/integration/test_checkpoint_readers.py, on a checkpoint",
    ("reference/checkpoint-format.md", 2): "tests/integration/test_checkpoint_readers.py, on a checkpoint",
    ("reference/checkpoint-format.md", 3): "tests/integration/test_dcp_export.py, on a checkpoint",
}
"""Blocks that need something unavailable here → the tests that run such code. Here they are only compiled."""


@pytest.mark.parametrize(("page", "words"), [pytest.param(*one, id=" ".join(one[1])) for one in pilot_commands()])
def test_a_command_that_a_page_shows_can_be_typed(page: str, words: list[str]) -> None:
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"{page}: there is no pilot {words[0]}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context, **command.context_settings)
    command.make_parser(context).parse_args(list(words))


def test_a_block_of_commands_has_a_command_on_each_line() -> None:
    assert [(page, line) for page, line in shell_lines() if not begins_as_typed(line)] == []


def test_the_options_of_a_benchmark_that_a_page_shows_exist() -> None:
    shown = set(module_options())
    assert len(shown) > 10
    assert [
        (page, module, option)
        for page, module, option in sorted(shown)
        if f'"{option}"' not in (ROOT / f"{module.replace('.', '/')}.py").read_text()
    ] == []


@pytest.mark.parametrize(
    "block", [b for b in blocks("python") if (b.page, b.number) in CONTEXTS], ids=lambda b: f"{b.page}-{b.number}"
)
def test_the_python_of_a_page_runs(block: Block, tmp_path: Path) -> None:
    before, replaced = CONTEXTS[block.page, block.number]
    text = block.text
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    _run(before + text, tmp_path)


def test_no_block_is_left_out() -> None:
    found = {(block.page, block.number): block.text for block in blocks("python")}
    assert set(found) == set(CONTEXTS) | set(RUN_ELSEWHERE)
    for place in RUN_ELSEWHERE:
        compile(found[place], str(place), "exec")


def test_the_example_of_the_readme_is_a_file() -> None:
    (shown,) = (block.text for block in blocks("python") if block.page == "README.md")
    assert shown == (ROOT / "examples" / "first.py").read_text()
    assert len(shown.splitlines()) <= 25


def test_the_differences_of_the_tutorial_are_those_of_its_two_scripts() -> None:
    plain, elastic = (set(map(str.strip, one.text.splitlines())) for one in _of_tutorial("python"))
    sides = {"-": [plain], "+": [elastic], " ": [plain, elastic]}
    shown = [line for one in _of_tutorial("diff") for line in one.text.splitlines()]
    assert len(shown) > 10
    assert [line for line in shown for side in sides[line[:1] or " "] if line[1:].strip() not in side] == []


def _of_tutorial(language: str) -> list[Block]:
    return [block for block in blocks(language) if block.page == "elastic/tutorial.md"]


def _run(code: str, folder: Path) -> None:
    script = folder / "block.py"
    script.write_text(code)
    ended = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, f"{code}\n{ended.stderr}"
