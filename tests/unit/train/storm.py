"""A trainer whose groups break, in one process: each rank of a :class:`~pilot.train.check.world.RankWorld` is a thread
with a real session.

The ranks take turns: one runs until it waits for the others. So each has random generators of its own, which threads
share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pilot.train.check.world
from pilot.train.check.group import ScenarioGroup
from pilot.train.check.world import End as End
from pilot.train.check.world import Killed, Member
from pilot.train.check.world import SavePoint as Keep
from pilot.train.data import rng
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import Bounds, StepShare
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.ranks import script_end
from pilot.train.ranks.reporter import Metrics
from pilot.train.state.block import Packed, encoded, unpack
from pilot.train.state.training import Training

DEADLINE_S = 20.0
NEXT_STEP = "next step"
"""What a kept state has besides: see :mod:`pilot.train.alike.next_step`."""
_here = threading.local()


class _LeftByThread(threading.local):
    """What ranks' scripts have left for their ends, of each thread by itself: a rank that is killed forgets its own. A
    loop of an earlier world leaves nothing, when Python happens to collect it in this thread.
    """

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self.calls)

    def append(self, call: Callable[[], None]) -> None:
        link = getattr(getattr(getattr(call, "__self__", None), "group", None), "_link", None)
        if link is None or link.world is getattr(_here, "world", None):
            self.calls.append(call)

    def pop(self) -> Callable[[], None]:
        return self.calls.pop()

    def clear(self) -> None:
        self.calls.clear()


_left_by_thread = _LeftByThread()


class World(pilot.train.check.world.RankWorld):
    """Runs ``script`` on each rank; its session's group comes from :func:`group_of`. ``begin``: the state of an earlier
    run that it resumes from; ``ended``: the one after the loop; ``slowness``: how long each rank, by birth, computes
    for a sample, if shares are to follow that; ``bounds``: how each step was divided.
    """

    def __init__(
        self,
        script: Callable[[], Any],
        count: int,
        ends: Sequence[End],
        begin: dict[str, Any] | None = None,
        keep: Keep | None = None,
        slowness: Sequence[float] = (),
    ) -> None:
        resumed = dict(begin or {})
        beside = resumed.pop(NEXT_STEP, b"")
        state = bytes(Packed(encoded(resumed)).to_bytes()) if resumed else b""
        super().__init__(ends, begin=(state, beside), keep=keep, deadline_s=DEADLINE_S)
        self._script = script
        self._threads: list[threading.Thread] = []
        self.results: list[Any] = []
        self.ended: dict[str, Any] = {}
        self.groups: dict[Member, ScenarioGroup] = {}
        self.rehearsals: dict[int, dict[int, int]] = {}
        self.slowness = slowness
        self.bounds: dict[int, Bounds] = {}
        _left_by_thread.clear()
        script_end._left = _left_by_thread  # type: ignore[assignment]  # what is used of a list
        self.spawn(count)

    @property
    def kept_state(self) -> dict[str, Any] | None:
        """The state that was to be kept."""
        block, beside = self.saved
        return {**unpack(bytearray(block)), **({NEXT_STEP: beside} if beside else {})} if block else None

    def run(self) -> list[Any]:
        """The script's result on each rank of the last generation."""
        for thread in self._threads:
            thread.join(DEADLINE_S)
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in self._threads), "the ranks wait for each other"
        assert len(self.results) == len(self.ranks)
        return self.results

    def start_rank(self) -> None:
        self._threads.append(threading.Thread(target=self._live, daemon=True))
        self._threads[-1].start()

    def order(self, born: int) -> int:
        """Newcomers come first, in the middle, and last."""
        return (born - 1) * 7 % 11

    def wait(self, done: Callable[[], bool]) -> None:
        """The others draw numbers of their own meanwhile."""
        generators = rng.capture()
        super().wait(done)
        rng.restore(generators)

    def _live(self) -> None:
        _here.world = self
        with self.changed:
            try:
                self.results.append(self._script())
            except Killed as killed:
                if not (self.errors or _here.member.killed):  # by what an earlier world has left in this process
                    self.fail(killed)
            except BaseException as error:
                self.fail(error)


class Rank(ScenarioGroup):
    """One rank's group."""

    def __init__(self, world: World, training: Training, exchanges: Exchanges, resized: Callable[[int], None]) -> None:
        rank = _here.member = world.member()
        super().__init__(rank, training, exchanges, resized)
        self._world = world
        self._per_sample_s = world.slowness[len(world.groups)] if world.slowness else 0.0
        world.groups[rank] = self

    def enter(self) -> Any:
        before = self.member
        member = super().enter()
        rehearsal = self._rehearsal if before is None else None
        if rehearsal is not None:
            of = {rank: rehearsal.stands_for(rank) for rank in range(member.size) if rehearsal.rehearses(rank)}
            self._world.rehearsals[member.generation] = of
        return member

    @property
    def _rehearsal(self) -> Rehearsal | None:
        return self._resized.__self__.step.rehearsal  # type: ignore[attr-defined, no-any-return]  # it is the session's

    def words(self, loss: float) -> Words:
        step = self.training.position.step
        self._world.bounds[step] = self.training.shares.bounds(step, self._rehearsal)
        return super().words(loss)

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        super().applied(words, share, metrics)
        self.own_s = share.samples * self._per_sample_s

    def finish(self, metrics: Metrics) -> None:
        super().finish(metrics)
        self._world.ended = travelled(self.training)


def travelled(training: Training) -> dict[str, Any]:
    """Its state as another rank receives it."""
    return unpack(Packed(training.encoded()).to_bytes())


def group_of(
    _environment: object,
    _seat: object,
    training: Training,
    exchanges: Exchanges,
    resized: Callable[[int], None],
    _ties: object,
    _between: object,
) -> Rank:
    """For a session in a rank's thread; see :func:`pilot.train.joining.group_of`."""
    return Rank(_here.world, training, exchanges, resized)
