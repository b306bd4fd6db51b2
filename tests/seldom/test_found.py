"""Rounds of scripts that were found to go wrong, with real processes and MPI."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.core.commands import WriteCheckpoint
from pilot.core.errors import UserError
from pilot.protocol import wire
from pilot.protocol.run_identity import SYNC
from pilot.train.state.outer import Outer
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training
from tests.integration.plane import Plane, plane
from tests.seldom import scripts
from tests.unit.train.storm import travelled


@contextmanager
def running(folder: Path, name: str, **options: Any) -> Iterator[Plane]:
    """A script of :mod:`tests.seldom.scripts` on nodes."""
    with plane(folder, Path(scripts.__file__), str(folder), name, **options) as cluster:
        yield cluster


def assert_ended_alike(folder: Path, nodes: int, epochs: int | None = None) -> None:
    """Check that so many nodes ended with the same values and ledger, which covers ``epochs`` once."""
    ends = [torch.load(path) for path in folder.glob("end-*")]
    assert len(ends) == nodes
    for end in ends:
        assert end["rows"] == ends[0]["rows"]
        for name, value in end["values"].items():
            assert torch.equal(value, ends[0]["values"][name]), name
            assert not value.is_floating_point() or value.abs().max() < 100
    used = defaultdict(list)
    for _, epoch, step, step_end, start, stop in ends[0]["rows"]:
        assert step < step_end
        used[epoch] += range(start, stop)
    for epoch in range(epochs or 0):
        assert sorted(used[epoch]) == list(range(scripts.SAMPLES))


def test_iterations_are_over_on_all_nodes(tmp_path: Path) -> None:
    with running(tmp_path, "iterations") as cluster:
        cluster.form(cluster.start(2))
        cluster.wait_finished()
        cluster.stop()
    assert_ended_alike(tmp_path, 2)


def test_a_newcomer_that_trains_less_by_now_takes_no_part_in_a_sum(tmp_path: Path) -> None:
    with running(tmp_path, "unfreezing") as cluster:
        a, b = cluster.start(2)
        cluster.form([a, b])
        cluster.wait_step(30)
        c = cluster.start()[0]
        cluster.lose(b)
        cluster.form([a, c])
        cluster.wait_finished()
        cluster.stop()
    assert_ended_alike(tmp_path, 2, epochs=3)


def test_a_script_may_ask_how_long_its_loader_is_within_a_step(tmp_path: Path) -> None:
    with running(tmp_path, "measuring") as cluster:
        cluster.form(cluster.start(2))
        cluster.wait_finished()
        cluster.stop()
    assert_ended_alike(tmp_path, 2, epochs=3)


def test_frozen_parameters_that_nodes_change_on_their_own_are_found(tmp_path: Path) -> None:
    with running(tmp_path, "momentum_encoder") as cluster:
        nodes = cluster.start(2)
        cluster.form(nodes, wait=False)
        cluster.wait_raised(nodes)
        assert "2.frozen.weight has differed" in cluster.logs()


def test_a_node_saves_the_last_round_that_is_held_when_its_group_is_gone(tmp_path: Path) -> None:
    """Its own inner steps stay, and count when the round is closed."""
    with running(tmp_path, "unfreezing") as cluster:
        a, b, c = cluster.start(3)
        cluster.form([a, b, c])
        cluster.wait_step(25)
        cluster.lose(c)
        cluster.dissolve()
        a.tell(WriteCheckpoint("t1", "", ""))
        cluster.wait(lambda: bool(a.heard(wire.CheckpointWritten)), "a checkpoint")
        written = a.heard(wire.CheckpointWritten)[0]
        assert (written.step, written.error) == (max(one.step for one in a.heard(wire.GroupFormed)) or written.step, "")
        cluster.form([a, b])
        cluster.wait_finished()
        cluster.stop()
    assert_ended_alike(tmp_path, 2, epochs=3)


def test_processes_of_a_node_resume_with_the_same_inner_optimizer(tmp_path: Path) -> None:
    with running(tmp_path, "long", ranks_per_node=2) as cluster:
        first = cluster.start(2)
        cluster.form(first)
        cluster.wait_step(30)
        for node in first:
            node.tell(WriteCheckpoint("t1", "", ""))
        cluster.wait(lambda: bool(first[0].heard(wire.CheckpointWritten)), "a checkpoint")
        for node in first:
            cluster.kill(node)
        cluster.dissolve()
        second = cluster.start(2)
        cluster.form(second)
        saved = cluster.wait_up(cluster.generation).step
        cluster.wait_step(saved + 15)
        one, other = ([row for row in node.log.read_text().splitlines() if row.startswith("step")] for node in second)
        assert one[:10] == other[:10]


def test_periodic_checkpoints_do_not_compare_inner_optimizers(tmp_path: Path) -> None:
    with running(tmp_path, "long", interval_s=0.3) as cluster:
        nodes = cluster.start(2)
        cluster.form(nodes)
        cluster.wait(lambda: len(nodes[0].heard(wire.CheckpointWritten)) > 1, "two checkpoints")
        assert not any(one.error for one in nodes[0].heard(wire.CheckpointWritten))


class Masked(nn.Module):
    """A model with an infinite buffer, a large whole number, and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4))
        self.register_buffer("prime", torch.tensor([0x1E3779B97F4A7C15]))


