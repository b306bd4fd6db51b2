"""The solver process's other side: reads problems from stdin, writes plans to stdout, ends with its parent."""

from __future__ import annotations

import logging
import sys
from typing import BinaryIO

import msgspec

from pilot import planners
from pilot.core.errors import UserError
from pilot.core.problem import Problem
from pilot.io.framing import HEAD_BYTES, length_of
from pilot.service.child_process import end_with_parent, private_stdout, write
from pilot.service.solver_process import PlannerAnswer


def main(lifeline: int, planner: str, solver: str, limit_s: float) -> None:
    """Answer problems until stdin closes."""
    end_with_parent(lifeline)
    requests, answers = sys.stdin.buffer, private_stdout()
    try:
        plan = planners.make(planner, solver, limit_s)
    except UserError as error:
        _write(answers, PlannerAnswer(error=str(error)))
        return
    _write(answers, PlannerAnswer())
    while len(head := requests.read(HEAD_BYTES)) == HEAD_BYTES:
        problem = msgspec.msgpack.decode(requests.read(length_of(head)), type=Problem)
        try:
            answer = PlannerAnswer(plan(problem))
        except Exception as error:  # whatever a solver's library raises, the coordinator must continue
            logging.exception("the planner failed")
            answer = PlannerAnswer(error=f"{type(error).__name__}: {error}")
        _write(answers, answer)


def _write(answers: BinaryIO, answer: PlannerAnswer) -> None:
    write(answers, msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
