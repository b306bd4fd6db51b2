"""Which plain attributes of modules belong to the state: those that training changes."""

from __future__ import annotations

from torch import nn

from pilot.train.module_numbers import ModuleNumbers


def made(rank: int) -> tuple[nn.Linear, ModuleNumbers]:
    model = nn.Linear(1, 1)
    model.phase, model.temperature = "warm-up", 1.0
    numbers = ModuleNumbers(model)
    model.rank = rank
    return model, numbers


def test_what_a_script_sets_before_its_first_step_is_its_own() -> None:
    giver, given = made(rank=0)
    given.begin()
    giver.temperature = 0.5
    assert given.capture() == {"": {"temperature": 0.5}}

    taker, taken = made(rank=1)
    taken.restore(given.capture())
    taken.begin()
    assert (taker.rank, taker.temperature, taker.phase) == (1, 0.5, "warm-up")


def test_what_was_taken_over_is_given_on_and_what_changed_here_alone_is_put_back() -> None:
    model, numbers = made(rank=0)
    numbers.restore({"": {"phase": "fine"}})
    numbers.begin()
    assert numbers.capture() == {"": {"phase": "fine"}}
    model.temperature = 0.1
    numbers.restore({"": {"phase": "fine"}})
    assert (model.temperature, model.phase) == (1.0, "fine")
