"""A script that leaves its loop by ``break`` has finished once it has run to its end; one that fails has not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.train.ranks import script_end
from pilot.train.ranks.script_end import Released


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_end, "_left", [])


def test_what_was_left_is_done_once() -> None:
    calls: list[int] = []
    script_end.at_good_end(lambda: calls.append(1))
    script_end.script_ended()
    script_end.script_ended()
    assert calls == [1]


@pytest.mark.parametrize(
    ("leaving", "done"),
    [
        (SystemExit(), True),
        (SystemExit(0), True),
        (SystemExit(1), False),
        (SystemExit("no"), False),
        (Released(), False),
    ],
)
def test_an_exit_is_good_where_its_status_is(leaving: SystemExit, done: bool) -> None:
    calls: list[int] = []
    script_end.at_good_end(lambda: calls.append(1))
    script_end.script_ended(leaving)
    assert bool(calls) is done


def batches(session: pilot.train.Session, model: nn.Module) -> Iterator[None]:
    loader = session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)
    for _ in session.epochs(5):
        for (x,) in loader:
            model.zero_grad()
            model(x).sum().backward()
            session.step()
        yield


def made() -> tuple[pilot.train.Session, nn.Module]:
    model = nn.Linear(2, 1)
    return pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1)), model


def test_a_break_ends_the_epoch_and_the_training() -> None:
    session, model = made()
    for number, _ in enumerate(batches(session, model)):
        if number == 1:
            break
    position = session._training.position
    assert (position.epoch, position.left) == (1, False)
    script_end.script_ended()
    assert (position.epoch, position.left, session.steps) == (2, True, 4)


def test_stop_lets_the_epoch_be_the_last() -> None:
    session, model = made()
    for number, _ in enumerate(batches(session, model)):
        if number == 2:
            session.stop()
    assert session.steps == 6
    script_end.script_ended()
    assert session._training.position.epoch == 3


def test_a_run_that_resumes_after_a_stop_ends_where_the_first_one_would_have() -> None:
    (first, _), (second, _) = made(), made()
    for session in (first, second):
        session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)
    first.stop()
    second._training.restore(first._training.capture())
    turns = 0
    for _ in second.epochs(5):
        turns += 1
    assert turns == 1


def test_a_loop_in_a_variable_is_left_at_the_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by ``bar = tqdm(session.epochs(5))``."""
    session, model = made()
    finished: list[int] = []
    monkeypatch.setattr(session._loop, "_leave", lambda: finished.append(session.steps))
    loader = session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)
    loop = session.epochs(5)
    for _ in loop:
        for (x,) in loader:
            model.zero_grad()
            model(x).sum().backward()
            session.step()
        break
    assert not finished
    script_end.script_ended()
    assert finished == [2]
