"""What seldom synchronisation costs in loss: the model of ``examples/char_gpt.py``, trained on the same samples and the
same batches, synchronously and in rounds.

The nodes are computed in turn in one process, by the reference arithmetic that the tests compare sessions with. A
sample is a crop of a text (by default the reference topics that Python installs for ``help()``), and its last tenth is
for validation. Runs with the same seed have the same initial parameters and the same order of samples. All runs make
the same number of steps of the same global batch; each node computes its share of it.
"""

from __future__ import annotations

import argparse
import json
import math
import pydoc_data.topics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from examples.char_gpt import CharGPT
from pilot.comm.int8 import BLOCK
from tests.seldom.reference import Node, Nodes

LENGTH = 32
MEASURED_EVERY = 200
"""Steps; then rounds of all settings end, so that no loss is that of one node."""
BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1 + 4 / BLOCK}
"""Of a value."""


@dataclass(frozen=True)
class Setting:
    """How the nodes synchronise; ``every`` 0: in every step, by their gradients."""

    nodes: int = 4
    every: int = 50
    outer_lr: float = 0.7
    momentum: float = 0.8
    nesterov: bool = True
    wire: str = "float32"

    def __str__(self) -> str:
        if not self.every:
            return "synchronous"
        nesterov = ", nesterov" * self.nesterov
        return f"{self.nodes} nodes, every {self.every}, {self.outer_lr}/{self.momentum}{nesterov}, {self.wire}"


@dataclass(frozen=True)
class Task:
    """What is trained: a text in numbers, and for how long."""

    text: torch.Tensor
    validation: tuple[torch.Tensor, torch.Tensor]
    alphabet: int
    steps: int
    batch: int
    peak_lr: float

    def batches(self, seed: int, nodes: int) -> Iterator[list[torch.Tensor]]:
        """Yield the batch of each step, divided among the nodes."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.text) - LENGTH, generator=generator)[: self.steps * self.batch]
        for places in order.split(self.batch):
            yield list(places.chunk(nodes))

    def gradients(self, node: Node, places: torch.Tensor) -> int:
        """Compute a node's gradients of one batch; return its samples."""
        crops = self.text[places[:, None] + torch.arange(LENGTH + 1)]
        inputs, targets = crops[:, :-1], crops[:, 1:]
        nn.functional.cross_entropy(node.model(inputs).flatten(0, 1), targets.reshape(-1)).backward()
        nn.utils.clip_grad_norm_(node.model.parameters(), 1.0)
        return len(places)

    def node(self, seed: int) -> Node:
        """Return a node with the seed's initial parameters."""
        torch.manual_seed(seed)
        model = CharGPT(self.alphabet, LENGTH)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.peak_lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)
        return Node(model, optimizer, self.gradients, schedule)

    def rate(self, step: int, warmup: int = 100) -> float:
        """Return the learning rate relative to its peak: linear warm-up, then cosine decay to a tenth."""
        if step < warmup:
            return (step + 1) / warmup
        return 0.1 + 0.9 * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup))) / 2

    @torch.no_grad()
    def loss(self, model: nn.Module) -> float:
        """Return the validation loss, in nats per character."""
        inputs, targets = self.validation
        return float(nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.reshape(-1)))


def task_of(text: str, steps: int, batch: int, peak_lr: float) -> Task:
    """Return the task of learning ``text``."""
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(character) for character in text])
    split = len(codes) * 9 // 10
    held_out = codes[split:].unfold(0, LENGTH + 1, LENGTH)
    return Task(codes[:split], (held_out[:, :-1], held_out[:, 1:]), len(alphabet), steps, batch, peak_lr)


