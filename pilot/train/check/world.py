"""A trainer's ranks, whose groups break on cue: what a course does to a script. The ranks are processes (``pilot
check``) or threads (tests).

Everything that ranks do together is an *operation* of their generation (a gather, the sum of a step). A generation ends
at one of them: some ranks still get its outcome, the others do not, and some may die. The next one begins when all
survivors have noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pilot.comm.channel import Gone


@dataclass(frozen=True)
class Keep:
    """When a run's state is kept, to resume from: after ``step`` steps, at safe point ``point`` there (from 0), or the
    last one that there is.
    """

    step: int
    point: int = 1 << 30


@dataclass(frozen=True)
class End:
    """How a generation ends: at its operation ``operation``; ``receive`` and ``die`` say by rank (modulo their length)
    which ranks still get the outcome and which are killed; ``come`` new ranks join after it.

    One rank, the *heir*, always gets it and is never killed: what a script does between two steps is lost with the last
    rank that did it. ``void``: no rank gets it, as when one dies before contributing. ``at``: which operations are
    counted: "any", each "step", or those in a "meeting" (an evaluation, the end of an epoch). ``heir``: the "oldest",
    or the "newest" of those that have done what the script does between these steps. ``resume``: all are killed, and
    those that come resume from the state that was kept then.
    """

    operation: int
    receive: tuple[bool, ...]
    die: tuple[bool, ...]
    come: int
    void: bool = False
    at: str = "any"
    heir: str = "oldest"
    resume: Keep | None = None


class Killed(BaseException):
    """Ends a rank."""


@dataclass(frozen=True)
class Brought:
    """What a rank brings to an operation of ``kind``; ``meeting``: it is in one."""

    kind: str
    block: bytes
    meeting: bool


@dataclass(eq=False)
class Member:
    """A rank, as the world sees it; ``complete``: it has done what the script does between these steps."""

    order: int
    complete: bool = True
    killed: bool = False
    since: int = 1 << 30
    operation: int = 0
    generation: Generation | None = None
    hello: tuple[list[int], dict[str, str]] = field(default_factory=lambda: ([], {}))


@dataclass(frozen=True)
class Start:
    """Of a generation, on one rank: its ``number``, the rank's ``index``, what each rank holds and is; the state that
    all resume from (b"": none) with what lay beside it (:mod:`pilot.train.alike.next_step`), and whether a state is
    kept in it.
    """

    number: int
    index: int
    table: list[list[int]]
    identities: list[dict[str, str]]
    begin: bytes
    next_step: bytes
    keeps: bool


@dataclass(eq=False)
class Generation:
    """The ranks of a generation, and their contributions to each operation."""

    number: int
    ranks: list[Member]
    end: End | None
    begin: tuple[bytes, bytes] = (b"", b"")
    brought: dict[int, dict[Member, Brought]] = field(default_factory=dict)
    done: dict[int, list[Brought]] = field(default_factory=dict)
    counted: int = 0
    last: int | None = None
    heir: Member | None = None
    finished: int = 0

    @property
    def broken(self) -> bool:
        """Whether it has ended."""
        return self.last is not None

    def heirs(self) -> list[Member]:
        """Those that may survive: the oldest first."""
        complete = [one for one in self.ranks if one.complete] or self.ranks
        return sorted(complete, key=lambda one: one.since)

    def oldest(self) -> Member:
        """The one whose state is kept."""
        return self.heirs()[0]

    def receives(self, rank: Member) -> bool:
        """Whether ``rank`` gets the outcome of the last operation."""
        assert self.end is not None
        told = rank is self.heir or self.end.receive[self.ranks.index(rank) % len(self.end.receive)]
        return told and not self.end.void and self.end.resume is None

    def counts(self, rows: Sequence[Brought]) -> bool:
        """Whether an operation is one of those that its end counts."""
        match self.end.at if self.end is not None else "any":
            case "step":
                return rows[0].kind == "step"
            case "meeting":
                return any(row.meeting for row in rows)
        return True


class World:
    """The ranks and their generations.

    Parameters
    ----------
    spawn : starts this many ranks, each of which becomes a :meth:`member`
    ends : of consecutive generations; the one after the last runs to the end
    begin : the state of an earlier run that it resumes from, and what lay beside it
    keep : when the state is kept, in ``kept`` (in ``ended``: the one after the loop)
    deadline_s : for waits for other ranks; None: no limit

    ``slowest_s``: the longest time that a rank was on its own.
    """

    def __init__(
        self,
        spawn: Callable[[int], None],
        ends: Sequence[End],
        *,
        begin: tuple[bytes, bytes] = (b"", b""),
        keep: Keep | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.changed = threading.Condition()
        self.now: Generation | None = None
        self.generations: list[Generation] = []
        self.kept = (b"", b"")
        self.ended = b""
        self.errors: list[BaseException] = []
        self.slowest_s = 0.0
        self._begin = begin
        self._keep = keep
        self._points = 0
        self._spawn_more = spawn
        self._ends = list(ends)
        self._deadline_s = deadline_s
        self._waiting: list[Member] = []
        self._expected = self._born = 0

    def spawn(self, count: int) -> None:
        """Start new ranks."""
        self._expected += count
        self._spawn_more(count)

    def member(self) -> Member:
        """A new rank."""
        with self.changed:
            self._born += 1
            return Member(self.order(self._born))

    def order(self, born: int) -> int:
        """By what ranks are put in order: newcomers come last, so that the others draw the same numbers as before."""
        return born

    def fail(self, error: BaseException) -> None:
        """A rank failed by itself: so do all."""
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    # --- what ranks call ---------------------------------------------------------------------------------------------

    def arrive(self, rank: Member, holding: list[int], identity: dict[str, str]) -> Start:
        """``rank`` is in no generation; the last one to arrive starts the next."""
        with self.changed:
            rank.hello, rank.generation = (holding, identity), None
            self._waiting.append(rank)
            if len(self._waiting) == self._expected:
                self._start()
            self.wait(lambda: rank not in self._waiting)
            generation = self._generation_of(rank)
            hellos = [one.hello for one in generation.ranks]
            return Start(
                generation.number,
                generation.ranks.index(rank),
                [list(held) for held, _ in hellos],
                [own for _, own in hellos],
                *generation.begin,
                self._keep is not None,
            )

    def together(self, rank: Member, kind: str, block: bytes, meeting: bool, complete: bool) -> list[bytes]:
        """One operation: the contributions of all ranks. :class:`Gone` if the generation ended before or here."""
        with self.changed:
            generation, operation = rank.generation, rank.operation
            if generation is None or generation.broken:
                raise Gone
            rank.operation, rank.complete = operation + 1, complete
            table = generation.brought.setdefault(operation, {})
            table[rank] = Brought(kind, block, meeting)
            if len(table) == len(generation.ranks):
                generation.done[operation] = rows = [table[one] for one in generation.ranks]
                generation.done.pop(operation - 2, None)  # its blocks may be large
                generation.brought.pop(operation)
                self._end_if_due(generation, operation, rows)
                self.changed.notify_all()
            self.wait(lambda: operation in generation.done or generation.broken)
            if rank.killed:
                raise Killed
            rows = generation.done.get(operation, [])
            if not rows or (operation == generation.last and not generation.receives(rank)):
                raise Gone
            if (kinds := {row.kind for row in rows}) != {kind}:
                raise RuntimeError(f"the ranks do different things at the same time: {', '.join(sorted(kinds))}")
            return [row.block for row in rows]

    def wants(self, rank: Member, step: int, complete: bool) -> bool:
        """Whether the state of ``rank`` is to be kept now, after ``step`` steps."""
        with self.changed:
            rank.complete = complete
            generation, keep = self.now, self._keep
            if keep is None or step != keep.step or generation is None or rank is not generation.oldest():
                return False
            self._points += 1
            return self._points - 1 <= keep.point

    def keep(self, _rank: Member, block: bytes) -> None:
        """Keep this state."""
        self.kept = block, b""

    def keep_next(self, _rank: Member, block: bytes) -> None:
        """Keep this beside it."""
        self.kept = self.kept[0], block

    def finish(self, rank: Member, block: bytes) -> bool:
        """Wait until all ranks have arrived at their end, with this state. False: the generation broke for those that
        missed its last operation."""
        with self.changed:
            self.ended, generation = block, self._generation_of(rank)
            generation.finished += 1
            self.changed.notify_all()
            self.wait(lambda: generation.broken or generation.finished == len(generation.ranks))
            if rank.killed:
                raise Killed
            return not generation.broken

    # --- what happens to them ----------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool]) -> None:
        """It is the others' turn until ``done``."""
        if not self.changed.wait_for(lambda: done() or bool(self.errors), self._deadline_s):
            raise TimeoutError(
                f"a rank has waited for the others for {self._deadline_s:.0f} s, far longer than what they do takes"
                " undisturbed: the script does not do the same on all ranks"
            )
        if self.errors:
            raise Killed

    def _generation_of(self, rank: Member) -> Generation:
        assert rank.generation is not None
        return rank.generation

    def _start(self) -> None:
        number = self.now.number + 1 if self.now else 1
        ranks, self._waiting = sorted(self._waiting, key=lambda one: one.order), []
        end = self._ends.pop(0) if self._ends else None
        self.now = Generation(number, ranks, end, self._begin)
        if end is not None and end.resume is not None:
            self._keep, self._points = end.resume, 0
        self._begin = (b"", b"")
        self.generations.append(self.now)
        for rank in ranks:
            rank.generation, rank.operation, rank.since = self.now, 0, min(rank.since, number)
        self.changed.notify_all()

    def _end_if_due(self, generation: Generation, operation: int, rows: Sequence[Brought]) -> None:
        """When all have contributed: end the generation here if it is due."""
        end = generation.end
        if end is None or rows[0].kind == "state" or not generation.counts(rows):
            return
        generation.counted += 1
        if generation.counted <= end.operation:
            return
        generation.last = operation
        heirs = generation.heirs()
        generation.heir = (
            heirs[0]
            if end.heir == "oldest"
            else next(one for one in reversed(generation.ranks) if one.since == heirs[-1].since and one in heirs)
        )
        dying = [
            one
            for i, one in enumerate(generation.ranks)
            if end.resume or (end.die[i % len(end.die)] and one is not generation.heir)
        ]
        for rank in dying:
            rank.killed = True
        self._expected -= len(dying)
        if end.resume is not None:
            self._begin, self._keep = self.kept, None
        if end.come:
            self.spawn(end.come)
