"""Ranks that have diverged are stopped, naming the tensor and the steps, and older checkpoints stay."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import pilot.train
from pilot.checkpoint import checksums, store
from pilot.core.errors import PilotError
from pilot.train.steps import alarm
from tests.equivalence.rows import on_ranks
from tests.unit.train.storm import End

CONTAINS_ITSELF: list[Any] = [1]
CONTAINS_ITSELF.append(CONTAINS_ITSELF)
Edit = Callable[[nn.Module, torch.optim.Optimizer], None]
Deed = Callable[[Any, torch.Tensor], None]


class Counting(nn.Module):
    """A model with three buffers, and as many parameters without gradient: one never changes, two change in forward, by
    different values on each rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.register_buffer("hidden", torch.zeros((), dtype=torch.float64))
        self.running, self.codebook, self.fixed = (
            nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.detach().mean()
        self.hidden.data = x.detach().mean() * 2
        self.running.mul_(0.9).add_(x.detach().mean(0))
        self.codebook.data.copy_(x.detach()[0])
        scaled: torch.Tensor = x * self.scale
        return scaled


SAMPLES = TensorDataset(torch.arange(96, dtype=torch.float64).view(48, 2))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    before_step: Deed = lambda _session, _x: None,
    after_step: Deed = lambda _session, _x: None,
    *,
    epochs: int = 1,
    track: dict[str, nn.Module] | None = None,
) -> None:
    session = pilot.train.session(model, optimizer)
    loader = session.loader(SAMPLES, global_batch_size=4)
    for name, module in (track or {}).items():
        session.track(name, module)
    for _ in session.epochs(epochs):
        for (x,) in loader:
            before_step(session, x)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            session.step()
            after_step(session, x)


def linear() -> tuple[nn.Linear, torch.optim.Optimizer]:
    model = nn.Linear(2, 1).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.001)


def script(edit: Edit | None, edited: int = 6) -> list[float]:
    """Two ranks; on one of them ``edit`` is applied after step ``edited``."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), Counting(), nn.Linear(2, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def after_step(session: Any, _x: torch.Tensor) -> None:
        if edit is not None and session.steps == edited and session.rank == 1:
            edit(model, optimizer)

    train(model, optimizer, after_step=after_step)
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad]).tolist()


def set_parameter(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    model[3].weight.data += 1e-9


def set_moment(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state: dict[str, torch.Tensor] = optimizer.state[next(model.parameters())]
    state["exp_avg"].view(-1)[0] += 1e-3


def clear_state(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


def set_rate(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.05


def set_buffer(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    model.get_buffer("2.scale").fill_(2.0)


def set_frozen(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    model.get_parameter("2.fixed").fill_(2.0)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm, "EVERY_STEPS", 4)
    monkeypatch.setattr(alarm, "FIRST_STEPS", (1, 3))


@pytest.mark.parametrize(
    ("edit", "name", "edited", "steps"),
    [
        (set_parameter, r"3\.weight", 1, (0, 1)),
        (set_parameter, r"3\.weight", 6, (4, 8)),
        (set_moment, r"optimizer\.state\[0\.weight\]\['exp_avg'\]", 8, (4, 8)),
        (clear_state, r"optimizer\.state\[0\.weight\]\['step'\] \(and 17 more\)", 8, (4, 8)),
        (set_rate, r"optimizer\.param_groups\[0\]\['lr'\] \(and 6 more\)", 6, (4, 8)),
        (set_buffer, r"2\.scale", 6, (4, 8)),
        (set_frozen, r"2\.fixed", 6, (4, 8)),
    ],
)
def test_the_first_that_differs_is_named_with_the_steps_between_which_it_happened(
    edit: Edit, name: str, edited: int, steps: tuple[int, int]
) -> None:
    between = f"between {steps[0]} and {steps[1]}"
    with pytest.raises(
        PilotError, match=rf"same state: {name} has differed since a step {between};.*there is no checkpoint"
    ):
        on_ranks(lambda: script(edit, edited), 2, [])


@pytest.mark.parametrize(
    ("by_iteration", "drop_last", "last"), [(False, False, 11), (False, True, 9), (True, False, 10), (True, True, 14)]
)
def test_what_differs_before_the_last_step_is_seen_in_that(by_iteration: bool, drop_last: bool, last: int) -> None:
    def script() -> None:
        model = nn.Linear(2, 1).double()
        optimizer = torch.optim.Adam(model.parameters())
        session = pilot.train.session(model, optimizer)
        data = TensorDataset(torch.arange(92, dtype=torch.float64).view(46, 2))
        loader = session.loader(data, global_batch_size=8, drop_last=drop_last)
        turns = session.iterations(last + 1) if by_iteration else session.epochs(2)
        for _ in turns:
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                if session.steps == last and session.rank == 1:
                    model.weight.data += 1e-9
                session.step()

    since = last // 4 * 4
    with pytest.raises(PilotError, match=rf"weight has differed since a step between {since} and {last}"):
        on_ranks(script, 2, [])


def initialised_by_its_batch() -> None:
    """As an ActNorm is."""
    model, optimizer = linear()

    def before_step(session: Any, x: torch.Tensor) -> None:
        if not session.steps:
            model.weight.data /= x.mean()

    train(model, optimizer, before_step)


def test_what_a_rank_sets_from_its_first_batch_is_told_of_that_step() -> None:
    with pytest.raises(PilotError, match=r"weight has differed since step 0;.*in the first one: run it through"):
        on_ranks(initialised_by_its_batch, 2, [])


def counts_by_itself() -> None:
    model, optimizer = linear()
    numbers = itertools.count(1)

    def before_step(_session: Any, _x: torch.Tensor) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / next(numbers)

    train(model, optimizer, before_step)


def test_who_comes_and_sets_another_learning_rate_is_seen_before_the_first_step_with_it() -> None:
    with pytest.raises(PilotError, match=r"\['lr'\] has differed since step 6;.*use session\.steps"):
        on_ranks(counts_by_itself, 1, [End(6, (True,), (False,), 1)])


def test_equal_ranks_train_to_the_end_whatever_batch_norm_and_buffers_that_forward_changes_hold() -> None:
    first, second = on_ranks(lambda: script(None), 2, [])
    assert first == second


def averages_on_one_rank() -> None:
    model, optimizer = linear()
    average = AveragedModel(model)

    def before_step(session: Any, _x: torch.Tensor) -> None:
        if session.rank == 0:
            average.update_parameters(model)

    train(model, optimizer, before_step, track={"average": average})


def test_an_average_that_one_rank_only_updates_stops_them() -> None:
    with pytest.raises(
        PilotError,
        match=r"average\.state_dict\(\)\['module\.weight'\] \(and 1 more\) has differed since a step between 0 and",
    ):
        on_ranks(averages_on_one_rank, 2, [])


class Prototypes(nn.Linear):
    """With means of its batches, which the script updates after each step."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) - self.mean.sum()

    @torch.no_grad()
    def update(self, x: torch.Tensor) -> None:
        self.mean.mul_(0.9).add_(x.mean(0))
        self.count += 1


