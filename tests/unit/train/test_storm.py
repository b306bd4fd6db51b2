"""Whatever happens to the group, and whenever: the script's results are those of one undisturbed process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
import pilot.train.check.world
from tests.equivalence.rows import in_world
from tests.unit.train.storm import End, travelled

flags = st.lists(st.booleans(), min_size=1, max_size=4).map(tuple)
which = (st.sampled_from(["any", "step", "agreement"]), st.sampled_from(["oldest", "newest"]))
ends = st.lists(st.builds(End, st.integers(0, 24), flags, flags, st.integers(0, 2), st.booleans(), *which), max_size=6)
x = torch.linspace(-1, 1, 37, dtype=torch.float64).unsqueeze(1)
data = TensorDataset(x, x.sin())


def small() -> tuple[nn.Linear, torch.optim.Optimizer]:
    model = nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(0.25)
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def train(stream: bool, every: int, stop: int) -> dict[str, Any]:
    model, optimizer = small()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    session = pilot.train.session(model, optimizer, plateau, schedule="error")
    state = session.state
    loader: Any = session.stream(data, global_batch_size=8) if stream else session.loader(data, global_batch_size=8)

    def error() -> float:
        means = session.evaluate(data, lambda b: {"error": (model(b[0]) - b[1]).abs().mean()}, batch_size=2)
        state["errors"] = [*state.get("errors", []), means["error"]]
        return means["error"]

    for epoch in session.epochs(4):
        state["begun"], loss = state.get("begun", 0) + 1, None
        for inputs, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), target)
            loss.backward()
            if session.step():
                state["steps"] = state.get("steps", 0) + 1
                if every and session.steps % every == 0:
                    error()
                    state["looks"] = state.get("looks", 0) + 1
        assert stream or loss is not None, "there was no batch in this epoch"
        state["epochs"] = state.get("epochs", 0) + 1
        if epoch == stop:
            session.stop()
        session.report(error=error())
    return {"weights": [model.weight.item(), model.bias.item()], "lr": optimizer.param_groups[0]["lr"], **state}


def train_by_iteration(steps: int, every: int, stop: int) -> dict[str, Any]:
    model, optimizer = small()
    session = pilot.train.session(model, optimizer)
    state, loader = session.state, session.loader(data, global_batch_size=8)
    for step in session.iterations(steps):
        inputs, target = loader.next()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), target).backward()
        if step == stop:
            session.stop()
        if session.step() and session.steps % every == 0:
            means = session.evaluate(data, lambda b: {"error": (model(b[0]) - b[1]).abs().mean()}, batch_size=2)
            state["errors"] = [*state.get("errors", []), means["error"]]
            state["looks"] = state.get("looks", 0) + 1
    return {"weights": [model.weight.item(), model.bias.item()], "steps": session.steps, **state}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(count=st.integers(1, 3), ends=ends, stream=st.booleans(), every=st.sampled_from([0, 3]), stop=st.integers(1, 3))
@example(count=3, ends=[End(17, (False,), (False,), 0)], stream=False, every=0, stop=1)
@example(  # the same evaluation after an epoch's last step and at its end, to which others come
    count=3,
    ends=[
        End(19, (True, False, False), (False,), 2, True),
        End(8, (True, True, False), (False, True), 2, True),
        End(24, (False,), (True, True, False), 2),
        End(8, (False,), (False,), 1),
    ],
    stream=True,
    every=3,
    stop=2,
)
def test_a_script_gives_what_it_gives_alone(count: int, ends: list[End], stream: bool, every: int, stop: int) -> None:
    check(lambda: train(stream, every, stop), count, ends)


@pytest.mark.parametrize("at", range(8))
def test_a_training_that_has_ended_goes_on_with_more_steps(at: int) -> None:
    short, _ = in_world(lambda: train_by_iteration(6, 3, 100), 1, [])
    check(lambda: train_by_iteration(12, 3, 100), 2, [End(at, (False,), (False,), 1)], begin=short.ended)


@pytest.mark.parametrize("after_a_step", [True, False])
def test_what_is_not_done_after_an_evaluation_is_told(after_a_step: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The state is saved in an evaluation. (Who resumes comes to one at an epoch's beginning.)"""
    saved: list[dict[str, Any]] = []

    def script() -> None:
        model, optimizer = small()
        session = pilot.train.session(model, optimizer)
        loader = session.loader(data, global_batch_size=8)

        def error(batch: Any) -> dict[str, torch.Tensor]:
            saved.append(travelled(session._training))
            return {"error": (model(batch[0]) - batch[1]).abs().mean()}

        for _ in session.epochs(2):
            if not after_a_step:
                session.evaluate(data, error)
            for inputs, target in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs), target).backward()
                session.step()
                if after_a_step and session.steps == 7:
                    session.evaluate(data, error)

    in_world(script, 1, [])
    capsys.readouterr()
    in_world(script, 1, [], begin=saved[-1])
    assert ("is not done now" in capsys.readouterr().err) is after_a_step


def test_one_list_under_two_names_stays_two_where_a_state_is_received() -> None:
    def script() -> dict[str, Any]:
        model, optimizer = small()
        session = pilot.train.session(model, optimizer)
        loader = session.loader(data, global_batch_size=8)
        session.state["best"] = session.state["now"] = []
        for _ in session.epochs(2):
            for inputs, target in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs), target).backward()
                if session.step():
                    session.state["now"] = [session.steps]
        return dict(session.state)

    check(script, 1, [End(4, (True,), (False,), 1)])


def test_a_rank_waits_longer_for_others_that_work() -> None:
    class Busy(pilot.train.check.world.RankWorld):
        asked = 0

        def start_rank(self) -> None:
            """It never comes."""

        def is_working(self) -> bool:
            self.asked += 1
            return self.asked < 3

    world = Busy([], deadline_s=0.001)
    world.spawn(2)
    with pytest.raises(RuntimeError, match="a rank has waited for the others"):
        world.member().arrive(b"")
    assert world.asked == 3


def check(
    script: Callable[[], dict[str, Any]], count: int, ends: list[End], begin: dict[str, Any] | None = None
) -> None:
    alone = script()
    for result in in_world(script, count, ends, begin=begin)[1]:
        assert result.keys() == alone.keys()
        for name, value in alone.items():
            near = name in ("weights", "errors")
            assert result[name] == (pytest.approx(value, rel=1e-12) if near else value), name
