"""``loader.enumerate`` gives the numbers of an undisturbed epoch."""

from __future__ import annotations

import pytest

from pilot.core.errors import UserError
from pilot.train.data.sampler import Batching
from pilot.train.data.training_loader import Loader
from tests.equivalence.loops import Loop
from tests.unit.train.positioned import LoopView, Noisy, made

STEP, STEPS = 4, 5


class Stepping(LoopView):
    """Applies each step when its last batch comes back, unless that is ``void``."""

    void = False

    def end_batch(self) -> None:
        share, batch = self.begun[-1]
        if batch + 1 == len(share.batches):
            self.cursor = share.cursor if self.void else share.cursor_end
            self.steps += not self.void
            self.revision += self.void


def two_of(loop: LoopView) -> Loader:
    """Two batches per step."""
    return made(loop, Noisy([()] * STEP * STEPS), Batching(total=STEP, micro=2), options={})


def test_a_pass_begins_in_the_middle_and_a_void_step_is_repeated() -> None:
    loop = Stepping(cursor=2 * STEP, steps=2)
    batches = two_of(loop).enumerate()
    assert [next(batches)[0] for _ in range(4)] == [4, 5, 6, 7]
    loop.void = True
    assert next(batches)[0] == 6
    loop.void = False
    assert [number for number, _ in batches] == [7, 8, 9]


def test_a_process_that_comes_after_the_last_step_sees_its_numbers() -> None:
    assert [number for number, _ in two_of(LoopView(cursor=STEP * STEPS, steps=STEPS)).enumerate()] == [8, 9]


@pytest.mark.parametrize("stream", [False, True])
def test_it_belongs_into_a_loop_of_epochs(stream: bool) -> None:
    loop = Loop(stream=stream)
    with pytest.raises(UserError, match=r"inside `for epoch in session\.epochs"):
        loop.loader.enumerate()
    for _ in loop.session.iterations(1):
        with pytest.raises(UserError, match=r"^loader\.enumerate\(\) is for session\.epochs;[^\n]*$"):
            loop.loader.enumerate()
        break
