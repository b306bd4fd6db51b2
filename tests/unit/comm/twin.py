"""The interface of ``pilot.comm.fabric`` between threads of one process, in place of MPI."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot.comm.fabric import Fabric, Operation
from pilot.comm.naps import PeerSockets
from pilot.comm.narrow import packed, unpacked

Deposits = dict[int, NDArray[Any]]


@dataclass
class Meeting:
    """One collective operation: complete when all have contributed."""

    deposits: Deposits = field(default_factory=dict)
    combined: threading.Event = field(default_factory=threading.Event)


class World:
    """State shared by the ranks of a twin."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent = [0] * size
        self.announced = [-1] * size
        self._lock = threading.Lock()
        self._meetings: dict[tuple[Any, ...], Meeting] = {}

    def ranks(self) -> list[TwinFabric]:
        return [TwinFabric(self, tuple(range(self.size)), rank) for rank in range(self.size)]

    def meet(
        self, key: tuple[Any, ...], rank: int, size: int, brought: NDArray[Any], combine: Callable[[Deposits], None]
    ) -> Operation:
        with self._lock:
            meeting = self._meetings.setdefault(key, Meeting())
            meeting.deposits[rank] = brought
            if len(meeting.deposits) == size:
                combine(meeting.deposits)
                meeting.combined.set()
        return _Pending(meeting.combined)


class _Pending:
    def __init__(self, over: threading.Event) -> None:
        self._over = over

    def done(self) -> bool:
        return self._over.is_set()


class TwinFabric:
    """See :class:`~pilot.comm.fabric.Fabric`. An operation completes when the last rank starts it."""

    def __init__(self, world: World, members: tuple[int, ...], rank: int) -> None:
        self._world = world
        self._members = members
        self._operations = Counter[str]()
        self.rank = rank
        self.size = len(members)
        self.sockets = PeerSockets()

    def sum(self, numbers: NDArray[Any]) -> Operation:
        def combine(deposits: Deposits) -> None:
            total = np.sum([deposits[rank] for rank in sorted(deposits)], axis=0)
            for deposit in deposits.values():
                deposit[:] = total

        return self._meet(numbers, combine)

    def sum_narrow(self, numbers: NDArray[np.float32], kind: str) -> Operation:
        def combine(deposits: Deposits) -> None:
            rows = [packed(deposits[rank], self.size, kind) for rank in sorted(deposits)]
            sums = [unpacked(np.stack(shares), kind).sum(axis=0) for shares in zip(*rows, strict=True)]
            total = np.concatenate([unpacked(packed(share, 1, kind), kind)[0] for share in sums])
            for deposit in deposits.values():
                deposit[:] = total[: len(deposit)]

        return self._meet(numbers, combine)

    def gather(self, row: NDArray[np.int64], rows: NDArray[np.int64]) -> Operation:
        rows[self.rank] = row

        def combine(deposits: Deposits) -> None:
            for mine in deposits.values():
                for rank, theirs in deposits.items():
                    mine[rank] = theirs[rank]

        return self._meet(rows, combine, "gathers")

    def among(self, ranks: Sequence[int]) -> Fabric:
        return TwinFabric(self._world, tuple(ranks), list(ranks).index(self.rank))

    def broadcast(self, block: NDArray[np.uint8], root: int) -> Operation:
        def combine(deposits: Deposits) -> None:
            for deposit in deposits.values():
                deposit[:] = deposits[root]

        return self._meet(block, combine)

    def barrier(self) -> Operation:
        return self._meet(np.empty(0), lambda _: None)

    def send_next(self, number: int) -> None:
        self._world.sent[(self.rank + 1) % self.size] = number

    def last_received(self) -> int:
        return self._world.sent[self.rank]

    def announce(self, number: int, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._world.announced[rank] = max(number, self._world.announced[rank])

    def announced(self) -> int:
        return self._world.announced[self.rank]

    def _meet(self, brought: NDArray[Any], combine: Callable[[Deposits], None], kind: str = "sums") -> Operation:
        self._operations[kind] += 1
        key = (self._members, kind, self._operations[kind])
        return self._world.meet(key, self.rank, self.size, brought, combine)
