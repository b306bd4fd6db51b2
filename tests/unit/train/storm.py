"""A trainer whose groups break, in one process: each rank is a thread with a real session over a group that fails on
cue.

Everything that ranks do together is an *operation* of their generation (a gather, the sum of a step). A generation ends
at one of them: some ranks still get its outcome, the others do not, and some may die. The next one begins when all
survivors have noticed.

The ranks take turns: one runs until it waits for the others. So each has random generators of its own, which threads
share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pilot.comm.channel import Gone
from pilot.train.alike.newcomers import Newcomers
from pilot.train.alike.next_step import NextSteps
from pilot.train.data import rng
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.group import Alone
from pilot.train.state.block import Packed, unpack
from pilot.train.state.identity import expect_same
from pilot.train.state.state_transfer import NOTHING, Holding, who_spreads
from pilot.train.state.training import Training

DEADLINE_S = 20.0
NEXT_STEP = "next step"
"""What a kept state has besides: see :mod:`pilot.train.alike.next_step`."""
_here = threading.local()


@dataclass(frozen=True)
class End:
    """How a generation ends: at its operation ``operation``; ``receive`` and ``die`` say by rank (modulo their length)
    which ranks still get the outcome and which are killed; ``come`` new ranks join after it.

    One rank, the *heir*, always gets it and is never killed: what a script does between two steps is lost with the last
    rank that did it. ``void``: no rank gets it, as when one dies before contributing. ``at``: which operations are
    counted: "any", each "step", or those in a "meeting" (an evaluation, the end of an epoch). ``heir``: the "oldest",
    or the "newest" of those that have done what the script does between these steps.
    """

    operation: int
    receive: tuple[bool, ...]
    die: tuple[bool, ...]
    come: int
    void: bool = False
    at: str = "any"
    heir: str = "oldest"


@dataclass(frozen=True)
class Keep:
    """When a run's state is kept, to resume from: after ``step`` steps, at safe point ``point`` there (from 0), or the
    last one that there is.
    """

    step: int
    point: int


class Killed(BaseException):
    """Ends a rank's thread."""


@dataclass
class Generation:
    """The ranks of a generation, and their contributions to each operation."""

    number: int
    ranks: list[Rank]
    end: End | None
    brought: dict[int, dict[int, Any]] = field(default_factory=dict)
    done: dict[int, list[Any]] = field(default_factory=dict)
    counted: int = 0
    last: int | None = None
    heir: Rank | None = None
    finished: int = 0
    rehearsing: dict[int, int] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        return self.last is not None

    @property
    def heirs(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.has_it_all] or self.ranks

    @property
    def oldest(self) -> Rank:
        return min(self.heirs, key=lambda rank: rank.since)

    @property
    def newest(self) -> Rank:
        return max(reversed(self.heirs), key=lambda rank: rank.since)

    def counts(self, kind: str) -> bool:
        """Whether an operation of ``kind`` is one of those that its end counts."""
        match self.end.at if self.end is not None else "any":
            case "step":
                return kind == "step"
            case "meeting":
                return any(rank.training.catch_up.meeting is not None for rank in self.ranks)
        return True

    def receives(self, rank: Rank) -> bool:
        """Whether ``rank`` gets the outcome of the last operation."""
        assert self.end is not None
        told = rank is self.heir or self.end.receive[self.ranks.index(rank) % len(self.end.receive)]
        return told and not self.end.void


