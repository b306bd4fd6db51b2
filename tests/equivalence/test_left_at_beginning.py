"""A script decides at an epoch's beginning whether to go on, by its model there. One that resumes in the middle of an
epoch, and would leave where it went on before, ends with a line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from pilot.core.errors import UserError
from pilot.train.ranks import script_end
from tests.equivalence.loops import BATCH, DATA, Plain, an_epoch, fresh, mlp, session
from tests.equivalence.rows import in_world
from tests.unit.train.storm import Keep

MIDDLE = Keep(8, 0)
"""After two steps of the second epoch, which has six."""


def error_of(model: Any) -> float:
    return mse_loss(model(DATA.tensors[0]), DATA.tensors[1]).item()


def by_its_model(made: Callable[..., Any], limit: float, *, stops: bool = False) -> int:
    """The number of steps of a script that asks at each epoch's beginning."""
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = made(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(5):
        error = error_of(model)
        if error < limit and stops:
            ours.stop()
        elif error < limit:
            break
        an_epoch(ours, loader, model, optimizer)
    if made is session:
        script_end.script_ended()
    return int(ours.steps)


def error_after(epochs: int) -> float:
    """Of an undisturbed run."""
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = Plain(model, optimizer)
    loader = ours.loader(DATA)
    for _ in ours.epochs(epochs):
        an_epoch(ours, loader, model, optimizer)
    return error_of(model)


@pytest.fixture(autouse=True)
def nobody_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_end, "_left", [])


def run(script: Callable[[], int], begin: Any = None) -> tuple[Any, int]:
    world, (steps,) = in_world(script, 1, [], begin=begin, keep=MIDDLE)
    return world.kept_state, steps


def test_one_by_the_model_is_refused_where_others_went_on() -> None:
    limit = error_after(2) + 1e-9
    kept, steps = run(lambda: by_its_model(session, limit))
    assert steps == 12
    assert run(lambda: by_its_model(session, limit), kept)[1] == 12, "in the middle of the epoch it goes on"
    with pytest.raises(UserError, match="left its loop at an epoch's beginning, which this process runs again"):
        run(lambda: by_its_model(session, 99.0), kept)


def test_a_stop_there_is_for_the_epoch_in_which_others_asked() -> None:
    limit = error_after(2) + 1e-9
    kept, steps = run(lambda: by_its_model(session, limit, stops=True))
    assert steps == 18
    assert run(lambda: by_its_model(session, 99.0, stops=True), kept)[1] == 18, "it asks as the next epoch begins"