def rounding(wire: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` as it arrives when it is sent in this type."""
    if wire != "int8":
        return tensor.to(getattr(torch, wire)).to(tensor.dtype)
    flat = tensor.flatten()
    blocks = nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    return ((blocks / scale).round() * scale).flatten()[: len(flat)].view_as(tensor)


def trained(task: Task, setting: Setting, seed: int) -> list[tuple[int, float]]:
    """Train once; return validation losses on the way, by samples."""
    together = Nodes(
        [task.node(seed) for _ in range(setting.nodes if setting.every else 1)],
        setting.outer_lr,
        setting.momentum,
        setting.nesterov,
        lambda tensor: rounding(setting.wire, tensor),
    )
    model = together.nodes[0].model
    curve = [(0, task.loss(model))]
    for step, parts in enumerate(task.batches(seed, len(together.nodes)), 1):
        for node, places in zip(together.nodes, parts, strict=True):
            node.train([places])
        is_last = step == task.steps
        if setting.every and (step % setting.every == 0 or is_last):
            together.close()
        if step % MEASURED_EVERY == 0 or is_last:
            curve.append((step * task.batch, task.loss(model)))
    return curve


def measured(task: Task, setting: Setting, seeds: int) -> dict[str, Any]:
    """Return what a setting gives, by seed, and where it came with the first seed."""
    began_s = time.perf_counter()
    runs = [trained(task, setting, seed) for seed in range(seeds)]
    parameters = sum(parameter.numel() for parameter in task.node(0).model.parameters())
    exchanges = math.ceil(task.steps / setting.every) if setting.every else task.steps
    return {
        **asdict(setting),
        "name": str(setting),
        "losses": [curve[-1][1] for curve in runs],
        "curve": runs[0],
        "MB sent by a node": exchanges * parameters * BYTES[setting.wire] * 2 * (1 - 1 / setting.nodes) / 1e6,
        "seconds": time.perf_counter() - began_s,
    }


def compare(one: dict[str, Any], synchronous: dict[str, Any]) -> None:
    """Add the mean difference to synchronous training, over runs with the same seeds; and its standard error."""
    pairs = zip(one["losses"], synchronous["losses"], strict=False)
    differences = [100 * (loss / its - 1) for loss, its in pairs]
    one["loss_above_synchronous_percent"] = mean(differences)
    one["standard_error_percent"] = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None


def table() -> list[Setting]:
    """Return the settings to measure beside those of the docs: each differs from these in one thing."""
    every, nodes, wires = (10, 20, 100, 200), (2, 8), ("bfloat16", "int8")
    others = [Setting(every=one) for one in every] + [Setting(nodes=one) for one in nodes]
    outer = Setting(momentum=0.9), Setting(outer_lr=1.0, momentum=0.0, nesterov=False)
    return [*others, *(Setting(wire=one) for one in wires), *outer]


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw validation losses over samples, and over bytes."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    by_samples, by_bytes = figure.subplots(1, 2, sharey=True)
    of_docs = Setting.nodes, Setting.wire, Setting.momentum
    drawn = [one for one in results if (one["nodes"], one["wire"], one["momentum"]) == of_docs]
    for number, one in enumerate(sorted(drawn, key=lambda one: one["every"])):
        samples, losses = zip(*one["curve"][1:], strict=True)
        label = f"every {one['every']} steps" if one["every"] else "in every step"
        line: dict[str, Any] = {"label": label, "color": f"C{number - 1}" if number else "black"}
        by_samples.plot(samples, losses, **line)
        by_bytes.plot([one["MB sent by a node"] * at / samples[-1] for at in samples], losses, **line)
    by_samples.set(xlabel="samples of all nodes", ylabel="validation loss (nats)", yscale="log")
    by_samples.xaxis.set_major_formatter("{x:,.0f}")
    by_bytes.set(xlabel=f"MB sent by each of {Setting.nodes} nodes", xscale="log")
    by_bytes.xaxis.set_major_formatter("{x:,.0f}")
    by_samples.legend(title="exchange", frameon=False)
    for axes in (by_samples, by_bytes):
        axes.yaxis.set_major_formatter("{x:.1f}")
        axes.yaxis.set_minor_formatter("{x:.1f}")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def text_of(path: Path | None) -> str:
    """Return what the model learns."""
    if path is not None:
        return path.read_text()
    return "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))


def main() -> None:
    """Print a line per setting, and write the JSON and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, help="where to draw validation losses over samples and over bytes")
    parser.add_argument("--text", type=Path, help="what the model learns (default: Python's reference topics)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the settings of the docs")
    parser.add_argument("--table-seeds", type=int, default=1, help="seeds of the other settings; 0: leave them out")
    parser.add_argument("--steps", type=int, default=2000, help="steps of each run")
    parser.add_argument("--batch", type=int, default=32, help="samples of all nodes in a step")
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate of AdamW")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = task_of(text_of(arguments.text), arguments.steps, arguments.batch, arguments.lr)
    seeds = {Setting(every=0): arguments.seeds, Setting(): arguments.seeds}
    seeds |= dict.fromkeys(table() if arguments.table_seeds else [], arguments.table_seeds)
    results: list[dict[str, Any]] = []
    for setting, count in seeds.items():
        results.append(one := measured(task, setting, count))
        compare(one, results[0])
        print(
            f"{one['name']:>50}: loss {mean(one['losses']):.4f}, {one['loss_above_synchronous_percent']:+.2f} % against"
            f" synchronous ({count} seeds), {one['MB sent by a node']:,.0f} MB",
            flush=True,
        )
    if arguments.picture:
        draw(results, arguments.picture)
    if arguments.json:
        about = {"python": sys.version.split()[0], "torch": torch.__version__, "steps": task.steps, "batch": task.batch}
        arguments.json.write_text(json.dumps({**about, "peak_lr": task.peak_lr, "settings": results}, indent=2))


if __name__ == "__main__":
    main()
