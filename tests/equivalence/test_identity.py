"""Ranks that create different things, and checkpoints of another run, are refused, showing both values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import pilot.train
from pilot.core.errors import UserError
from pilot.protocol import wire
from pilot.train.alike import sample_numbers
from pilot.train.state.block import LONGEST_ROW, gather_values
from pilot.train.state.identity import fingerprint, for_another, in_short
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training
from tests.equivalence.rows import in_world, on_ranks
from tests.unit.train.storm import End, Keep

Change = dict[str, Any]
ROWS: list[tuple[Change, str]] = [
    ({"seed": 2}, "the seed is (1|2) on rank 0 and (1|2) on rank 1"),
    ({"samples": 9}, "the length of the dataset is (8|9) on rank 0 and (8|9) on rank 1"),
    ({"batch": 2}, "global_batch_size is (2|4) on rank 0 and (2|4) on rank 1"),
    ({"shuffle": False}, "shuffle=(True|False), replacement=False on rank 0"),
    ({"lr_rule": "sqrt"}, "lr_rule=(linear|sqrt)"),
    ({"width": 3}, r"the parameter 0.weight is float32 \[(2|3), 2\]"),
    ({"dtype": torch.float64}, "the parameter 0.weight is float(32|64)"),
    ({"transposed": True}, r"strides \[(1|2), (1|2)\]"),
    ({"frozen": True}, "(trained|frozen) on rank 0"),
    ({"rate": 0.2}, r"the options of the optimizer is lr=0\.(1|2), momentum=0"),
    ({"optimizer": torch.optim.Adam}, "the optimizer is (SGD|Adam) of"),
    ({"epochs": 2}, "the number of epochs, done ones included, is (1|2) on rank 0 and (1|2) on rank 1"),
]


def script(
    seed: int = 1,
    samples: int = 8,
    batch: int = 4,
    shuffle: bool = True,
    lr_rule: str = "linear",
    width: int = 2,
    dtype: torch.dtype = torch.float32,
    transposed: bool = False,
    frozen: bool = False,
    rate: float = 0.1,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    epochs: int = 1,
) -> None:
    model = nn.Sequential(nn.Linear(2, width, dtype=dtype), nn.Linear(width, 1, dtype=dtype))
    if transposed:
        model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
    model[0].requires_grad_(not frozen)
    steps = optimizer(model.parameters(), lr=rate)
    session = pilot.train.session(model, steps, seed=seed, lr_rule=lr_rule)
    loader = session.loader(TensorDataset(torch.ones(samples, 2)), global_batch_size=batch, shuffle=shuffle)
    for _ in session.epochs(epochs):
        for (x,) in loader:
            steps.zero_grad()
            model(x.to(dtype)).sum().backward()
            session.step()


@pytest.mark.parametrize(("change", "line"), ROWS, ids=[next(iter(change)) for change, _ in ROWS])
def test_ranks_that_differ_are_refused(change: Change, line: str) -> None:
    changes = itertools.cycle([{}, change])
    with pytest.raises(UserError, match=line):
        on_ranks(lambda: script(**next(changes)), 2, [])


class Labelled(Dataset[Any]):
    def __init__(self, labels: Any) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return (torch.ones(2),)


@pytest.mark.parametrize(
    "split",
    [
        lambda drawn: Subset(TensorDataset(torch.ones(9, 2)), drawn.permutation(9)[:8].tolist()),
        lambda drawn: Subset(Subset(TensorDataset(torch.ones(9, 2)), drawn.permutation(9)), range(8)),
        lambda drawn: TensorDataset(torch.ones(8, 2), torch.from_numpy(drawn.integers(1000, size=8))),
        lambda drawn: Labelled(drawn.permutation(8)),
        lambda drawn: Labelled([*map(int, drawn.permutation(8))]),
        lambda drawn: Labelled([f"{number}.png" for number in drawn.permutation(8)]),
        lambda drawn: Labelled(tuple(Path(f"{number}.png") for number in drawn.permutation(8))),
    ],
)
def test_ranks_with_other_splits_or_labels_are_refused(split: Callable[[np.random.Generator], Dataset[Any]]) -> None:
    def script(seed: int) -> None:
        model = nn.Linear(2, 1)
        session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), seed=1)
        loader = session.loader(split(np.random.default_rng(seed)), global_batch_size=4)
        for _ in session.epochs(1):
            for x, *_ in loader:
                model.zero_grad()
                model(x).sum().backward()
                session.step()

    on_ranks(lambda: script(0), 2, [])
    seeds = itertools.count()
    with pytest.raises(
        UserError, match=r"indices, labels and texts is .* on rank 0 and .* generator of its own without a seed"
    ):
        on_ranks(lambda: script(next(seeds)), 2, [])


def test_each_node_may_have_the_files_in_a_folder_of_its_own() -> None:
    here, there, other = (
        sample_numbers.checksum(Labelled([f"/{folder}/{number}{kind}" for number in range(8)]))
        for folder, kind in (("a", ".png"), ("b", ".png"), ("a", ".jpg"))
    )
    assert here == there != other


def made(width: int = 2, samples: int = 8, rate: float = 0.1, rule: str = "none") -> Training:
    model = nn.Linear(width, 1)
    training = Training(model, torch.optim.SGD(model.parameters(), lr=rate), None, None, LearningRate(rule))
    training.identity["the length of the dataset"] = str(samples)
    return training


def test_a_checkpoint_of_another_run_is_refused() -> None:
    saved = made().capture()
    with pytest.raises(UserError, match="the length of the dataset was 8 and is 9"):
        made(samples=9).restore(saved)
    with pytest.raises(UserError, match=r"weight was float32 \[1, 2\].* and is float32 \[1, 3\]"):
        made(width=3).restore(saved)


def test_what_the_user_accepts_is_another_one_from_there_on_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made()
    before.position.step = 7
    saved = before.capture()
    with pytest.raises(UserError, match=r"was 8 and is 9; .* pilot submit --accept-changes dataset$"):
        made(samples=9).restore(saved)
    monkeypatch.setenv("PILOT_ACCEPT_CHANGES", "dataset, options,rules")
    resumed = made(samples=9, rate=0.2, rule="sqrt")
    resumed.restore(saved)
    assert resumed.steppers.optimizers[""].param_groups[0]["lr"] == 0.2
    assert resumed.rate.rule == "sqrt"
    changes = {change.what: (change.step, change.before, change.now) for change in resumed.changes}
    assert changes["the length of the dataset"] == (7, "8", "9")
    assert set(changes) == {"the length of the dataset", "the rules", "the options of the optimizer"}
    newcomer = made(samples=9, rate=0.2, rule="sqrt")
    newcomer.restore(resumed.capture())
    assert newcomer.changes == resumed.changes
    with pytest.raises(UserError, match="weight was float32"):
        made(width=3).restore(saved)
    monkeypatch.setenv("PILOT_ACCEPT_CHANGES", "dataset,weights")
    with pytest.raises(UserError, match="changes of 'weights' cannot be accepted, only of seed, dataset"):
        made()


def ending_at(begin: dict[str, Any] | None, *counts: int, early: bool = False) -> list[Any]:
    """Each rank's steps; ``counts``: each rank's number of epochs. ``early``: the script asks for its rank first."""
    left = iter(counts)

    def script() -> int:
        model, count = nn.Linear(2, 1), next(left)
        session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), seed=1)
        loader = session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)
        assert not early or session.rank >= 0
        for _ in session.epochs(count):
            for (x,) in loader:
                model.zero_grad()
                model(x).sum().backward()
                session.step()
        return session.steps

    ends = [End(1, (True,), (False,), len(counts) - 1, at="step")] if len(counts) > 1 else []
    world, results = in_world(script, 1, ends, begin=begin, keep=Keep(3, 0))
    return [world.kept_state, *results]


@pytest.mark.parametrize("early", [False, True])
def test_fewer_epochs_than_before_as_of_a_script_that_subtracts_those_in_its_own_checkpoint_are_refused(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, *_ = ending_at(None, 3, early=early)
    with pytest.raises(UserError, match=r"epochs, done ones included, was 3 and is 2; .* --accept-changes fewer$"):
        ending_at(kept, 2, early=early)
    with pytest.raises(UserError, match=r"epochs, done ones included,"):
        ending_at(None, 3, 2, early=early)
    assert ending_at(kept, 4, early=early)[1:] == [8]
    monkeypatch.setenv("PILOT_ACCEPT_CHANGES", "fewer")
    assert ending_at(kept, 2, early=early)[1:] == [4]


def test_a_start_from_another_trainer_with_nothing_left_to_train_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    kept, *_ = ending_at(None, 3)
    assert ending_at(for_another(kept), 2)[1:] == [4]
    assert "nothing to train" not in capsys.readouterr().err
    assert ending_at(for_another(kept), 1)[1:] == [3]
    told = capsys.readouterr().err
    assert "nothing to train: the checkpoint that the script starts from has 1 of the 1 epochs already" in told


@pytest.mark.parametrize("names", [[f"layer {number}" for number in range(300)], ["a name " * 100, "b"]])
def test_the_coordinator_gets_no_line_for_each_of_many_optimizers(names: list[str]) -> None:
    identity = {f"the optimizer {name}": "SGD of 2 parameters" for name in names} | {"the seed": "1"}
    short = in_short(identity)
    formed = wire.GroupFormed("t1", 1, 0, identity=short)
    assert wire.decode_from_agent(wire.encode(formed)) == formed
    assert sorted(short) == ["the seed", "what is trained", "what steps it"]
    identity[f"the optimizer {names[1]}"] = "Adam of 2 parameters"
    assert in_short(identity)["what steps it"] != short["what steps it"]


def test_a_fingerprint_is_of_all_that_is_described_and_fits_into_a_row() -> None:
    prints = {fingerprint(made(samples=n).identity) for n in range(50)}
    assert len(prints) == 50
    assert all(0 <= number < 2**63 for number in prints)


def test_blocks_of_several_sizes_come_as_they_were() -> None:
    values = [b"", b"a", b"12345678", b"123456789"]
    blocks = [msgspec.msgpack.encode(one) for one in values]
    sizes = [[len(block)] for block in blocks]
    rows: list[list[int]] = []

    def gather(row: list[int]) -> list[list[int]]:
        if len(row) == 1 and not rows:
            rows.append(row)
            return sizes
        rows.append(row)
        return [list(memoryview(block.ljust(16, b"\0")).cast("q")) for block in blocks]

    assert gather_values(values[1], bytes, gather) == values
    assert len(rows[1]) == 2


def test_a_block_that_does_not_fit_into_a_row_comes_in_several() -> None:
    value = bytes(range(256)) * 300
    lengths: list[int] = []

    def gather(row: list[int]) -> list[list[int]]:
        lengths.append(len(row))
        return [row, row]

    assert gather_values(value, bytes, gather) == [value] * 2
    assert max(lengths) <= LONGEST_ROW
    assert sum(lengths) == 1 + -(-len(msgspec.msgpack.encode(value)) // 8)
