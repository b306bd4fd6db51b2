"""Loops that a script leaves, by ``break`` or ``session.stop``: a node that joins there, or a run that resumes there,
decides as the others have done, and not once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from pilot.core.errors import UserError
from pilot.train.ranks import script_end
from pilot.train.ranks.script_end import Released
from tests.equivalence.loops import DATA, Loop, Make, Plain, Result, X, Y, assert_equal, session, tensors
from tests.equivalence.refusing import Made
from tests.equivalence.rows import assert_agree, in_world, resumed
from tests.unit.train.storm import Keep


def error_of(loop: Loop) -> float:
    with torch.no_grad():
        return mse_loss(loop.model(X), Y).item()


# --- the end of the script ---


@pytest.mark.parametrize(
    ("leaving", "done"),
    [(None, 1), (SystemExit(), 1), (SystemExit(0), 1), (SystemExit(1), 0), (SystemExit("no"), 0), (Released(), 0)],
)
def test_a_left_loop_is_finished_once_at_a_good_end(leaving: SystemExit | None, done: int) -> None:
    calls: list[int] = []
    script_end.at_good_end(lambda: calls.append(1))
    for _ in range(2):
        script_end.script_ended(leaving)
    assert len(calls) == done


def test_a_break_ends_the_epoch_and_the_training() -> None:
    loop = Made()
    position = loop.session._training.position
    for epoch in loop.session.epochs(5):
        loop.epoch()
        if epoch == 1:
            break
    assert (position.epoch, position.left) == (1, False)
    script_end.script_ended()
    assert (position.epoch, position.left, loop.session.steps) == (2, True, 4)


def test_stop_makes_the_epoch_the_last_one_also_in_a_run_that_resumes() -> None:
    loop, other = Made(), Made()
    loop.train(5, last=lambda epoch: epoch == 2 and loop.session.stop())
    assert (loop.session.steps, loop.session._training.position.epoch) == (6, 3)
    other.session._training.restore(loop.session._training.capture())
    assert [*other.session.epochs(5)] == []


# --- a loop in a variable (``bar = tqdm(session.epochs(5))``), which stays open after ``break`` ---


def trains_a_part_of_its_own(loop: Loop) -> None:
    optimizer = torch.optim.Adam(loop.model[2].parameters())
    optimizer.zero_grad()
    loop.loss(torch.ones(1, 2)).backward()
    optimizer.step()


def test_an_open_loop_refuses_another_optimizer_until_the_script_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made, finished = Made(), list[int]()
    monkeypatch.setattr(made.session._loop, "_leave", lambda: finished.append(made.session.steps))
    loop = made.session.epochs(5)
    for _ in loop:
        made.epoch()
        break
    with pytest.raises(UserError, match=r"creates another optimizer.*call session.stop\(\) instead"):
        trains_a_part_of_its_own(made)
    assert not finished
    script_end.script_ended()
    assert finished == [2]


def test_a_loop_that_session_stop_ends_is_over() -> None:
    made = Made()
    loop = made.session.epochs(5)
    for _ in loop:
        made.epoch()
        made.session.stop()
    trains_a_part_of_its_own(made)
    assert made.session.steps == 2


def test_a_script_may_continue_its_loop_and_train_another_model_between_epochs() -> None:
    made, probe = Made(), torch.nn.Linear(2, 1)
    optimizer, loop = torch.optim.SGD(probe.parameters(), lr=0.1), made.session.epochs(3)
    for _ in loop:
        made.epoch()
        break
    for _ in loop:
        made.epoch()
        probe(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert made.session.steps == 6


# --- at an epoch's end, by a tracked object ---


class Patience:
    """Ends the training at the first epoch that is not better than the ones before."""

    def __init__(self) -> None:
        self.best, self.is_over = math.inf, False

    def note(self, loss: float) -> None:
        self.best, self.is_over = min(loss, self.best), loss >= self.best

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def stops_early(make: Make, *, evaluates: bool) -> Result:
    """It asks once in each epoch."""
    patience = Patience()
    loop = Loop(make, tracked={"patience": patience})
    for _ in loop.session.epochs(3):
        loop.epoch()
        if evaluates and make is not Plain:
            loop.session.evaluate(DATA, loop.measure)
        patience.note(error_of(loop))
        if patience.is_over:
            break
    return tensors(model=loop.model, patience=patience)


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_node_that_joins_or_dies_there(evaluates: bool) -> None:
    assert_equal(partial(stops_early, evaluates=evaluates), operations=range(5, 11), joins=range(5, 13))


def leaves_by_break() -> Result:
    """After its code at an epoch's end."""
    loop = Loop()
    for epoch in loop.session.epochs(3):
        loop.epoch()
        loop.session.state["losses"] = [*loop.session.state.get("losses", []), error_of(loop)]
        if epoch == 1:
            break
    result = tensors(model=loop.model, losses=loop.session.state["losses"])
    script_end.script_ended()
    return result


@pytest.mark.parametrize("point", range(8))
def test_a_run_that_resumes_after_the_loop_was_left(point: int) -> None:
    """Or from any moment between the last step and that: the code at the epoch's end is in the state, or runs."""
    for count in (1, 2):
        expected, ranks = resumed(leaves_by_break, Keep(12, point), count)
        assert_agree(ranks, expected, 0.0)


# --- at an epoch's beginning, by the model there ---


def by_its_model(make: Make, limit: float, *, stops: bool = False) -> int:
    """The number of steps of a script that asks at each epoch's beginning."""
    loop = Loop(make)
    for _ in loop.session.epochs(5):
        reached = error_of(loop) < limit
        if reached and not stops:
            break
        if reached:
            loop.session.stop()
        loop.epoch()
    if make is session:
        script_end.script_ended()
    return int(loop.session.steps)


def run(script: Callable[[], int], begin: Any = None) -> tuple[Any, int]:
    """Also returns the state after two steps of the second epoch, which has six."""
    world, (steps,) = in_world(script, 1, [], begin=begin, keep=Keep(8, 0))
    return world.kept_state, steps


LIMIT = error_of(Loop(Plain).train(2)) + 1e-9
"""The error of an undisturbed run after two epochs."""


def test_a_run_that_resumes_in_an_epoch_does_not_leave_at_its_beginning() -> None:
    kept, steps = run(lambda: by_its_model(session, LIMIT))
    assert steps == 12
    assert run(lambda: by_its_model(session, LIMIT), kept)[1] == 12, "in the middle of the epoch it continues"
    with pytest.raises(UserError, match="left its loop at an epoch's beginning, which this process runs again"):
        run(lambda: by_its_model(session, 99.0), kept)


def test_a_stop_at_a_beginning_is_for_the_epoch_in_which_others_asked() -> None:
    kept, steps = run(lambda: by_its_model(session, LIMIT, stops=True))
    assert steps == 18
    assert run(lambda: by_its_model(session, 99.0, stops=True), kept)[1] == 18, "it asks as the next epoch begins"