def outer_of(model: nn.Module, **tracked: nn.Module) -> Outer:
    """Return what nodes share of ``model``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    training = Training(model, optimizer, None, None, LearningRate(None), sync=pilot.train.LocalSGD(every=3))
    training.tracked.update(tracked)
    assert training.outer is not None
    training.outer.renew()
    return training.outer


def test_buffers_that_do_not_change_stay_as_they_are() -> None:
    model = Masked()
    outer = outer_of(model)
    mask = model.mask.clone()
    outer.open()
    model.norm(torch.randn(8, 4))
    outer.contribute()
    outer.step()
    assert torch.equal(model.mask, mask)
    assert model.prime.item() == 0x1E3779B97F4A7C15
    assert model.norm.num_batches_tracked == 1


def test_values_are_exchanged_for_those_of_the_rounds_beginning_and_back() -> None:
    model = Masked()
    outer = outer_of(model)
    before = received_state(model)
    outer.open()
    with torch.no_grad():
        model.linear.weight.add_(1)
    model.norm(torch.randn(8, 4))
    after = received_state(model)
    outer.swap()
    assert_same(received_state(model), before)
    outer.swap()
    assert_same(received_state(model), after)


def test_parameters_that_are_tracked_as_well_are_stepped_once() -> None:
    model = nn.Linear(2, 1)
    outer = outer_of(model, again=nn.ModuleDict({"model": model}))
    assert len(outer.values) == 2


def test_a_state_with_samples_that_were_put_back_needs_rounds() -> None:
    def training(sync: Any) -> Training:
        model = nn.Linear(2, 1)
        return Training(model, torch.optim.SGD(model.parameters(), lr=1e-2), None, None, LearningRate(None), sync=sync)

    its = training(pilot.train.LocalSGD(every=3))
    its.position.back = [[8, 16]]
    without = training(None)
    without.accepted |= {SYNC}
    with pytest.raises(UserError, match="resume with sync="):
        without.restore(travelled(its))


def received_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of what ``model`` has."""
    return {name: one.clone() for name, one in model.state_dict().items()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Check that both have the same values."""
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_alone_it_is_plain_training_with_the_outer_step() -> None:
    """Local SGD of one node is the plain loop, bit for bit."""

    def trained(sync: Any) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        x = torch.randn(40, 4).double()
        loader = torch.utils.data.DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
        if sync is None:
            for a, b in [*loader, *loader]:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(a), b).backward()
                optimizer.step()
            return model.weight.tolist()
        its = pilot.train.session(model, optimizer, sync=sync)
        batches = its.loader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=False)
        for _ in its.epochs(2):
            for batch in batches:
                scripts.step(its, model, batch)
        return model.weight.tolist()

    assert trained(pilot.train.LocalSGD(every=3)) == trained(None)


def test_the_end_of_each_round_is_saved_when_it_is_due(tmp_path: Path) -> None:
    """Also when the group changes at that end."""
    with running(tmp_path, "unfreezing", interval_s=0.01) as cluster:
        a, b = cluster.start(2)
        cluster.form([a, b])
        cluster.wait_step(30)
        c = cluster.start()[0]
        cluster.form([a, b, c], switch=True)
        step = a.heard(wire.GroupFormed)[1].step
        cluster.wait(lambda: step in [one.step for one in a.heard(wire.CheckpointWritten)], f"that of step {step}")
        assert not any(one.error for one in a.heard(wire.CheckpointWritten))
        cluster.wait_finished()
        cluster.stop()
    assert_ended_alike(tmp_path, 3, epochs=3)
