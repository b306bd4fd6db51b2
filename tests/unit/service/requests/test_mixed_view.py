"""What users are told of nodes of several types, of unequal shares, and of slow nodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pilot.core.config import CoordinatorConfig
from pilot.core.events import PoolChanged, SpeedsMeasured
from pilot.core.pool.node_type import NodeType
from pilot.protocol.fields import StepTimes
from pilot.service.requests import mixed_view, warnings
from tests.unit.service.stage import A, B, C, G, Stage, T

FAST, SLOW = NodeType("fast"), NodeType("slow")


@pytest.fixture
def stage() -> Stage:
    """Trains T on two nodes of one type."""
    stage = Stage(CoordinatorConfig(typed=True))
    stage.post(PoolChanged(joined=(A, B), types=((A, FAST), (B, FAST))))
    stage.trains(A, B)
    return stage


def roster(**times: StepTimes) -> SimpleNamespace:
    pilots = {n: SimpleNamespace(job="17", timed=("t", t)) for n, t in times.items()}
    return SimpleNamespace(pilots=pilots)


def test_nodes_are_told_by_type_only_if_they_differ(stage: Stage) -> None:
    assert mixed_view.by_type(stage.core, (A, B)) == {}
    stage.post(PoolChanged(joined=(C,), types=((C, SLOW),)))
    assert mixed_view.by_type(stage.core, (A, B)) == {"fast": 2}
    assert mixed_view.by_type(stage.core, (A, B, C)) == {"fast": 2, "slow": 1}


def test_shares_are_told_only_if_they_differ_and_all_are_known(stage: Stage) -> None:
    trainer, ten = stage.core.trainers[T], StepTimes(10, 240, 1.0, 1.0)
    assert mixed_view.shares(None, trainer) == mixed_view.shares(roster(a=ten), trainer) == {}
    assert mixed_view.shares(roster(a=ten, b=StepTimes(10, 239, 1.0, 1.0)), trainer) == {}
    assert mixed_view.shares(roster(a=ten, b=StepTimes(10, 120, 1.0, 1.0)), trainer) == {"a": 24.0, "b": 12.0}


@pytest.mark.parametrize(("loss", "told"), [(0.0, []), (0.02, []), (0.125, ["12%"])])
def test_what_the_limit_of_shares_costs_is_told(stage: Stage, loss: float, told: list[str]) -> None:
    times = roster(a=StepTimes(10, 240, 1.0, 1.0, limit_loss=loss), b=StepTimes(10, 240, 1.0, 1.0))
    found = list(mixed_view.of_shares(times, stage.core.trainers[T]))
    assert [line.split()[0] for line in found] == told
    assert all('shares="free"' in line for line in found)


def test_a_slow_node_is_told_with_what_to_do(stage: Stage) -> None:
    for now_s in range(0, 200, 30):
        stage.at(float(now_s)).post(SpeedsMeasured(T, G, ((A, 100.0), (B, 40.0))))
    (line,) = mixed_view.slow_nodes(stage.core, roster(b=StepTimes(10, 240, 1.0, 1.0)))
    does = "it did 40% of what other fast nodes do for t"
    assert line == f"b counts as slow: {does}; to leave it out, end its job 17"
    assert mixed_view.by_type(stage.core, (A, B)) == {"fast": 1, "fast/slow": 1}


def test_a_type_on_which_a_trainer_ran_out_of_memory_is_told_with_what_to_do(stage: Stage) -> None:
    trainer = stage.core.trainers[T]
    trainer.excluded["slow"] = "it ran out of memory on slow: killed"
    told = list(warnings.of_trainer(stage.core, stage.monitor, trainer))
    assert told == ["it ran out of memory on slow: killed; it gets no such node until pilot resume t"]
