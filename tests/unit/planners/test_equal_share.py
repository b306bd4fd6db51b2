import pytest

from pilot.core.plan.problem import Candidate, PlanStatus
from pilot.planners import choice
from tests.unit.planners.problems import candidate, problem


@pytest.mark.parametrize(
    ("nodes", "candidates", "expected"),
    [
        (9, [candidate(), candidate(), candidate()], [3, 3, 3]),
        (8, [candidate(), candidate(), candidate()], [4, 2, 2]),
        (2, [candidate(), candidate(), candidate()], [2, 0, 0]),
        (12, [candidate(high=2), candidate(), candidate()], [2, 6, 4]),
        (99, [candidate(high=2), candidate(high=3), candidate(high=4)], [2, 3, 4]),
        (11, [candidate(), candidate(high=1), candidate()], [7, 1, 3]),
        (9, [candidate(low=4), candidate(low=4), candidate(low=4)], [8, 0, 0]),
        (9, [candidate(low=8), candidate(), candidate()], [0, 6, 3]),
        (3, [candidate(low=4)], [0]),
        (0, [candidate(), candidate()], [0, 0]),
        (4, [], []),
    ],
)
def test_shares(nodes: int, candidates: list[Candidate], expected: list[int]) -> None:
    given = problem(nodes, *candidates)
    made = choice.plan(given)
    assert [n for _, n in made.counts] == expected
    assert given.feasible(made.as_dict())
    assert made.objective == given.objective(made.as_dict())


def test_nothing_is_claimed_of_its_quality() -> None:
    made = choice.plan(problem(4, candidate()))
    assert (made.status, made.gap) == (PlanStatus.INCUMBENT, None)
