"""The script of workers in tests of rounds: ``script.py FOLDER CASE HOLDS SLOW``. It logs each inner step; it holds at
given points until it is released or killed, and is slow on some nodes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.train.ranks.elastic import Elastic
from pilot.train.rounds.rounds import Rounds
from pilot.train.session import Session
from tests.seldom.case import Case, Values, model_values, values
from tests.seldom.log import Hold, Log, Record
from tests.seldom.reference import Node


def play(log: Log) -> None:
    """Make nodes hold where that is to be, and note which rounds they have held."""
    rows, summed, step = Elastic.rows, Elastic.summed, Rounds._hold

    def held_rows(group: Any, row: list[int]) -> list[list[int]]:
        number = group._training.position.round
        log.hold(number, "before")
        its = rows(group, row)
        log.hold(number, "after")
        return its

    def held_sum(group: Any) -> bool:
        log.hold(group._training.position.round, "in sum")
        return summed(group)

    def noted(its: Any, one: Any, *rest: Any) -> Any:
        row = step(its, one, *rest)
        log.held(one.position.round)
        return row

    _replace(Rounds, "_hold", noted)
    _replace(Elastic, "rows", held_rows)
    _replace(Elastic, "summed", held_sum)


def gate(folder: Path) -> Path:
    """Once it exists, no node is slow."""
    return folder / "gate"


def _replace(kind: type, name: str, method: Callable[..., Any]) -> None:
    setattr(kind, name, method)


def train(case: Case, log: Log) -> tuple[Session, Node]:
    """Train, and return the session and its objects."""
    node = case.node()
    x, y = case.data()
    arguments = (node.scheduler,) if node.scheduler is not None else ()
    session = pilot.train.session(node.model, node.optimizer, *arguments, schedule="step", seed=1, sync=case.sync)
    if node.average is not None:
        session.track("average", node.average)
    after: list[Values] = []
    node.optimizer.register_step_post_hook(lambda *_: after.__setitem__(slice(None), [model_values(node)]))
    slow_s = json.loads(sys.argv[4]).get(log.node, 0.0)
    loader = session.loader(TensorDataset(x, y, torch.arange(len(x))), case.batch, shuffle=False)
    for _ in session.epochs(case.epochs):
        number, step, opened = -1, 0, 0
        for inputs, targets, samples in loader:
            position = session._training.position
            if position.round != number:
                number, step, opened = position.round, -1, position.step
            step += 1
            log.hold(number, "step", step)
            time.sleep(0.0 if gate(log.folder).exists() else slow_s)
            epoch, before = position.epoch, values(node)
            node.optimizer.zero_grad()
            loss = nn.functional.mse_loss(node.model(inputs), targets)
            loss.backward()
            if session.step(loss):
                log.add(Record(log.node, number, opened, epoch, samples.tolist(), before, *after, time.monotonic()))
                if node.average is not None:
                    node.average.update_parameters(node.model)
    return session, node


def main() -> None:
    folder, case = Path(sys.argv[1]), Case(**json.loads(sys.argv[2]))
    torch.set_num_threads(1)
    name = Path(os.environ["PILOT_WORKER_SOCKET"]).stem
    holds = [hold for one in json.loads(sys.argv[3]) if (hold := Hold(**one)).node == name]
    log = Log(folder, name, holds)
    play(log)
    with case.numbers():
        session, node = train(case, log)
        ledger = [tuple(row) for row in session._training.ledger.rows]
        part = folder / f"part-{log.node}"
        torch.save({"ledger": ledger, "values": values(node), "rank": session.rank}, part)
        part.rename(folder / f"end-{log.node}")


if __name__ == "__main__":
    main()
