"""The ranks of a group, in one process: their contributions are summed here, their savers write for real."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pilot.checkpoint import names, store
from pilot.protocol import wire
from pilot.train.alike.next_step import NextSteps, discard
from pilot.train.gradients.step_words import FIELDS, Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.periodic import Periodic
from pilot.train.ranks.saver import Saver
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training

DEADLINE_S = 30.0


class Rank:
    """One rank; ``outcomes``: the messages of its saver."""

    def __init__(self, directory: Path, interval_s: float = 0.0) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 1))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        self.outcomes: queue.SimpleQueue[wire.CheckpointWritten] = queue.SimpleQueue()
        self.training = Training(model, optimizer, None, "step", LearningRate("none"))
        self.saver = Saver("t1", "", directory, 3, self.outcomes.put)
        self.periodic = Periodic(self.saver, self.training, NextSteps(self.training, discard), interval_s)

    def buffer(self) -> torch.Tensor:
        """A buffer that each rank has for itself."""
        found: torch.Tensor = self.training.model.state_dict()["1.running_mean"]
        return found


def ranks_in(directory: Path, count: int) -> list[Rank]:
    ranks = [Rank(directory) for _ in range(count)]
    for number, rank in enumerate(ranks):
        rank.buffer().fill_(number)
    return ranks


def step(ranks: list[Rank], generation: int = 1) -> None:
    """One step of all ranks in that generation."""
    groups = [Membership(generation, number, len(ranks)) for number in range(len(ranks))]
    sums = np.zeros(FIELDS)
    for rank, group in zip(ranks, groups, strict=True):
        rank.training.position.step += 1
        fields = np.empty(FIELDS)
        save, saved = rank.periodic.may_save(group), rank.periodic.has_saved(group)
        Words.of(0, False, 0.0, save=save, saved=saved).write(fields)
        sums += fields
    for rank, group in zip(ranks, groups, strict=True):
        rank.periodic.stepped(group, Words.read(sums, sums[:0]))


def steps_until_outcome(ranks: list[Rank], by: int = 0, generation: int = 1) -> wire.CheckpointWritten:
    """Steps until rank ``by`` reports the outcome of a checkpoint."""
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        step(ranks, generation)
        try:
            return ranks[by].outcomes.get(timeout=0.01)
        except queue.Empty:
            continue
    raise AssertionError("no checkpoint")


def settle(ranks: list[Rank]) -> None:
    """Wait until no rank is writing."""
    for rank in ranks:
        rank.saver.wait()


@pytest.mark.parametrize("count", [2, 3])
def test_the_parts_of_all_ranks_make_one_checkpoint(tmp_path: Path, count: int) -> None:
    ranks = ranks_in(tmp_path, count)
    done = steps_until_outcome(ranks)
    assert done.error == ""
    assert store.verify(Path(done.path)) == []
    loaded = store.load(Path(done.path))
    assert (loaded.generation, loaded.step, loaded.state["position"]["step"]) == (1, done.step, done.step)
    for name, tensor in ranks[0].training.model.state_dict().items():
        assert torch.equal(loaded.state["model"][name], tensor), name
    assert len(list(tmp_path.glob(f"*s{done.step:08d}.part*"))) == count
    assert done.alone_s > done.seconds > 0
    assert all(rank.outcomes.empty() for rank in ranks[1:])
    settle(ranks)


def test_a_state_is_saved_as_it_was_after_the_agreed_step(tmp_path: Path) -> None:
    ranks = ranks_in(tmp_path, 2)
    weight = ranks[0].training.model.state_dict()["0.weight"].clone()
    step(ranks)
    for rank in ranks:
        with torch.no_grad():
            rank.training.model.get_parameter("0.weight").add_(1.0)
    done = steps_until_outcome(ranks)
    assert done.step == 1
    assert torch.equal(store.load(Path(done.path)).state["model"]["0.weight"], weight)
    settle(ranks)


def test_ranks_whose_parameters_differ_make_no_checkpoint_and_the_leader_then_writes_the_whole(tmp_path: Path) -> None:
    ranks = ranks_in(tmp_path, 2)
    with torch.no_grad():
        ranks[1].training.model.get_parameter("2.bias").add_(1e-6)
    failed = steps_until_outcome(ranks)
    assert "differs from part 0 in what the ranks share" in failed.error
    assert store.listing(tmp_path) == []
    done = steps_until_outcome(ranks)
    assert done.error == ""
    ranks[0].saver.wait()
    assert [path.name for path in tmp_path.iterdir()] == [names.checkpoint_name(1, done.step)]
    assert "differs" in steps_until_outcome(ranks, generation=2).error, "another generation has another chance"
    settle(ranks)


def test_a_rank_that_cannot_write_says_why_and_the_leader_then_writes_the_whole(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    ranks = [Rank(tmp_path / "here"), Rank(tmp_path / "a file" / "there")]
    failed = steps_until_outcome(ranks)
    assert "part1of2.h5: the file is missing" in failed.error
    assert "Not a directory" in ranks[1].outcomes.get(timeout=DEADLINE_S).error
    assert steps_until_outcome(ranks).error == ""
    settle(ranks)


def test_a_leader_that_cannot_write_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    ranks = [Rank(tmp_path / "a file" / "there"), Rank(tmp_path / "here")]
    assert "Not a directory" in steps_until_outcome(ranks).error
    second = steps_until_outcome(ranks)
    assert "Not a directory" in second.error
    assert second.step > 1
    settle(ranks)


def test_a_regroup_gives_the_checkpoint_up_and_the_next_one_is_due_at_once(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, interval_s=0.0), *(Rank(tmp_path, interval_s=1e9) for _ in range(2))]
    step(ranks)
    settle(ranks[:1])
    survivors = ranks[1:]
    done = steps_until_outcome(survivors, generation=2)
    assert done.generation == 2
    survivors[0].saver.wait()
    left = [entry.path.name for entry in names.parts(tmp_path)]
    assert left == [names.part_name(2, done.step, part, 2) for part in range(2)]
    settle(ranks)


def test_a_group_of_one_writes_the_whole(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path)]
    done = steps_until_outcome(ranks)
    settle(ranks)  # another one may have begun
    assert names.checkpoint_name(1, done.step) in {path.name for path in tmp_path.iterdir()}
    assert not [*names.parts(tmp_path)]
    assert done.alone_s == done.seconds


def test_nothing_is_left_of_a_checkpoint_under_way_when_there_is_no_step_more(tmp_path: Path) -> None:
    ranks = ranks_in(tmp_path, 3)
    step(ranks)
    for rank in ranks:
        rank.periodic.abandon()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_saved_before_it_is_due(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, interval_s=1e9) for _ in range(2)]
    for _ in range(3):
        step(ranks)
    assert not any(rank.saver.busy for rank in ranks)
    assert list(tmp_path.iterdir()) == []
