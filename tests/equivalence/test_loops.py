"""Loops by iteration, and schedules and weights of all ranks: what rows do not show."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pilot.core.errors import UserError
from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.ledger import Ledger
from tests.equivalence.loops import BATCH, DATA, SAMPLES, Loop, Plain, fresh, linear, session
from tests.equivalence.rows import assert_agree, in_world, on_ranks
from tests.equivalence.topics.loops import ADAM, BY_ITERATION, STEPS, WIDE, weighs
from tests.equivalence.ways import WAYS
from tests.unit.train.storm import End

FOR, NEXT = "session.iterations, for batch in loader", "session.iterations, loader.next"
LEAVES_THE_LOOP = [
    End(7, (False, True, True, False), (True, True, False), 2, False),
    End(0, (False, False), (False, False), 1, False),
    End(10, (True,), (True, False, False), 0, False),
    End(2, (False,), (False, True, False, False), 1, False),
    End(9, (False,), (False,), 0, False),
]
"""One rank begins to leave the loop when the group breaks; the others take over that all have left it."""

flags = st.lists(st.booleans(), min_size=1, max_size=4).map(tuple)
storms = st.lists(st.builds(End, st.integers(0, 14), flags, flags, st.integers(0, 2), st.booleans()), max_size=6)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(count=st.integers(1, 3), ends=storms, name=st.sampled_from([*BY_ITERATION]))
@example(count=2, ends=[End(6, (False,), (False,), 0), End(1, (False,), (False,), 0)], name=FOR)
@example(count=1, ends=[End(0, (False,), (False,), 1)], name=FOR)
@example(count=2, ends=LEAVES_THE_LOOP, name=FOR)
@example(count=2, ends=LEAVES_THE_LOOP, name=NEXT)
def test_whatever_breaks_the_group_a_loop_gives_what_it_gives_alone(count: int, ends: list[End], name: str) -> None:
    script = BY_ITERATION[name]
    assert_agree(on_ranks(lambda: script(session), count, list(ends)), script(Plain))


def iterating(count: int, begin: Loop | None = None) -> tuple[Loop, list[int]]:
    """The objects of a script that resumes from the state of another one, and the numbers of its steps."""
    loop, numbers = Loop(model=WIDE, optimizer=ADAM), []
    if begin is not None:
        loop.session._training.restore(begin.session._training.capture())
    for number in loop.session.iterations(count):
        numbers.append(number)
        x, _ = loop.loader.next()
        loop.step(x)
    return loop, numbers


def test_a_loop_continues_with_more_steps_where_it_was() -> None:
    first, _ = iterating(8)
    second, numbers = iterating(STEPS, begin=first)
    undisturbed, _ = iterating(STEPS)
    assert numbers == list(range(8, STEPS))
    assert torch.equal(second.model.weight, undisturbed.model.weight)
    ledger = Ledger()
    ledger.add(LedgerRange(Generation(row[0]), *row[1:]) for row in second.session._training.ledger.rows)
    assert ledger.exactly_once({0: SAMPLES, 1: SAMPLES, 2: (STEPS - 12) * BATCH}).proved


@pytest.mark.parametrize("at", range(8))
def test_a_training_that_has_ended_continues_with_more_steps(at: int) -> None:
    world, _ = in_world(lambda: iterating(6), 1, [])
    ends = [End(at, (False,), (False,), 1)]
    _, ranks = in_world(lambda: iterating(12)[0].tensors(), 2, ends, begin=world.ended)
    assert_agree(ranks, iterating(12)[0].tensors())


def test_one_rank_that_asks_to_stop_stops_all_after_the_same_step() -> None:
    def script() -> list[int]:
        loop, numbers = Loop(), []
        for number in loop.session.iterations(STEPS):
            numbers.append(number)
            if number == 3 and loop.session.rank == 1:
                loop.session.stop()
            loop.step(*loop.loader.next())
        assert loop.session._training.position.stopped
        return numbers

    assert on_ranks(script, 2, []) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(("count", "ends"), [*WAYS.values(), (3, [])])
def test_a_schedule_of_samples_does_not_depend_on_the_number_of_nodes(count: int, ends: list[End]) -> None:
    """With 4 samples per node, an epoch of 22 has 6 steps on one node, 3 on two and 2 on three."""

    def script() -> list[tuple[int, float]]:
        model = fresh(linear)
        optimizer = ADAM(model.parameters())
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        ours = session(model, optimizer, decay, schedule="samples", lr_rule="none")
        loader = ours.loader(DATA, batch_size=BATCH)
        rates = []
        for epoch in ours.epochs(3):
            for x, _ in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                ours.step()
                position = ours._training.position
                if position.epoch == epoch:
                    rates.append((6 * epoch - (-position.cursor // BATCH), optimizer.param_groups[0]["lr"]))
        return rates

    for rates in on_ranks(script, count, list(ends)):
        assert rates[-1] == (18, pytest.approx(0.05 * 0.5**18, rel=1e-9))
        for steps_of_one_node, lr in rates:
            assert lr == pytest.approx(0.05 * 0.5**steps_of_one_node, rel=1e-9)


def test_a_weight_on_one_rank_alone_is_refused() -> None:
    def script() -> None:
        loop = Loop()
        weighs(loop, lambda _: 1.0 if loop.session.rank == 0 else None)

    with pytest.raises(UserError, match="on one rank"):
        on_ranks(script, 2, [])
