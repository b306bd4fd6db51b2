"""A trainer's ranks, whose groups break on cue: what a course does to a script. The ranks are processes (``pilot
check``) or threads (tests).

Everything that ranks do together is an *operation* of their generation (a gather, the sum of a step). A generation ends
at one of them: some ranks still get its outcome, the others do not, and some may die. The next one begins when all
survivors have noticed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from pilot.comm.channel import PeerGone

_NEVER_LAST = ("state", "finish")
"""Operations at which no generation ends: those that begin it, and that release its ranks."""

_PERIODS = 10
"""For so many times the deadline ranks wait for others that work: on a busy machine these may take long."""


@dataclass(frozen=True)
class Keep:
    """When a run's state is kept, to resume from: after ``step`` steps, at safe point ``point`` there (from 0), or the
    last one that there is.
    """

    step: int
    point: int = 1 << 30


@dataclass(frozen=True)
class Brought:
    """What a rank brings to an operation of ``kind``; ``meeting``: it is in one."""

    kind: str
    block: bytes
    meeting: bool


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
    receive: tuple[bool, ...] = (True,)
    die: tuple[bool, ...] = (False,)
    come: int = 0
    void: bool = False
    at: str = "any"
    heir: str = "oldest"
    resume: Keep | None = None

    def counts(self, brought: Sequence[Brought]) -> bool:
        """Whether an operation to which the ranks bring this is one of those that are counted."""
        kind = brought[0].kind
        counted = self.at in ("any", kind) or (self.at == "meeting" and any(one.meeting for one in brought))
        return counted and kind not in _NEVER_LAST


class Killed(BaseException):
    """Ends a rank."""


@dataclass(frozen=True)
class Start:
    """Of a generation, on one rank: its ``number``, the rank's ``index``, with which words each rank arrived; the state
    that all resume from (b"": none) with what lay beside it (:mod:`pilot.train.alike.next_step`), and whether a state
    is kept in it.
    """

    number: int
    index: int
    hellos: list[bytes]
    begin: bytes
    next_step: bytes
    keeps: bool


@dataclass(eq=False)
class Member:
    """A rank in its world: what it calls. ``complete``: it has done what the script does between these steps.
    ``since``: the number of its first generation; ``told``: it gets the outcome of the newest operation.
    """

    world: World
    order: int
    hello: bytes = b""
    since: int = 0
    complete: bool = True
    killed: bool = False
    told: bool = True

    def arrive(self, hello: bytes) -> Start:
        """Wait for the next generation, which begins when all have arrived; ``hello`` is for all of its ranks."""
        world = self.world
        with world.changed:
            self.hello = hello
            world.arrived(self)
            world.wait(lambda: self not in world.waiting)
            hellos = [one.hello for one in world.ranks]
            return Start(len(world.generations), world.ranks.index(self), hellos, *world.begin, world.keep is not None)

    def together(self, kind: str, block: bytes, meeting: bool, complete: bool) -> list[bytes]:
        """One operation: return what each rank brings. :class:`PeerGone` if the generation ended before or here."""
        world = self.world
        with world.changed:
            if world.is_over:
                raise PeerGone
            self.complete, brought = complete, world.brought
            brought[self] = Brought(kind, block, meeting)
            if len(brought) == len(world.ranks):
                world.all_brought()
            world.wait(lambda: world.brought is not brought)
            if self.killed:
                raise Killed
            if not self.told:
                raise PeerGone
            if len(kinds := {one.kind for one in brought.values()}) > 1:
                raise RuntimeError(f"the ranks do different things at the same time: {', '.join(sorted(kinds))}")
            return [brought[rank].block for rank in world.ranks]

    def wants(self, step: int, complete: bool) -> bool:
        """Whether the state of this rank, after ``step`` steps, is to be kept now: that of the oldest is."""
        world = self.world
        with world.changed:
            self.complete = complete
            if world.keep is None or step != world.keep.step or world.heirs()[0] is not self:
                return False
            world.points += 1
            return world.points <= world.keep.point + 1

    def keep(self, state: bytes, next_step: bytes = b"") -> None:
        """Keep this state (b"": the one that is kept), with this beside it."""
        self.world.kept = state or self.world.kept[0], next_step


class World(ABC):
    """The ranks and their generations.

    Parameters
    ----------
    ends : of consecutive generations; the one after the last runs to the end
    begin : the state of an earlier run that it resumes from, and what lay beside it
    keep : when the state is kept, in ``kept``
    deadline_s : for waits for other ranks that do not work; None: no limit

    ``generations``: the ranks of each; ``is_over``: the newest one has ended; ``brought``: to its current operation.
    ``slowest_s``: the longest time that a rank was on its own.
    """

    def __init__(
        self,
        ends: Sequence[End],
        *,
        begin: tuple[bytes, bytes] = (b"", b""),
        keep: Keep | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.changed = threading.Condition()
        self.generations: list[list[Member]] = []
        self.waiting: list[Member] = []
        self.brought: dict[Member, Brought] = {}
        self.is_over = False
        self.begin, self.kept = begin, (b"", b"")
        self.keep = keep
        self.points = 0
        self.errors: list[BaseException] = []
        self.slowest_s = 0.0
        self._ends = list(ends)
        self._counted = 0
        self._deadline_s = deadline_s
        self._expected = self._born = 0

    def spawn(self, count: int) -> None:
        """Start new ranks."""
        with self.changed:
            self._expected += count
            for _ in range(count):
                self.start_rank()

    @abstractmethod
    def start_rank(self) -> None:
        """Start one, which becomes a :meth:`member`."""

    def member(self) -> Member:
        """A new rank."""
        with self.changed:
            self._born += 1
            return Member(self, self.order(self._born))

    def order(self, born: int) -> int:
        """By what ranks are put in order: newcomers come last, so that the others draw the same numbers as before."""
        return born

    def fail(self, error: BaseException) -> None:
        """A rank failed by itself: so do all. (The first of ``errors`` says why.)"""
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    @property
    def ranks(self) -> list[Member]:
        """Those of the newest generation."""
        return self.generations[-1]

    def heirs(self) -> list[Member]:
        """Those that may survive: the oldest first."""
        complete = [one for one in self.ranks if one.complete] or self.ranks
        return sorted(complete, key=lambda one: one.since)

    def is_working(self) -> bool:
        """Whether one of the ranks computes, or would if it had a processor."""
        return False

    # --- what ranks call ---------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool]) -> None:
        """It is the others' turn until ``done``."""
        periods = 1
        while not self.changed.wait_for(lambda: done() or bool(self.errors), self._deadline_s):
            assert self._deadline_s is not None
            if periods == _PERIODS or not self.is_working():
                raise RuntimeError(
                    f"a rank has waited for the others for {periods * self._deadline_s:.0f} s, far longer than what"
                    " they do takes undisturbed: the script does not do the same on all ranks"
                )
            periods += 1
        if self.errors:
            raise Killed

    def arrived(self, rank: Member) -> None:
        """``rank`` is in no generation; the last one to arrive starts the next."""
        self.waiting.append(rank)
        if len(self.waiting) < self._expected:
            return
        self.generations.append(sorted(self.waiting, key=lambda one: one.order))
        self.waiting, self.is_over, self._counted = [], False, 0
        for one in self.ranks:
            one.told, one.since = True, one.since or len(self.generations)
        end = self._end()
        if end is not None and end.resume is not None:
            self.keep, self.points = end.resume, 0
        self.changed.notify_all()

    def all_brought(self) -> None:
        """An operation is done: the generation may end here."""
        brought, self.brought = self.brought, {}
        self.changed.notify_all()
        end = self._end()
        if end is None or not end.counts([*brought.values()]):
            return
        self._counted += 1
        if self._counted > end.operation:
            self._ends_by(end)

    def _end(self) -> End | None:
        """That of the newest generation."""
        number = len(self.generations)
        return self._ends[number - 1] if number <= len(self._ends) else None

    def _ends_by(self, end: End) -> None:
        self.is_over = True
        heir = self.heirs()[0 if end.heir == "oldest" else -1]
        for index, rank in enumerate(self.ranks):
            receives, dies = (flags[index % len(flags)] for flags in (end.receive, end.die))
            rank.told = (receives or rank is heir) and not end.void
            rank.killed = end.resume is not None or (dies and rank is not heir)
        self._expected -= sum(rank.killed for rank in self.ranks)
        self.begin = (b"", b"")
        if end.resume is not None:
            self.begin, self.keep = self.kept, None
        if end.come:
            self.spawn(end.come)