class World:
    """Runs ``script`` on each rank; its session's group comes from :func:`group_of`.

    Parameters
    ----------
    ends : of consecutive generations; the one after the last runs to the end
    begin : the state of an earlier run that it resumes from
    keep : when the state is kept, in ``kept`` (in ``ended``: the one after the loop)
    """

    def __init__(
        self,
        script: Callable[[], Any],
        count: int,
        ends: Sequence[End],
        begin: dict[str, Any] | None = None,
        keep: Keep | None = None,
    ) -> None:
        self._script = script
        self._begin = begin
        self._keep = keep
        self._points = 0
        self.kept: dict[str, Any] | None = None
        self.ended: dict[str, Any] | None = None
        self._ends = list(ends)
        self._threads: list[threading.Thread] = []
        self.changed = threading.Condition()
        self.now: Generation | None = None
        self.generations: list[Generation] = []
        self.waiting: list[Rank] = []
        self._expected = 0
        self.errors: list[BaseException] = []
        self.results: list[Any] = []
        self._spawn(count)

    def run(self) -> list[Any]:
        """The script's result on each rank of the last generation."""
        for thread in self._threads:
            thread.join(DEADLINE_S)
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in self._threads), "the ranks wait for each other"
        assert self.now is not None
        assert len(self.results) == len(self.now.ranks)
        return self.results

    def _spawn(self, count: int) -> None:
        self._expected += count
        threads = [threading.Thread(target=self._live, daemon=True) for _ in range(count)]
        self._threads += threads
        for thread in threads:
            thread.start()

    def _live(self) -> None:
        _here.world = self
        with self.changed:
            try:
                self.results.append(self._script())
            except Killed:
                pass
            except BaseException as error:
                self.errors.append(error)
                self.changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        """It is the others' turn until ``done``."""
        generators = rng.capture()
        if not self.changed.wait_for(lambda: done() or bool(self.errors), DEADLINE_S):
            raise TimeoutError("the ranks wait for each other")
        rng.restore(generators)
        if self.errors:
            raise Killed

    def arrive(self, rank: Rank) -> None:
        """With the lock held: ``rank`` is in no generation; the last one to arrive starts the next."""
        self.waiting.append(rank)
        if len(self.waiting) == self._expected:
            self._start()
        self.wait(lambda: rank not in self.waiting)

    def _start(self) -> None:
        number = self.now.number + 1 if self.now else 1
        ranks, self.waiting = sorted(self.waiting, key=lambda rank: rank.order), []
        self.now = Generation(number, ranks, self._ends.pop(0) if self._ends else None)
        self.generations.append(self.now)
        expect_same([rank.training.identity for rank in ranks])
        if number == 1 and self._begin is not None:
            for rank in ranks:
                rank.training.restore(self._begin)
                rank.next_steps.resumed(self._begin.get(NEXT_STEP, b""))
        table = [rank.holding() for rank in ranks]
        spreading = who_spreads(table)
        newcomers = Newcomers.of(table, spreading, 1)
        state = travelled(ranks[spreading.root].training)
        for index, rank in enumerate(ranks):
            if index in spreading.takers:
                rank.training.restore(state)
            rank.newcomers = newcomers
            rank.begin(Membership(number, index, len(ranks)))
        self.changed.notify_all()

    def ends_at(self, generation: Generation, operation: int, kind: str) -> bool:
        """With the lock held, when all have contributed: end the generation here if it is due."""
        end = generation.end
        if end is None or not generation.counts(kind):
            return False
        generation.counted += 1
        if generation.counted <= end.operation:
            return False
        generation.last = operation
        generation.heir = generation.oldest if end.heir == "oldest" else generation.newest
        ranks = generation.ranks
        dying = [r for i, r in enumerate(ranks) if end.die[i % len(end.die)] and r is not generation.heir]
        for rank in dying:
            rank.killed = True
        self._expected -= len(dying)
        if end.come:
            self._spawn(end.come)
        return True

    def safe_point(self, rank: Rank) -> None:
        """The state may be saved here. Not in a meeting between two steps of an epoch: what the script does between
        them would be lost.
        """
        keep, training, generation = self._keep, rank.training, self.now
        position = training.position
        if keep is not None and position.step == keep.step:
            rank.next_steps.saved(0)
        if keep is None or position.step != keep.step or generation is None or rank is not generation.oldest:
            return
        if training.catch_up.meeting is not None and position.cursor and not (position.at_end or position.stopped):
            return
        if self._points <= keep.point:
            self.kept = travelled(training)
        self._points += 1

    def keep_next(self, _generation: int, _step: int, block: bytes) -> None:
        """What lies beside the state that was kept."""
        if self.kept is not None:
            self.kept[NEXT_STEP] = block


