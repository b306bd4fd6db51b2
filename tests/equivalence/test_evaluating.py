"""What a script does around an evaluation and draws after it, while its group changes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from tests.equivalence.loops import DATA, Loop, Make, Plain, Result, assert_equal, linear, turns
from tests.equivalence.rows import assert_agree, in_world, on_ranks
from tests.unit.train.storm import End, Keep, travelled

VALUES = Subset(DATA, range(8))


def evaluates_between_steps(make: Make, *, every: int, kind: str) -> Result:
    """Without examining the step's result, it changes the rate, a weight and its state after the evaluation."""
    loop = Loop(make, linear, named=True)
    state = loop.session.state
    for batch in turns(loop, kind):
        loop.step(*batch)
        if loop.session.steps and loop.session.steps % every == 0:
            if make is not Plain:
                loop.session.evaluate(VALUES, loop.measure, batch_size=2)
            loop.optimizer.param_groups[0]["lr"] *= 0.9
            state["evaluations"] = state.get("evaluations", 0) + 1
            with torch.no_grad():
                loop.model.weight.mul_(0.9)
    return loop.tensors(state=state)


@pytest.mark.parametrize("kind", ["epochs", "iterations"])
@pytest.mark.parametrize("every", [1, 3])
def test_changes_after_an_evaluation_count_once_if_the_step_before_it_is_void(every: int, kind: str) -> None:
    script = partial(evaluates_between_steps, every=every, kind=kind)
    assert_equal(script, operations=range(2, 40, 7), joins=range(3, 40, 9))


def draws(where: str, after: bool) -> Result:
    """The number drawn at an epoch's beginning or end scales the losses of the next steps; a measure draws, too."""
    loop = Loop(model=linear, named=True)
    state = loop.session.state
    state["factor"] = 1.0

    def draw(_epoch: int) -> None:
        if after:
            loop.session.evaluate(VALUES, lambda batch: {"loss": loop.loss(*batch) * torch.rand(())})
        state["factor"] = float(torch.rand(()))

    loop.train(3, **{where: draw}, body=lambda *batch: loop.step(*batch, factor=state["factor"]))
    return loop.tensors(state=state)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize(("step", "point"), [(4, 0), (6, 0), (6, 1), (6, 2), (6, 3), (8, 1)])
def test_a_run_that_resumes_draws_the_same(where: str, after: bool, step: int, point: int) -> None:
    """Whatever its process has drawn before."""
    torch.manual_seed(3)
    world, (expected,) = in_world(partial(draws, where, after), 1, [], keep=Keep(step, point))
    if world.kept_state is None:
        pytest.skip("the run has fewer points there")
    torch.manual_seed(4)
    _, ranks = in_world(partial(draws, where, after), 1, [], begin=world.kept_state)
    assert_agree(ranks, expected, 0.0)


def test_a_measure_that_draws_leaves_the_generators_as_they_were() -> None:
    """Ranks measure different samples, or none, and draw the same afterwards."""
    loop = Loop(model=linear)
    for _ in loop.session.epochs(1):
        before = torch.get_rng_state()
        loop.session.evaluate(VALUES, lambda batch: {"noise": torch.rand(()) + 0 * loop.loss(*batch)})
        assert torch.equal(torch.get_rng_state(), before)
        loop.session.stop()
        break


@pytest.mark.parametrize("by_name", [False, True])
def test_a_list_of_the_state_stays_the_same(by_name: bool) -> None:
    """Also where a node joins during an evaluation of which the result is added to it."""

    def script() -> Any:
        loop = Loop()
        losses = loop.session.state.setdefault("losses", [])
        for _ in loop.session.epochs(3):
            loop.epoch()
            its = losses if by_name else loop.session.state["losses"]
            its.append(loop.session.evaluate(DATA, loop.measure)["loss"])
        return loop.session.state["losses"]

    expected = script()
    assert len(expected) == 3
    for operation in range(4, 14):
        for losses in on_ranks(script, 1, [End(operation, (True,), (False,), 1)]):
            assert losses == pytest.approx(expected, rel=1e-12), operation


def test_a_list_under_two_names_becomes_two_where_a_state_is_received() -> None:
    def script() -> dict[str, Any]:
        loop = Loop()
        state = loop.session.state
        state["best"] = state["now"] = []
        loop.train(body=lambda *batch: loop.step(*batch) and state.update(now=[loop.session.steps]))
        return dict(state)

    assert on_ranks(script, 1, [End(4, (True,), (False,), 1)]) == [script()] * 2


@pytest.mark.parametrize("after_a_step", [True, False])
def test_code_that_is_not_run_after_an_evaluation_is_warned_of(
    after_a_step: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state is saved in an evaluation. (A run that resumes comes to one at an epoch's beginning.)"""
    saved: list[dict[str, Any]] = []

    def script() -> None:
        loop = Loop(model=linear)

        def evaluate(when: bool) -> None:
            if when:
                loop.session.evaluate(DATA, measure)

        def measure(batch: Any) -> dict[str, torch.Tensor]:
            saved.append(travelled(loop.session._training))
            return loop.measure(batch)

        loop.train(
            first=lambda _: evaluate(not after_a_step),
            body=lambda *batch: (loop.step(*batch), evaluate(after_a_step and loop.session.steps == 8)),
        )

    in_world(script, 1, [])
    capsys.readouterr()
    in_world(script, 1, [], begin=saved[-1])
    assert ("is skipped; move" in capsys.readouterr().err) is after_a_step
