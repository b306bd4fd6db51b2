from dataclasses import replace

from pilot.core.plan.placing import place
from tests.unit.planners.mixed_problems import mixed_candidate


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


def test_a_choice_that_leaves_no_room_is_taken_back() -> None:
    """The first, on the type that it holds, would leave the second with nodes of two types."""
    first, second = mixed_candidate((1, 0), (1.0, 1.0), low=2), mixed_candidate((0, 0), (1.0, 1.0), low=3)
    assert place([first, replace(second, one_type=True)], (3, 2)) == [(0, 2), (3, 0)]
