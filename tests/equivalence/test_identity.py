"""Ranks that create different things, and checkpoints of another run, are refused, showing both values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from pilot.core.errors import UserError
from pilot.protocol import wire
from pilot.train.alike import sample_numbers
from pilot.train.state.block import LONGEST_ROW, gather_values
from pilot.train.state.identity import fingerprint, for_another, in_short
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training
from tests.equivalence.loops import Loop
from tests.equivalence.rows import in_world, on_ranks
from tests.unit.train.storm import End, Keep

PAIRS = partial(nn.Linear, 2, 1)
SGD = partial(torch.optim.SGD, lr=0.1)
Change = dict[str, Any]
ROWS: list[tuple[Change, str]] = [
    ({"seed": 2}, "the seed is (1|2) on rank 0 and (1|2) on rank 1"),
    ({"samples": 9}, "the length of the dataset is (8|9) on rank 0 and (8|9) on rank 1"),
    ({"loader": {"global_batch_size": 2}}, "global_batch_size is (2|4) on rank 0 and (2|4) on rank 1"),
    ({"loader": {"shuffle": False}}, "shuffle=(True|False), replacement=False on rank 0"),
    ({"lr_rule": "sqrt"}, "lr_rule=(linear|sqrt)"),
    ({"width": 3}, r"the parameter 0.weight is float32 \[(2|3), 2\]"),
    ({"dtype": torch.float64}, "the parameter 0.weight is float(32|64)"),
    ({"transposed": True}, r"strides \[(1|2), (1|2)\]"),
    ({"frozen": True}, "(trained|frozen) on rank 0"),
    ({"optimizer": partial(torch.optim.SGD, lr=0.2)}, r"the options of the optimizer is lr=0\.(1|2), momentum=0"),
    ({"optimizer": torch.optim.Adam}, "the optimizer is (SGD|Adam) of"),
    ({"epochs": 2}, "the number of epochs, done ones included, is (1|2) on rank 0 and (1|2) on rank 1"),
]


def script(
    seed: int = 1,
    samples: int = 8,
    loader: dict[str, Any] | None = None,
    lr_rule: str = "linear",
    width: int = 2,
    dtype: torch.dtype = torch.float32,
    transposed: bool = False,
    frozen: bool = False,
    optimizer: Callable[..., torch.optim.Optimizer] = SGD,
    epochs: int = 1,
) -> None:
    model = nn.Sequential(nn.Linear(2, width, dtype=dtype), nn.Linear(width, 1, dtype=dtype))
    if transposed:
        model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
    model[0].requires_grad_(not frozen)
    data = TensorDataset(torch.ones(samples, 2, dtype=dtype))
    Loop(model=model, optimizer=optimizer, data=data, loader=loader, seed=seed, lr_rule=lr_rule).train(epochs)


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
        loop = Loop(model=PAIRS, data=split(np.random.default_rng(seed)))
        loop.train(1, body=lambda x, *_: loop.step(x.double()))

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


def test_changes_that_the_user_accepts_count_from_there_on_and_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
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
        loop = Loop(model=PAIRS, data=TensorDataset(torch.ones(8, 2, dtype=torch.float64)))
        assert not early or loop.session.rank >= 0
        return loop.train(next(left)).session.steps

    ends = [End(1, (True,), (False,), len(counts) - 1, at="step")] if len(counts) > 1 else []
    world, results = in_world(script, 1, ends, begin=begin, keep=Keep(3, 0))
    return [world.kept_state, *results]


@pytest.mark.parametrize("early", [False, True])
def test_fewer_epochs_than_before_are_refused(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a script that subtracts those in its own checkpoint."""
    kept, *_ = ending_at(None, 3, early=early)
    with pytest.raises(UserError, match=r"epochs, done ones included, was 3 and is 2; .* --accept-changes fewer$"):
        ending_at(kept, 2, early=early)
    with pytest.raises(UserError, match=r"epochs, done ones included,"):
        ending_at(None, 3, 2, early=early)
    assert ending_at(kept, 4, early=early)[1:] == [8]
    monkeypatch.setenv("PILOT_ACCEPT_CHANGES", "fewer")
    assert ending_at(kept, 2, early=early)[1:] == [4]


def test_a_start_from_another_trainer_warns_if_nothing_is_left_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    kept, *_ = ending_at(None, 3)
    assert ending_at(for_another(kept), 2)[1:] == [4]
    assert "nothing to train" not in capsys.readouterr().err
    assert ending_at(for_another(kept), 1)[1:] == [3]
    line = "nothing to train: the checkpoint that the script starts from has 1 of the 1 epochs already"
    assert line in capsys.readouterr().err


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


@pytest.mark.parametrize("value", [b"", b"a", b"12345678", b"123456789", bytes(range(256)) * 300])
def test_values_of_any_size_are_gathered_in_rows_of_limited_length(value: bytes) -> None:
    """Each rank's may have another size; a large one comes in several rows."""
    other, lengths, gathered = b"of another rank", list[int](), [list[int](), list[int]()]

    def gather(row: list[int]) -> list[list[int]]:
        lengths.append(len(row))
        if len(lengths) == 1:
            blocks = [msgspec.msgpack.encode(one) for one in (value, other)]
            longest = -(-max(map(len, blocks)) // 8) * 8
            gathered[:] = [list(memoryview(block.ljust(longest, b"\0")).cast("q")) for block in blocks]
            return [[len(block)] for block in blocks]
        begin = sum(lengths[1:-1])
        return [one[begin : begin + len(row)] for one in gathered]

    assert gather_values(value, bytes, gather) == [value, other]
    assert max(lengths) <= LONGEST_ROW
    assert sum(lengths) == 1 + len(gathered[0])
