"""Whatever happens to the group, and whenever: the script's results are those of one undisturbed process."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from tests.unit.train.storm import End, World, group_of

flags = st.lists(st.booleans(), min_size=1, max_size=4).map(tuple)
which = (st.sampled_from(["any", "step", "meeting"]), st.sampled_from(["oldest", "newest"]))
ends = st.lists(st.builds(End, st.integers(0, 24), flags, flags, st.integers(0, 2), st.booleans(), *which), max_size=6)
x = torch.linspace(-1, 1, 37, dtype=torch.float64).unsqueeze(1)
data = TensorDataset(x, x.sin())


def train(stream: bool, every: int, stop: int) -> dict[str, Any]:
    model = nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(0.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    session = pilot.train.session(model, optimizer, plateau, schedule="error")
    state = session.state
    loader: Any = session.stream(data, global_batch_size=8) if stream else session.loader(data, global_batch_size=8)

    def error() -> float:
        means = session.evaluate(data, lambda b: {"error": (model(b[0]) - b[1]).abs().mean()}, batch_size=2)
        state["errors"] = [*state.get("errors", []), means["error"]]
        return means["error"]

    for epoch in session.epochs(4, error=error):
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
    return {"weights": [model.weight.item(), model.bias.item()], "lr": optimizer.param_groups[0]["lr"], **state}


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
    alone = train(stream, every, stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("pilot.train.session"), "group_of", group_of)
        results = World(lambda: train(stream, every, stop), count, ends).run()
    for result in results:
        assert {name: value for name, value in result.items() if name not in ("weights", "errors")} == {
            name: value for name, value in alone.items() if name not in ("weights", "errors")
        }
        assert result["weights"] == pytest.approx(alone["weights"], rel=1e-12)
        assert result["errors"] == pytest.approx(alone["errors"], rel=1e-12)
