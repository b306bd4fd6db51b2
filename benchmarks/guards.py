"""The cost per parameter of the session's guards and its alarm, for a model of 1,000 small ones, in one process.

The guards: placeholders in ``p.grad``, the checks of gradients, and that the trained set stays the same. With several
ranks, gradients are also scaled into the arena. The alarm: one look, as a share of the steps between two looks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from pilot.train.alike.replicated import Replicated
from pilot.train.gradients.exchange import Exchange
from pilot.train.gradients.step_words import Words
from pilot.train.state.stepper import LearningRate, Steppers
from pilot.train.state.trained_set import TrainedSet
from pilot.train.state.training import Training
from pilot.train.steps.alarm import EVERY_STEPS

PARAMETERS, ELEMENTS, ROUNDS = 1000, 8, 100
LARGE = (1024, 2048, 2048, 1024)
WORDS = Words.of(0, False, 0.0)


def guards(alone: bool) -> dict[str, float]:
    """Median µs per parameter and step, by part; gradients are made beforehand."""
    parameters = [nn.Parameter(torch.ones(ELEMENTS)) for _ in range(PARAMETERS)]
    gradients = [torch.ones(ELEMENTS) for _ in parameters]
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    exchange, trained = Exchange(parameters), TrainedSet(nn.ParameterList(parameters), Steppers(optimizer))

    def begin() -> None:
        exchange.begin(lambda: None, alone=alone)
        exchange.begin_batch(1.0 if alone else 0.5, last=True)

    def collect() -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        began_s = time.thread_time()
        exchange.flush()
        parts["collect"].append(time.thread_time() - began_s)

    parts: dict[str, list[float]] = {"collect": []}
    steps: dict[str, Callable[[], Any]] = {
        "begin": begin,
        "zero_grad": optimizer.zero_grad,
        "": collect,
        "look again": exchange.flush,
        "what is trained": trained.check_step,
        "words": lambda: exchange.finish(WORDS),
        "give back": exchange.take,
    }
    for _ in range(ROUNDS):
        for name, do in steps.items():
            began_s = time.thread_time()
            do()
            parts.setdefault(name, []).append(time.thread_time() - began_s)
    del parts[""], parts["zero_grad"]
    cost = {name: median(seconds) / PARAMETERS * 1e6 for name, seconds in parts.items()}
    return cost | {"sum": sum(cost.values())}


def alarm() -> dict[str, float]:
    """For an MLP with Adam: ms per step and per look, and the share of looks in the time; also with an average."""
    layers = [nn.Linear(a, b) for a, b in pairwise(LARGE)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(32, LARGE[0])

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    training = Training(model, optimizer, None, None, LearningRate("none", 0))
    held = Replicated(training)
    step_s, look_s = _seconds(step), _seconds(held.numbers)
    training.tracked["average"] = AveragedModel(model)
    more_s = _seconds(held.numbers)
    times = {"step_ms": step_s * 1e3, "look_ms": look_s * 1e3, "look_with_average_ms": more_s * 1e3}
    shares = {"share": look_s, "share_with_average": more_s}
    return times | {name: one_s / (one_s + EVERY_STEPS * step_s) for name, one_s in shares.items()}


def _seconds(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(11):
        began_s = time.thread_time()
        work()
        times.append(time.thread_time() - began_s)
    return median(times)


def main() -> None:
    """Print and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {"alone_us": guards(alone=True), "rank_us": guards(alone=False), "alarm": alarm()}
    for name, result in results.items():
        print(f"{name:>9}: " + ", ".join(f"{part} {value:.3g}" for part, value in result.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
