"""What each node of ``benchmarks.seldom`` runs: it records each inner step, and waits for its turns if it has any."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import pilot.train
from benchmarks.subjects import Endless, make, sgd
from benchmarks.turns import Seat
from pilot.submission.seldom import parsed

SUBJECT, BATCH = "4M", 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sync", default="", help="as for pilot submit; empty: an exchange in each step")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--turn", type=int, default=0, help="rounds of a turn; 0: it has no turns")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = make(SUBJECT)
    optimizer = sgd(model)
    sync: dict[str, Any] = {"sync": parsed(arguments.sync)} if arguments.sync else {}
    session = pilot.train.session(model, optimizer, lr_rule="none", **sync)
    loader = session.loader(Endless(SUBJECT), batch_size=BATCH)
    seat = Seat(arguments.folder, int(Path(os.environ["PILOT_WORKER_SOCKET"]).stem[1:])) if arguments.turn else None
    turns, steps, begin_s = 0, 0, 0.0
    with (arguments.folder / f"steps.{os.getpid()}").open("a", buffering=1) as log:
        for _ in session.epochs(1000):
            for x, y in loader:
                if seat and round_of(session) >= turns * arguments.turn:
                    if turns:
                        seat.tell({"steps": steps, "begin_s": begin_s, "end_s": time.monotonic()})
                    seat.wait()
                    turns, steps, begin_s = turns + 1, 0, time.monotonic()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                if session.step(loss):
                    steps += 1
                    print(time.monotonic(), session.size, round_of(session), file=log)


def round_of(session: Any) -> int:
    """Return the number of the round."""
    return int(session._training.position.round)


if __name__ == "__main__":
    main()
