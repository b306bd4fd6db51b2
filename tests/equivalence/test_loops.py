"""Loops by iteration: on any number of ranks the same as alone, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.ledger import Ledger
from tests.equivalence.loops import BATCH, DATA, SAMPLES, Plain, Result, fresh, session, tensors
from tests.equivalence.rows import assert_agree, assert_refused, on_ranks
from tests.equivalence.ways import WAYS
from tests.unit.train.storm import End

STEPS = 14
X = DATA.tensors[0]


@dataclass(frozen=True)
class Loop:
    """How a script does its steps."""

    turn: Callable[[Any, Any, Callable[[torch.Tensor], torch.Tensor]], None]
    options: dict[str, Any]
    stream: bool = False


def by_for(session: Any, loader: Any, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for (batch,) in loader:
        loss = loss_of(batch)
        loss.backward()
        session.step(loss)


def by_next(session: Any, loader: Any, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    (batch,) = loader.next()
    loss = loss_of(batch)
    loss.backward()
    session.step(loss)


LOOPS = {
    "for": Loop(by_for, {"global_batch_size": BATCH}),
    "for, drop_last": Loop(by_for, {"global_batch_size": BATCH, "drop_last": True}),
    "for, micro-batches": Loop(by_for, {"global_batch_size": BATCH, "micro_batch_size": 1}),
    "for, stream": Loop(by_for, {"global_batch_size": BATCH}, stream=True),
    "next": Loop(by_next, {"global_batch_size": BATCH}),
    "next, more ranks than samples": Loop(by_next, {"global_batch_size": 1}),
    "next, drawn without end": Loop(by_next, {"global_batch_size": BATCH, "replacement": True}),
    "next, so many draws": Loop(by_next, {"global_batch_size": BATCH, "replacement": True, "num_samples": 10}),
}


def wide() -> nn.Module:
    return nn.Linear(3, 2)


def parts() -> tuple[Any, torch.optim.Optimizer]:
    model = fresh(wide)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def trained(made: Callable[..., Any], loop: Loop) -> Result:
    model, optimizer = parts()
    session = made(model, optimizer)
    data = TensorDataset(X)
    loader = (session.stream if loop.stream else session.loader)(data, **loop.options)

    def loss_of(batch: torch.Tensor) -> Any:
        return (model(batch) - 0.5).square().mean()

    state = session.state
    for step in session.iterations(STEPS):
        state["turns"] = state.get("turns", 0) + 1
        if step % 5 == 0:
            means = session.evaluate(data, lambda b: {"loss": loss_of(b[0])}, batch_size=3)
            state["seen"] = {**state.get("seen", {}), step: means["loss"]}
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)
        loop.turn(session, loader, loss_of)
        optimizer.zero_grad()
    return tensors(model=model, state=state, steps=session.steps)


@pytest.mark.parametrize("name", LOOPS)
def test_equal_to_the_plain_loop(name: str) -> None:
    script = partial(trained, loop=LOOPS[name])
    expected = script(Plain)
    assert_agree([script(session)], expected)
    for way, (count, ends) in WAYS.items():
        assert_agree(on_ranks(lambda: script(session), count, list(ends)), expected, way=way)


flags = st.lists(st.booleans(), min_size=1, max_size=4).map(tuple)
storms = st.lists(st.builds(End, st.integers(0, 14), flags, flags, st.integers(0, 2), st.booleans()), max_size=6)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(count=st.integers(1, 3), ends=storms, name=st.sampled_from([*LOOPS]))
@example(count=2, ends=[End(6, (False,), (False,), 0), End(1, (False,), (False,), 0)], name="for")
@example(count=1, ends=[End(0, (False,), (False,), 1)], name="for")
def test_whatever_happens_to_the_group_a_loop_gives_what_it_gives_alone(count: int, ends: list[End], name: str) -> None:
    script = partial(trained, loop=LOOPS[name])
    assert_agree(on_ranks(lambda: script(session), count, ends), script(Plain))


class Made:
    """What a script creates before its loop."""

    def __init__(self, **options: Any) -> None:
        self.model, self.optimizer = parts()
        self.session = session(self.model, self.optimizer)
        self.loader = self.session.loader(TensorDataset(X), **({"global_batch_size": BATCH} | options))

    def step(self, batch: list[torch.Tensor]) -> None:
        self.optimizer.zero_grad()
        self.model(batch[0]).square().mean().backward()
        self.session.step()

    @property
    def position(self) -> Any:
        return self.session._training.position


def test_a_loop_goes_on_where_it_was_with_more_steps_to_do() -> None:
    first, whole = Made(), Made()
    for _ in first.session.iterations(8):
        first.step(first.loader.next())
    second = Made()
    second.session._training.restore(first.session._training.capture())
    begun = []
    for step in second.session.iterations(STEPS):
        begun.append(step)
        second.step(second.loader.next())
    for _ in whole.session.iterations(STEPS):
        whole.step(whole.loader.next())
    assert begun == list(range(8, STEPS))
    assert torch.equal(second.model.weight, whole.model.weight)
    ledger = Ledger()
    ledger.add(LedgerRange(Generation(row[0]), *row[1:]) for row in second.session._training.ledger.rows)
    assert ledger.exactly_once({0: SAMPLES, 1: SAMPLES, 2: (STEPS - 12) * BATCH}).proved


def test_one_rank_that_asks_to_stop_stops_all_after_the_same_step() -> None:
    def script() -> list[int]:
        made, turns = Made(), []
        for step in made.session.iterations(STEPS):
            turns.append(step)
            if step == 3 and made.session.rank == 1:
                made.session.stop()
            made.step(made.loader.next())
        assert made.position.stopped
        return turns

    assert on_ranks(script, 2, []) == [[0, 1, 2, 3]] * 2


def takes_a_batch_before(made: Made) -> None:
    made.loader.next()


def takes_the_next_batch_early(made: Made) -> None:
    for _ in made.session.iterations(3):
        made.step(made.loader.next())
        made.loader.next()


def skips_a_turn(made: Made) -> None:
    for _ in made.session.iterations(3):
        continue


def skips_a_batch(made: Made) -> None:
    for _ in made.session.epochs(1):
        for number, batch in enumerate(made.loader):
            if number % 2:
                made.step(batch)


def takes_two_batches(made: Made) -> None:
    for _ in made.session.iterations(3):
        made.loader.next()
        made.step(made.loader.next())


def takes_next_in_an_epoch(made: Made) -> None:
    for _ in made.session.epochs(1):
        made.step(made.loader.next())


def begins_anew_for_each_batch(made: Made) -> None:
    for _ in made.session.epochs(1):
        for _step in range(3):
            made.step(next(iter(made.loader)))


def leaves_an_epoch_early(made: Made) -> None:
    for _ in made.session.epochs(2):
        for batch in made.loader:
            made.step(batch)
            break


def evaluates_in_a_step(made: Made) -> None:
    for _ in made.session.iterations(3):
        made.loader.next()
        made.session.evaluate(TensorDataset(X), lambda b: {"loss": b[0].mean()})


ROWS: list[tuple[Callable[[Made], None], dict[str, Any], str]] = [
    (takes_a_batch_before, {}, "session.iterations"),
    (takes_the_next_batch_early, {}, "one step"),
    (skips_a_turn, {}, "ended without its step"),
    (skips_a_batch, {}, "without calling session.step"),
    (takes_two_batches, {}, "micro_batch_size"),
    (takes_next_in_an_epoch, {}, "is for session.iterations"),
    (begins_anew_for_each_batch, {}, "one pass"),
    (leaves_an_epoch_early, {}, "left in the middle of an epoch"),
    (evaluates_in_a_step, {}, "between two steps"),
    (takes_the_next_batch_early, {"micro_batch_size": 2}, "for batch in loader"),
    (takes_the_next_batch_early, {"global_batch_size": 40, "drop_last": True}, "no full step"),
]


@pytest.mark.parametrize(("script", "options", "line"), ROWS, ids=[f"{s.__name__}-{line}" for s, _, line in ROWS])
def test_it_is_refused(script: Callable[[Made], None], options: dict[str, Any], line: str) -> None:
    assert_refused(lambda: script(Made(**options)), line)


@pytest.mark.parametrize(("count", "ends"), [*WAYS.values(), (3, [])])
def test_a_schedule_of_samples_is_as_far_after_them_on_any_number_of_nodes(count: int, ends: list[End]) -> None:
    """With 4 samples per node, an epoch of 22 has 6 steps on one node, 3 on two and 2 on three."""

    def script() -> list[tuple[int, float]]:
        model, optimizer = parts()
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        ours = session(model, optimizer, decay, schedule="samples", lr_rule="none")
        loader = ours.loader(TensorDataset(X), batch_size=BATCH)
        far = []
        for epoch in ours.epochs(3):
            for (batch,) in loader:
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                ours.step()
                position = ours._training.position
                if position.epoch == epoch:
                    far.append((6 * epoch - (-position.cursor // BATCH), optimizer.param_groups[0]["lr"]))
        return far

    for far in on_ranks(script, count, list(ends)):
        assert far[-1] == (18, pytest.approx(0.05 * 0.5**18, rel=1e-9))
        for steps_of_one_node, lr in far:
            assert lr == pytest.approx(0.05 * 0.5**steps_of_one_node, rel=1e-9)


STORM_AT_THE_END = [
    End(7, (False, True, True, False), (True, True, False), 2, False),
    End(0, (False, False), (False, False), 1, False),
    End(10, (True,), (True, False, False), 0, False),
    End(2, (False,), (False, True, False, False), 1, False),
    End(9, (False,), (False,), 0, False),
]


@pytest.mark.parametrize("name", ["for", "next"])
def test_ranks_that_are_given_the_loops_end_leave_it(name: str) -> None:
    """One rank had begun to leave the loop when the group broke; the others took over that all had left it."""
    script = partial(trained, loop=LOOPS[name])
    assert_agree(on_ranks(lambda: script(session), 2, list(STORM_AT_THE_END)), script(Plain))
