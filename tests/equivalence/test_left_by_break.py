"""A loop that a variable has (``bar = tqdm(session.epochs(5))``) stays open after ``break``, until the script ends.
What is refused in a loop is refused after it, too, with a line that says how to end it.
"""

from __future__ import annotations

import pytest
import torch

from pilot.core.errors import UserError
from tests.equivalence.refusing import Made


def epoch(made: Made) -> None:
    for (x,) in made.loader:
        made.optimizer.zero_grad()
        made.loss(x).backward()
        made.session.step()


def trains_a_part_of_its_own(made: Made) -> None:
    optimizer = torch.optim.Adam(made.model[2].parameters())
    optimizer.zero_grad()
    made.loss(torch.ones(1, 2)).backward()
    optimizer.step()


def test_what_follows_it_is_refused_while_the_variable_has_it() -> None:
    made = Made()
    loop = made.session.epochs(5)
    for _ in loop:
        epoch(made)
        break
    with pytest.raises(UserError, match=r"creates another optimizer.*call session.stop\(\) instead"):
        trains_a_part_of_its_own(made)


def test_a_loop_that_session_stop_ends_is_over() -> None:
    made = Made()
    loop = made.session.epochs(5)
    for _ in loop:
        epoch(made)
        made.session.stop()
    trains_a_part_of_its_own(made)
    assert made.session.steps == 2


def test_a_script_may_go_on_with_its_loop() -> None:
    made = Made()
    loop = made.session.epochs(3)
    for _ in loop:
        epoch(made)
        break
    for _ in loop:
        epoch(made)
    assert made.session.steps == 6


def test_what_is_trained_between_two_passes_is_the_script_s_own() -> None:
    made, probe = Made(), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    for _ in made.session.epochs(2):
        epoch(made)
        probe(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert made.session.steps == 4