@pytest.mark.parametrize("on_all", [True, False])
def test_buffers_that_a_script_computes_from_its_batch_after_the_step(on_all: bool) -> None:
    """They are each rank's own if all do so, as if forward did."""

    def updates() -> None:
        model = Prototypes().double()

        def after_step(session: Any, x: torch.Tensor) -> None:
            if on_all or session.rank == 0:
                model.update(x)

        train(model, torch.optim.SGD(model.parameters(), lr=0.001), after_step=after_step, epochs=2)

    ends = [End(6, (True, True), (False, False), 1)]
    if not on_all:
        with pytest.raises(PilotError, match=r"same state: (mean|count) \(and 1 more\) has differed since"):
            on_ranks(updates, 2, ends)
        return
    on_ranks(updates, 2, ends)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float64, torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("of", [checksums.of_tensors, lambda tensors: [int(checksums._summed(t)) for t in tensors]])
def test_one_bit_or_two_numbers_in_other_places_change_the_checksum(dtype: torch.dtype, of: Any) -> None:
    tensor = torch.arange(6).view(2, 3).t().to(dtype)
    assert of([tensor]) == of([tensor.contiguous()])
    edited, swapped = tensor.contiguous(), tensor.clone()
    edited.view(torch.uint8)[0, 0] ^= 1
    swapped[0, 0], swapped[0, 1] = tensor[0, 1], tensor[0, 0]
    assert len({*of([tensor]), *of([edited]), *of([swapped])}) == 3
    assert len(of([tensor, tensor[:0], tensor[0, 0]])) == 3


def test_changes_that_cancel_out_change_the_checksum() -> None:
    tensor = torch.tensor([1.25, -1.25], dtype=torch.float64)
    before = checksums.of_tensors([tensor]), int(checksums._summed(tensor))
    tensor += 2.0**-30  # the bits of one number grow by as much as the other's shrink
    assert checksums.of_tensors([tensor]) != before[0]
    assert int(checksums._summed(tensor)) != before[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": [1, 2.0, "x"]}, {"a": [1, 2.0, "y"]}),
        ({1: torch.zeros(2)}, {1: torch.ones(2)}),
        (np.arange(3), np.arange(3, dtype=np.int32)),
        (2**70, 2**70 + 1),
        (torch.zeros(3_000_000, dtype=torch.float64), torch.zeros(3_000_001, dtype=torch.float64)),
        ([0.0] * 20_000, [1.0, *[0.0] * 19_999]),
        ([0.0] * 20_000, [0.0] * 20_001),
        ({"a"}, {"b"}),
        (CONTAINS_ITSELF, [2]),
        (None, False),
    ],
)
def test_values_that_differ_have_other_checksums(one: object, other: object) -> None:
    assert checksums.of_value(one) == checksums.of_value(copy.deepcopy(one))
    assert checksums.of_value(one) != checksums.of_value(other)


def steps_of(directory: Path) -> list[int]:
    return [entry.age.step for entry in store.listing(directory)]


def test_the_last_checkpoint_of_equal_ranks_stays_and_what_was_saved_later_is_not_gone_on_from(tmp_path: Path) -> None:
    for step in (100, 150, 190, 250, 260, 270):
        store.write(tmp_path, 1, step, {"step": step}, kept=2, agreed_step=200)
    assert steps_of(tmp_path) == [270, 260, 190]
    assert store.set_aside(tmp_path, 200) == store.set_aside(tmp_path, 200) == store.listing(tmp_path)[0].path
    loaded = store.load_newest(tmp_path, granted=1)
    assert loaded is not None
    assert loaded.step == 190
    store.write(tmp_path, 2, 280, {}, kept=1, agreed_step=280)
    assert steps_of(tmp_path) == [280]
