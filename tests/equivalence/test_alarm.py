"""Ranks that have diverged are stopped, naming the tensor and the steps, and older checkpoints stay."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from pilot.checkpoint import checksums, store
from pilot.core.errors import PilotError
from pilot.train.steps import alarm
from tests.equivalence.loops import Loop, fresh, nothing
from tests.equivalence.rows import on_ranks
from tests.unit.train.storm import End

CONTAINS_ITSELF: list[Any] = [1]
CONTAINS_ITSELF.append(CONTAINS_ITSELF)
Edit = Callable[[nn.Module, torch.optim.Optimizer], None]
Deed = Callable[[Any, torch.Tensor], object]


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
PAIRS = partial(nn.Linear, 2, 1)


def observed(
    before: Deed = nothing, after: Deed = nothing, epochs: int = 1, model: Any = PAIRS, **options: Any
) -> None:
    """A script that runs these before and after each step."""
    loop = Loop(model=model, optimizer=partial(torch.optim.SGD, lr=0.001), data=SAMPLES, **options)

    def body(x: torch.Tensor) -> None:
        before(loop, x)
        loop.step(x)
        after(loop, x)

    loop.train(epochs, body=body)


def edited(edit: Edit | None, edited_at: int = 6) -> list[float]:
    """Two ranks; on one of them ``edit`` is applied after step ``edited_at``."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), Counting(), nn.Linear(2, 1)).double()
    loop = Loop(model=model, optimizer=partial(torch.optim.Adam, lr=0.1), data=SAMPLES)

    def body(x: torch.Tensor) -> None:
        loop.step(x)
        if edit is not None and loop.session.steps == edited_at and loop.session.rank == 1:
            edit(model, loop.optimizer)

    loop.train(1, body=body)
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


def assert_differs(script: Callable[[], object], line: str, count: int = 2, ends: Sequence[End] = ()) -> None:
    with pytest.raises(PilotError, match=line):
        on_ranks(script, count, list(ends))


@pytest.mark.parametrize(
    ("edit", "name", "edited_at", "steps"),
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
def test_the_first_difference_is_named_with_the_steps_between_which_it_arose(
    edit: Edit, name: str, edited_at: int, steps: tuple[int, int]
) -> None:
    between = f"between {steps[0]} and {steps[1]}"
    line = rf"same state: {name} has differed since a step {between};.*earlier checkpoint: there is no"
    assert_differs(lambda: edited(edit, edited_at), line)


@pytest.mark.parametrize(
    ("by_iteration", "drop_last", "last"), [(False, False, 11), (False, True, 9), (True, False, 10), (True, True, 14)]
)
def test_a_difference_before_the_last_step_is_found_in_that(by_iteration: bool, drop_last: bool, last: int) -> None:
    def script() -> None:
        data = TensorDataset(SAMPLES.tensors[0][:46])
        sizes = {"global_batch_size": 8, "drop_last": drop_last}
        loop = Loop(model=PAIRS, optimizer=torch.optim.Adam, data=data, loader=sizes)
        turns = loop.session.iterations(last + 1) if by_iteration else loop.session.epochs(2)
        for _ in turns:
            for (x,) in loop.loader:
                if loop.session.steps == last and loop.session.rank == 1:
                    loop.model.weight.data += 1e-9
                loop.step(x)

    assert_differs(script, rf"weight has differed since a step between {last // 4 * 4} and {last}")


def initialised_by_its_batch() -> None:
    """As an ActNorm is."""

    def before(loop: Any, x: torch.Tensor) -> None:
        if not loop.session.steps:
            loop.model.weight.data /= x.mean()

    observed(before)


def counts_by_itself() -> None:
    numbers = itertools.count(1)
    observed(lambda loop, _: loop.optimizer.param_groups[0].update(lr=0.1 / next(numbers)))


def averages_on_one_rank() -> None:
    average = AveragedModel(fresh(PAIRS))
    observed(
        lambda loop, _: loop.session.rank == 0 and average.update_parameters(loop.model), tracked={"average": average}
    )


@pytest.mark.parametrize(
    ("script", "line", "count", "ends"),
    [
        (
            initialised_by_its_batch,
            r"weight has differed since step 0;.*in the first one: run it through",
            2,
            [],
        ),
        # found before the first step with another rate
        (
            counts_by_itself,
            r"\['lr'\] has differed since step 6;.*use session\.steps",
            1,
            [End(6, (True,), (False,), 1)],
        ),
        (
            averages_on_one_rank,
            r"average\.state_dict\(\)\['module\.weight'\] \(and 1 more\) has differed since a step between 0 and",
            2,
            [],
        ),
    ],
)
def test_a_difference_that_a_script_makes_is_found(
    script: Callable[[], None], line: str, count: int, ends: list[End]
) -> None:
    assert_differs(script, line, count, ends)


def test_equal_ranks_train_to_the_end_with_any_values_in_batch_norm_and_buffers_that_forward_changes() -> None:
    first, second = on_ranks(lambda: edited(None), 2, [])
    assert first == second


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
        observed(
            after=lambda loop, x: (on_all or loop.session.rank == 0) and loop.model.update(x),
            epochs=2,
            model=Prototypes,
        )

    ends = [End(6, (True, True), (False, False), 1)]
    if on_all:
        on_ranks(updates, 2, ends)
    else:
        assert_differs(updates, r"same state: (mean|count) \(and 1 more\) has differed since", ends=ends)


# --- checksums ---


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


def test_the_last_checkpoint_of_equal_ranks_stays_and_later_ones_are_not_loaded(tmp_path: Path) -> None:
    for step in (100, 150, 190, 250, 260, 270):
        store.write(tmp_path, 1, step, {"step": step}, kept=2, agreed_step=200)
    assert steps_of(tmp_path) == [270, 260, 190]
    assert store.set_aside(tmp_path, 200) == store.set_aside(tmp_path, 200) == store.listing(tmp_path)[0].path
    loaded = store.load_newest(tmp_path, granted=1)
    assert loaded is not None
    assert loaded.step == 190
    store.write(tmp_path, 2, 280, {}, kept=1, agreed_step=280)
    assert steps_of(tmp_path) == [280]