_CALLS = ("arrive", "together", "wants", "keep")
_ENDED = "ended"


class ProcessLink:
    """A process's end; the methods are those of :class:`~pilot.train.check.world.Member`."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def ended(self) -> None:
        """The script has ended well."""
        self._connection.send_bytes(msgspec.msgpack.encode((_ENDED, ())))

    def _call(self, name: str, *given: Any) -> Any:
        try:
            self._connection.send_bytes(msgspec.msgpack.encode((name, given)))
            kind, answer = msgspec.msgpack.decode(self._connection.recv_bytes())
        except (EOFError, OSError):  # the check has ended
            kind, answer = Killed.__name__, None
        if kind == Killed.__name__:  # as a node's end does, without a word to the script
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == PeerGone.__name__:
            raise PeerGone
        return msgspec.convert(answer, Start) if name == "arrive" else answer


def serve(rank: Member, connection: Connection) -> bool:
    """Answer a process until it ends; returns whether its script, or the world, meant it to."""
    world = rank.world
    with connection:
        while True:
            since_s = time.monotonic()
            try:
                name, given = msgspec.msgpack.decode(connection.recv_bytes())
            except (EOFError, OSError):
                return rank.killed
            world.slowest_s = max(world.slowest_s, time.monotonic() - since_s)
            if name == _ENDED:
                return True
            assert name in _CALLS, name
            try:
                answer = name, getattr(rank, name)(*given)
            except (PeerGone, Killed) as end:
                answer = type(end).__name__, None
            with suppress(OSError):  # it has ended, as the next call finds
                connection.send_bytes(msgspec.msgpack.encode(answer))
