"""``enumerate(loader)`` gives the numbers of an undisturbed epoch, and other counters are left alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pilot.train.data.loader import Loader
from pilot.train.data.sampler import Batching
from tests.unit.train.test_loader import Course, Noisy

STEP, STEPS = 4, 5


class Stepping(Course):
    """Applies each step when its last batch comes back, unless that is ``void``."""

    void = False

    def came_back(self) -> None:
        share, batch = self.begun[-1]
        if batch + 1 == len(share.batches):
            self.cursor = share.cursor if self.void else share.cursor_end
            self.steps += not self.void
            self.revision += self.void


def loader_of(course: Course) -> Loader:
    """Two batches per step."""
    return Loader(course, Noisy([()] * STEP * STEPS), Batching(whole=STEP, micro=2), options={})


def after_steps(count: int) -> Stepping:
    return Stepping(cursor=count * STEP, steps=count)


def test_a_pass_begins_in_the_middle_and_a_void_step_is_repeated() -> None:
    course = after_steps(2)
    batches = enumerate(loader_of(course))
    assert [next(batches)[0] for _ in range(4)] == [4, 5, 6, 7]
    course.void = True
    assert next(batches)[0] == 6
    course.void = False
    assert [number for number, _ in batches] == [7, 8, 9]


def test_a_process_that_comes_after_the_last_step_sees_its_numbers() -> None:
    assert [number for number, _ in enumerate(loader_of(Course(cursor=STEP * STEPS, steps=STEPS)))] == [8, 9]


def test_a_counter_that_has_a_number_of_its_own_keeps_it() -> None:
    """As one of several batches at once."""

    def pairs(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch, next(iter(batches))

    others = enumerate("abc")
    assert next(others) == (0, "a")
    assert next(enumerate(pairs(iter(loader_of(after_steps(3))))))[0] == 6
    assert next(others) == (1, "b")


def test_a_script_may_leave_the_loop() -> None:
    for number, _ in enumerate(loader := loader_of(after_steps(1))):
        assert number == 2
        break
    assert loader._numbers._batches is not None
    assert loader._numbers._batches() is None, "which ends the loader's generator"
