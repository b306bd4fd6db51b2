"""The solver process's other side: reads problems from stdin, writes plans to stdout, ends with its parent."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
from typing import BinaryIO

import msgspec

from pilot import planners
from pilot.core.errors import UserError
from pilot.core.problem import Problem
from pilot.io.framing import HEAD_BYTES, framed, length_of
from pilot.service.solver_process import PlannerAnswer


def main(lifeline: int, planner: str, solver: str, limit_s: float) -> None:
    """Answer problems until stdin closes."""
    end_with_parent(lifeline)
    requests, answers = sys.stdin.buffer, _private_stdout()
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
        except Exception as error:  # whatever a solver's library raises, the coordinator continues without it
            logging.exception("the planner failed")
            answer = PlannerAnswer(error=f"{type(error).__name__}: {error}")
        _write(answers, answer)


def end_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process group when the other end of the pipe ``lifeline`` closes."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_inheritable(lifeline, False)


def _private_stdout() -> BinaryIO:
    """The pipe to the parent; what a solver prints goes to stderr instead."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _write(answers: BinaryIO, answer: PlannerAnswer) -> None:
    answers.write(framed(msgspec.msgpack.encode(answer)))
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
