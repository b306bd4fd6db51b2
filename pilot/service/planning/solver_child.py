"""The solver process's other side: reads problems from stdin, writes plans to stdout, ends with its parent."""

from __future__ import annotations

import logging
import sys

from pilot import planners
from pilot.core.errors import UserError
from pilot.core.plan.problem import Problem
from pilot.service.planning.child_process import Parent
from pilot.service.planning.solver_process import PlannerAnswer


def main(lifeline: int, planner: str, solver: str, limit_s: float) -> None:
    """Answer problems until stdin closes."""
    parent = Parent(lifeline)
    try:
        plan = planners.make(planner, solver, limit_s)
    except UserError as error:
        parent.answer(PlannerAnswer(error=str(error)))
        return
    parent.answer(PlannerAnswer())
    for problem in parent.questions(Problem):
        try:
            answer = PlannerAnswer(plan(problem))
        except Exception as error:  # whatever a solver's library raises, the coordinator must continue
            logging.exception("the planner failed")
            answer = PlannerAnswer(error=f"{type(error).__name__}: {error}")
        parent.answer(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
