from dataclasses import replace

from pilot.core.plan.problem import place
from tests.unit.planners.mixed_problems import mixed_candidate, random_problem


def test_who_can_use_few_types_is_placed_first() -> None:
    any_type, one = mixed_candidate((0, 0), (1.0, 1.0), low=2), mixed_candidate((0, 0), (1.0, 0.0), low=2)
    assert place([any_type, one], (2, 2)) == [(0, 2), (2, 0)]
    assert place([any_type, one, one], (3, 9)) is None
    assert place([], (3, 9)) == []


def test_it_is_placed_where_it_is_and_on_several_types_if_it_must() -> None:
    held = mixed_candidate((0, 1), (1.0, 1.0), low=2)
    assert place([held], (2, 2)) == [(0, 2)]
    assert place([held], (2, 1)) == [(1, 1)]
    assert place([replace(held, one_type=True)], (2, 1)) == [(2, 0)]
    assert place([replace(held, one_type=True)], (1, 1)) is None
    assert place([replace(held, pin=3)], (2, 2)) == [(1, 2)]
    assert place([replace(held, sizes=(2, 4))], (2, 2)) == [(0, 2)]


def test_the_order_of_the_trainers_does_not_matter() -> None:
    """What the core finds to fit together, in the order of turns, a planner finds, too."""
    for seed in range(200):
        problem = random_problem(seed)
        found = [place(some, problem.types_nodes) for some in (problem.candidates, problem.candidates[::-1])]
        assert found[0] == (found[1] and found[1][::-1])


def test_types_that_few_others_can_use_are_taken_first() -> None:
    either, both = mixed_candidate((0, 0), (1.0, 1.0), low=2), mixed_candidate((0, 0), (1.0, 1.0), low=3)
    one = mixed_candidate((0, 0), (1.0, 0.0))
    assert place([either, both, one], (2, 4)) == [(1, 1), (0, 3), (1, 0)]
