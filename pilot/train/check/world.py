"""The ranks of a trainer whose groups break on schedule. The ranks are processes (``pilot check``) or threads (tests).

Everything that ranks do together is an *operation* of their generation (a gather, the sum of a step). A generation ends
at an operation: some ranks still get its outcome, others do not, and some may die. The next one begins when all know.
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
"""Operations at which no generation ends: the first one of a generation, and the release of its ranks."""

_PERIODS = 10
"""How many deadlines ranks wait for others that work: on a busy machine these may take long."""


@dataclass(frozen=True)
class SavePoint:
    """Where a run's state is saved: after ``step`` steps, at safe point ``point`` (from 0), or the last one."""

    step: int
    point: int = 1 << 30


@dataclass(frozen=True)
class Brought:
    """A rank's contribution to an operation of ``kind``; ``agreeing``: it is in an agreement between two steps."""

    kind: str
    block: bytes
    agreeing: bool


@dataclass(frozen=True)
class End:
    """The end of a generation, at its operation number ``operation``. ``receive`` and ``die`` tell by rank (modulo
    their length) whether it still gets the outcome, and whether it is killed; ``come`` new ranks join afterwards.

    One rank, the *heir*, always gets the outcome and is never killed: what a script does between two steps is lost with
    the last rank that did it. ``void``: no rank gets the outcome, as when one dies before contributing. ``at``: which
    operations are counted: "any", each "step", or those of an "agreement" (an evaluation, the end of an epoch).
    ``heir``: the "oldest" or the "newest" rank that has run the script's code between these steps. ``resume``: all
    ranks are killed, and the new ones resume from the state saved there.
    """

    operation: int
    receive: tuple[bool, ...] = (True,)
    die: tuple[bool, ...] = (False,)
    come: int = 0
    void: bool = False
    at: str = "any"
    heir: str = "oldest"
    resume: SavePoint | None = None

    def counts(self, brought: Sequence[Brought]) -> bool:
        """Return whether an operation with these contributions is counted."""
        kind = brought[0].kind
        counted = self.at in ("any", kind) or (self.at == "agreement" and any(one.agreeing for one in brought))
        return counted and kind not in _NEVER_LAST


class Killed(BaseException):
    """Raised in a rank that is killed."""


@dataclass(frozen=True)
class GroupStart:
    """The start of a generation on one rank: the generation's ``number``, the rank's ``index``, the message with which
    each rank arrived; the state that all resume from (b"": none), the sketches saved with it
    (:mod:`pilot.train.alike.next_step`), and whether a state is to be saved in this generation.
    """

    number: int
    index: int
    hellos: list[bytes]
    begin: bytes
    next_step: bytes
    saves: bool


@dataclass(eq=False)
class Member:
    """A rank's connection to its world. ``complete``: the rank has run the script's code between these steps;
    ``since``: the number of its first generation; ``receives``: it gets the outcome of the newest operation.
    """

    world: RankWorld
    order: int
    hello: bytes = b""
    since: int = 0
    complete: bool = True
    killed: bool = False
    receives: bool = True

    def arrive(self, hello: bytes) -> GroupStart:
        """Wait for the next generation, which begins when all ranks have arrived; each rank gets all ``hello``."""
        world = self.world
        with world.changed:
            self.hello = hello
            world.arrived(self)
            world.wait(lambda: self not in world.waiting)
            hellos, number, index = [one.hello for one in world.ranks], len(world.generations), world.ranks.index(self)
            return GroupStart(number, index, hellos, *world.begin, world.keep is not None)

    def together(self, kind: str, block: bytes, agreeing: bool, complete: bool) -> list[bytes]:
        """Do an operation: return the ``block`` of each rank. :class:`PeerGone` if the generation has ended."""
        world = self.world
        with world.changed:
            if world.is_over:
                raise PeerGone
            self.complete, brought = complete, world.brought
            brought[self] = Brought(kind, block, agreeing)
            if len(brought) == len(world.ranks):
                world.all_brought()
            world.wait(lambda: world.brought is not brought)
            if self.killed:
                raise Killed
            if not self.receives:
                raise PeerGone
            if len(kinds := {one.kind for one in brought.values()}) > 1:
                raise RuntimeError(f"the ranks do different things at the same time: {', '.join(sorted(kinds))}")
            return [brought[rank].block for rank in world.ranks]

    def wants(self, step: int, complete: bool) -> bool:
        """Return whether this rank is to save its state now, after ``step`` steps: the oldest rank does."""
        world = self.world
        with world.changed:
            self.complete = complete
            if world.keep is None or step != world.keep.step or world.heirs()[0] is not self:
                return False
            world.points += 1
            return world.points <= world.keep.point + 1

    def save(self, state: bytes, next_step: bytes = b"") -> None:
        """Save ``state`` (b"": the one saved before) with ``next_step``, the sketches of the step after it."""
        self.world.saved = state or self.world.saved[0], next_step