class Rank(Alone):
    """One rank's group, see :class:`~pilot.train.ranks.group.RankGroup`."""

    _orders = iter(range(1 << 30))

    def __init__(self, world: World, training: Training, exchanges: Exchanges, resized: Callable[[int], None]) -> None:
        super().__init__(training, resized)
        self.next_steps = NextSteps(training, world.keep_next)
        self.world, self.training, self.exchanges = world, training, exchanges
        self.order = hash(next(Rank._orders)) * 7 % 11  # newcomers come first, in the middle, and last
        self.revision = 0
        self.killed = False
        self.member: Membership | None = None
        self.since = 1 << 30
        self.exchange = exchanges.each[0]
        self._held = NOTHING
        self._operation = 0
        self._in_step = False

    def holding(self) -> Holding:
        position, met = self.training.position, self.training.agreements.count(self.training.place)
        behind = int(self.training.catch_up.behind)
        return Holding(
            self._held, position.step, 0, position.epoch, met, position.phase, behind, int(self.training.standing)
        )

    @property
    def has_it_all(self) -> bool:
        """What the script did since the last step; or it does it, at an epoch's beginning."""
        return not self.training.catch_up.behind or self.training.position.cursor == 0

    def begin(self, member: Membership) -> None:
        self.member, self._held, self._operation = member, member.generation, 0
        self.since = min(self.since, member.generation)
        self.revision += 1
        self.exchanges.idle()
        self.exchange = self.exchanges.each[0]
        self._resized(member.size)
        rehearsal = self._resized.__self__._step.rehearsal  # type: ignore[attr-defined]  # it is the session's
        if rehearsal is not None and self.world.now is not None:
            of = {rank: rehearsal.stands_for(rank) for rank in range(member.size) if rehearsal.rehearses(rank)}
            self.world.now.rehearsing = of

    def enter(self) -> Membership:
        self._in_step = False
        if self.member is None:
            with self.world.changed:
                self.world.arrive(self)
        assert self.member is not None
        return self.member

    def _together(self, brought: Any, unite: Callable[[list[Any]], None] = lambda _: None) -> list[Any]:
        """One operation: the contributions of all ranks. :class:`Gone` if the generation ended before or here."""
        with self.world.changed:
            generation = self.world.now
            if self.member is None or generation is None or generation.broken:
                self._leave()
            assert generation is not None
            table = generation.brought.setdefault(self._operation, {})
            operation, self._operation = self._operation, self._operation + 1
            table[self.member.rank] = brought
            if len(table) == len(generation.ranks):
                rows = [table[rank] for rank in sorted(table)]
                unite(rows)
                generation.done[operation] = rows
                self.world.ends_at(generation, operation, rows[0][0])
                self.world.changed.notify_all()
            self.world.wait(lambda: operation in generation.done or generation.broken)
            if self.killed:
                raise Killed
            last = operation == generation.last
            if operation not in generation.done or (last and not generation.receives(self)):
                self._leave()
            return generation.done[operation]

    def _leave(self) -> None:
        self.member = None
        raise Gone

    def gather(self, row: list[int]) -> list[list[int]]:
        if not self._in_step:  # in a step, whose gradients are compared, a real group writes later
            self.world.safe_point(self)
        rows = self._together(("gather", row))
        assert {kind for kind, _ in rows} == {"gather"}, rows
        return [row for _, row in rows]

    def attach(self) -> None:
        self.exchange = self.exchanges.each[0]

    def select(self, number: int) -> list[int]:
        rows = self._together(("select", number))
        assert {kind for kind, _ in rows} == {"select"}, rows
        self.exchange = self.exchanges.each[number]
        return [number for _, number in rows]

    def words(self, loss: float) -> Words:
        return Words.of(0, False, loss)

    def summed(self) -> bool:
        self._in_step = True
        try:
            rows = self._together(("step", self if self.exchange.open else None), _sum)
        except Gone:
            return False
        assert {kind for kind, _ in rows} == {"step"}, rows
        return True

    def applied(self, words: Words, share: StepShare, metrics: Any) -> None:
        super().applied(words, share, metrics)
        self._in_step = False

    def settle(self) -> None:
        self.world.safe_point(self)

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        def deal(rows: list[Any]) -> None:
            state = travelled(rows[giver][1].training)
            for taker in takers:
                rows[taker][1].training.restore(state)

        self._together(("hand over", self), deal)

    def finish(self, _metrics: Any) -> None:
        """Wait until all ranks have arrived here."""
        self.enter()
        self.world.ended = travelled(self.training)
        while not self._all_finished():
            self.member = None
            self.enter()

    def _all_finished(self) -> bool:
        """False: the generation broke for the ranks that missed its last operation."""
        with self.world.changed:
            generation = self.world.now
            assert generation is not None
            generation.finished += 1
            self.world.changed.notify_all()
            self.world.wait(lambda: generation.broken or generation.finished == len(generation.ranks))
            if self.killed:
                raise Killed
            return not generation.broken


def travelled(training: Training) -> dict[str, Any]:
    """Its state as another rank receives it."""
    packed = Packed(training.encoded())
    block = bytearray(packed.size)
    packed.write(block)
    return unpack(block)


def group_of(
    _environment: object,
    _seat: object,
    training: Training,
    exchanges: Exchanges,
    resized: Callable[[int], None],
    _ties: object,
) -> Rank:
    """For a session in a rank's thread; see :func:`pilot.train.ranks.group.group_of`."""
    return Rank(_here.world, training, exchanges, resized)


def _sum(rows: list[Any]) -> None:
    """What the rank processes do."""
    exchanges = [rank.exchange for kind, rank in rows if kind == "step" and rank is not None]
    if len(exchanges) < 2:
        return
    for part in exchanges[0].layout.parts:
        views = [np.frombuffer(e.arena.memory, part.dtype, part.count, part.offset) for e in exchanges]
        total = np.sum(views, axis=0)
        for view in views:
            view[:] = total
