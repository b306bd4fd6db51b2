"""Several optimizers by name: what must be the same on all ranks, and what may follow the last step of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pilot.core.errors import UserError
from pilot.train.data import rng
from pilot.train.data.sampler import mix
from pilot.train.ranks import script_end
from tests.equivalence.loops import DATA, linear, session, sgd
from tests.equivalence.rows import SEED, on_ranks
from tests.equivalence.topics.several import Several, Two


def test_ranks_that_step_different_optimizers_are_refused_with_both_names() -> None:
    def script() -> None:
        two = Two()
        for x, _ in two.batches():
            two.backward(x)
            two.session.step(name="one" if two.session.rank == 0 else "other")

    with pytest.raises(UserError, match="rank 0 steps 'one' and rank 1 steps 'other'"):
        on_ranks(script, 2, [])


def test_an_evaluation_right_after_the_last_of_several_steps_is_divided_among_the_ranks() -> None:
    def script() -> int:
        its, samples = Several(session, {"a": sgd}, a=linear), [0]

        def measures(batch: Any) -> dict[str, float]:
            samples[0] += len(batch[0])
            return {"loss": 1.0}

        for x, _ in its.batches():
            its.step_all(x)
            if its.session.steps == 2:
                its.session.evaluate(DATA, measures, batch_size=1)
        return samples[0]

    assert sum(on_ranks(script, 2, [])) == len(DATA)


def test_a_break_right_after_the_last_of_several_steps_ends_the_training() -> None:
    its = Several(session, {"a": sgd}, a=linear)
    for _ in its.session.iterations(5):
        its.step_all(its.loader.next()[0])
        break
    script_end.script_ended()
    assert its.session._training.position.stopped


def test_each_rank_draws_its_own_numbers_for_each_optimizer() -> None:
    """Also for the second one, though all ranks draw the same in the first one's step."""

    def script() -> tuple[int, list[float]]:
        its, numbers = Several(session, {"a": sgd, "b": sgd}, a=linear, b=linear), list[float]()
        for x, _ in its.batches():
            for name, model in its.models.items():
                numbers.append(torch.rand(()).item())
                its.optimizers[name].zero_grad()
                model(x).square().mean().backward()
                its.session.step(name=name)
        return its.session.rank, numbers

    for rank, numbers in on_ranks(script, 2, []):
        places = [(step, rank, *([phase] if phase else [])) for step in range(12) for phase in range(2)]
        assert numbers == [drawn_at(*place) for place in places]


def drawn_at(*place: int) -> float:
    rng.seed_all(mix(SEED, *place))
    return torch.rand(()).item()