class RankWorld(ABC):
    """The ranks of a run and their generations.

    ``generations``: the ranks of each; ``is_over``: the newest one has ended; ``brought``: the contributions to its
    current operation; ``slowest_s``: the longest time that a rank computed without the others.

    Parameters
    ----------
    ends : the ends of consecutive generations; the generation after the last end runs to the end of the script
    begin : the saved state of an earlier run to resume from, and its sketches
    keep : where the state is saved, in ``saved``
    deadline_s : limit of waits for other ranks that do not work; None: no limit
    """

    def __init__(
        self,
        ends: Sequence[End],
        *,
        begin: tuple[bytes, bytes] = (b"", b""),
        keep: SavePoint | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.changed = threading.Condition()
        self.generations: list[list[Member]] = []
        self.waiting: list[Member] = []
        self.brought: dict[Member, Brought] = {}
        self.is_over = False
        self.begin, self.saved = begin, (b"", b"")
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
        """Start a rank, which calls :meth:`member`."""

    def member(self) -> Member:
        """Return the connection of a new rank."""
        with self.changed:
            self._born += 1
            return Member(self, self.order(self._born))

    def order(self, born: int) -> int:
        """Return the sort key of a rank: newcomers come last, so that the others draw the same random numbers."""
        return born

    def fail(self, error: BaseException) -> None:
        """End all ranks, because one failed with ``error``; the first of ``errors`` is the reason."""
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    @property
    def ranks(self) -> list[Member]:
        """The ranks of the newest generation."""
        return self.generations[-1]

    def heirs(self) -> list[Member]:
        """Return the ranks that may survive as the only one, the oldest first."""
        complete = [one for one in self.ranks if one.complete] or self.ranks
        return sorted(complete, key=lambda one: one.since)

    def is_working(self) -> bool:
        """Return whether a rank computes, or would if it had a processor."""
        return False

    # --- what ranks call ---------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait for the other ranks until ``done`` returns True."""
        periods = 1
        while not self.changed.wait_for(lambda: done() or bool(self.errors), self._deadline_s):
            assert self._deadline_s is not None
            if periods == _PERIODS or not self.is_working():
                raise RuntimeError(
                    f"a rank has waited for the others for {periods * self._deadline_s:.0f} s, far longer than their"
                    " work takes undisturbed; check that the script does the same on all ranks"
                )
            periods += 1
        if self.errors:
            raise Killed

    def arrived(self, rank: Member) -> None:
        """Let ``rank`` wait for the next generation; the last rank to arrive starts it."""
        self.waiting.append(rank)
        if len(self.waiting) < self._expected:
            return
        self.generations.append(sorted(self.waiting, key=lambda one: one.order))
        self.waiting, self.is_over, self._counted = [], False, 0
        for one in self.ranks:
            one.receives, one.since = True, one.since or len(self.generations)
        end = self._end()
        if end is not None and end.resume is not None:
            self.keep, self.points = end.resume, 0
        self.changed.notify_all()

    def all_brought(self) -> None:
        """Complete an operation; the generation may end here."""
        brought, self.brought = self.brought, {}
        self.changed.notify_all()
        end = self._end()
        if end is None or not end.counts([*brought.values()]):
            return
        self._counted += 1
        if self._counted > end.operation:
            self._ends_by(end)

    def _end(self) -> End | None:
        """Return the end of the newest generation; None if it runs to the end of the script."""
        number = len(self.generations)
        return self._ends[number - 1] if number <= len(self._ends) else None

    def _ends_by(self, end: End) -> None:
        self.is_over = True
        heir = self.heirs()[0 if end.heir == "oldest" else -1]
        for index, rank in enumerate(self.ranks):
            receives, dies = (flags[index % len(flags)] for flags in (end.receive, end.die))
            rank.receives = (receives or rank is heir) and not end.void
            rank.killed = end.resume is not None or (dies and rank is not heir)
        self._expected -= sum(rank.killed for rank in self.ranks)
        self.begin = (b"", b"")
        if end.resume is not None:
            self.begin, self.keep = self.saved, None
        if end.come:
            self.spawn(end.come)


_CALLS = ("arrive", "together", "wants", "save")
_ENDED = "ended"


class ProcessLink:
    """The connection of a rank that is a process; it has the methods of :class:`Member`."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def ended(self) -> None:
        """Report that the script has ended without an error."""
        self._connection.send_bytes(msgspec.msgpack.encode((_ENDED, ())))

    def _call(self, name: str, *given: Any) -> Any:
        try:
            self._connection.send_bytes(msgspec.msgpack.encode((name, given)))
            kind, answer = msgspec.msgpack.decode(self._connection.recv_bytes())
        except (EOFError, OSError):  # the check has ended
            kind, answer = Killed.__name__, None
        if kind == Killed.__name__:  # without a notice to the script, as when a node is lost
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == PeerGone.__name__:
            raise PeerGone
        return msgspec.convert(answer, GroupStart) if name == "arrive" else answer


def serve(rank: Member, connection: Connection) -> bool:
    """Answer a rank's process until it ends; return whether its script or the scenario ended it."""
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
            with suppress(OSError):  # it has ended, as the next read finds
                connection.send_bytes(msgspec.msgpack.encode(answer))
