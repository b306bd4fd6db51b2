"""What goes from node to node without the rank process: gradients, and the states of newcomers.

Each generation has a process group for each local rank, with the processes of this local rank on all nodes. The rank
processes are there as well: they carry control words and rows, and notice when a member is lost. How a group forms:

1. Each training process constructs its process group in a thread, which puts addresses into a local store and waits for
   those of the other members.
2. The processes gather new addresses through the rank processes, until all have constructed their groups, and then
   until all are connected.

So nothing listens but gloo and NCCL themselves. When a generation is lost, its group is abandoned and the step is void.
Memory to which pending work may still write is not used again.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from pilot.comm.channel import PeerGone
from pilot.core.errors import GPU_FAILED_STATUS, REFUSAL, UserError
from pilot.train.between.process_groups import Gloo, Nccl, ProcessGroup
from pilot.train.node.forming import Forming, used_interfaces
from pilot.train.node.membership import Membership, Seat
from pilot.train.node.node_group import ThenCopy, Work

BETWEEN_NODES = "PILOT_BETWEEN_NODES"
"""The agent's variable with the way between nodes: ``mpi``, ``gloo`` or ``nccl``."""

ABANDON_LIMIT_S = 5.0
"""How long abandoned work may take to end."""
GATHER_EVERY_S = 0.01
"""How long a process waits for new addresses before all gather again."""
PIECE_BYTES = 16 << 20
"""A state is sent in pieces, so that a process that waits for it sees progress."""

_FORMING, _FORMED, _FAILED = range(3)

Formation = tuple[int, dict[str, bytes]]
"""How far a member's group has come, and its new addresses."""
Gather = Callable[[Formation], list[Formation]]
"""Returns the values of all ranks."""


class Between:
    """The process group between nodes of one training process, in the generation in force. ``make`` returns the member
    ``rank`` of ``size`` of a process group; without it the rank process does everything.
    """

    def __init__(self, seat: Seat | None = None, make: Callable[..., ProcessGroup] | None = None) -> None:
        self._seat = seat or Seat()
        self._make = make
        self._group: ProcessGroup | None = None
        self._generation = 0
        self._pending: list[Work] = []
        self._left: list[tuple[ProcessGroup, list[Work]]] = []
        #: whether work that did not end may write to the memory of gradients, which need other memory
        self.memory_is_unsafe = False
        if make is not None:
            atexit.register(self._process_ends, os.getpid())
        #: waits until a function returns True, and handles events; :class:`PeerGone` if the generation is lost
        self.until: Callable[[Callable[[], bool]], None] = lambda _done: None
        #: called with a generation that cannot go on, and the reason
        self.report: Callable[[int, str], None] = lambda _generation, _reason: None

    @property
    def in_use(self) -> bool:
        """Whether gradients and states go through a process group."""
        return self._make is not None

    # --- a generation begins and ends ----------------------------------------------------------------------------

    def form(self, member: Membership, gather: Gather) -> None:
        """Form the group of ``member``'s generation; :class:`PeerGone` if it does not form on all ranks."""
        rank, size = member.rank // self._seat.size, member.size // self._seat.size
        if self._make is None or size == 1:
            return
        gather((_FORMING, {}))  # all are here, so no thread waits for long
        self._generation = member.generation
        self._group = self._formed(Forming(partial(self._make, rank=rank, size=size)), member, gather)
        self._formed(Forming(self._group.connected), member, gather)

    def _formed(self, forming: Forming, member: Membership, gather: Gather) -> ProcessGroup:
        """Return the process group of ``forming`` when those of all members have come as far."""
        states = set[int]()
        while states != {_FORMED}:
            self.until(partial(forming.has_news, time.monotonic() + GATHER_EVERY_S))
            state = _FORMING if not forming.is_over else _FAILED if forming.group is None else _FORMED
            members = gather((state, forming.new()))
            for _, addresses in members[self._seat.rank :: self._seat.size]:
                forming.introduce(addresses)
            states = {state for state, _ in members}
            if _FAILED in states:
                if state == _FAILED:
                    self.report(member.generation, f"the process group between nodes did not form: {forming.error}")
                raise PeerGone
        group: ProcessGroup = forming.group
        return group

    def close(self) -> None:
        """Close the group of a generation that ends after a complete step."""
        if self._group is not None:
            self._group.close()
            self._drop()

    def abandon(self, generation: int) -> None:
        """End what is pending in ``generation``, which is lost. If that does not end, the group is left as it is, with
        the memory to which it may still write; or this process ends, if nothing else could use its GPU.
        """
        if self._group is None or generation != self._generation:
            return
        self._group.abandon()
        end_s = time.monotonic() + ABANDON_LIMIT_S
        while not all(work.is_completed() for work in self._pending):
            if time.monotonic() > end_s:
                self._leave()
                return
            time.sleep(1e-3)
        self._pending.clear()
        self._drop()

    def _leave(self) -> None:
        assert self._group is not None
        if not self._group.can_be_left:
            text = f"sums with other nodes did not end within {ABANDON_LIMIT_S:g} s after these were lost"
            print(f"{REFUSAL}this process ends: {text}", file=sys.stderr, flush=True)
            os._exit(GPU_FAILED_STATUS)  # the script may go on elsewhere
        self._left.append((self._group, self._pending))
        self._group, self._pending, self.memory_is_unsafe = None, [], True

    def _drop(self) -> None:
        """Drop the group in a thread, because gloo's destructor waits 20 ms for its own threads. Python waits for this
        thread before it ends; if it ended the thread, C++ would end the process.
        """
        dropped, self._group = [self._group], None
        threading.Thread(target=dropped.clear).start()

    def _process_ends(self, number: int) -> None:
        """Keep Python from destroying the group, which would wait for pending work; and in a process that the script
        forked, for threads that are not there.
        """
        if self._group is not None or self._left:
            kept: list[object] = [self._group, self._left]
            kept.append(kept)
            gc.freeze()  # the collector does not take cycles that exist now
            if number == os.getpid() and self._group is not None:
                self._group.abandon()

    # --- sums and states -----------------------------------------------------------------------------------------

    def sum(self, numbers: torch.Tensor, wire: str) -> None:
        """Start to sum ``numbers`` over the nodes, in place; ``wire``: the type in which they are sent, "": theirs.
        All nodes must call this in the same order.
        """
        if self._group is None:
            return
        if not wire:
            self._pending.append(self._group.allreduce(numbers))
            return
        sent = numbers.to(getattr(torch, wire))
        self._pending.append(ThenCopy(self._group.allreduce(sent), numbers, sent))

    def broadcast(self, root: int, size: int, memory: object = None) -> None:
        """Copy ``size`` bytes of ``memory`` of node ``root`` to that of the others, if they give some. All nodes must
        call this; :class:`PeerGone` if the generation is lost.
        """
        block = torch.empty(min(size, PIECE_BYTES), dtype=torch.uint8)
        for begin in range(0, size, PIECE_BYTES):
            count = min(PIECE_BYTES, size - begin)
            if memory is not None:
                block = torch.frombuffer(memory, dtype=torch.uint8, offset=begin, count=count)
            if self._group is None:
                raise PeerGone
            self._pending.append(self._group.broadcast(block[:count], root))
            self.finish()

    def finish(self) -> None:
        """Wait until everything that was started is complete; :class:`PeerGone` if the generation is lost."""
        self.until(self._is_over)

    def _is_over(self) -> bool:
        while self._pending and self._pending[0].is_completed():
            try:
                self._pending.pop(0).wait()
            except RuntimeError as error:
                self.report(self._generation, f"a sum with other nodes failed: {error}")
                raise PeerGone from None
        return not self._pending


def between_nodes(
    environment: Mapping[str, str], seat: Seat, trained: Sequence[torch.Tensor], *, in_rounds: bool
) -> Between:
    """Return what the agent's variables ask for; :class:`UserError` if it cannot sum gradients of ``trained``. In
    rounds nodes exchange seldom, which is left to the rank process.
    """
    way = environment.get(BETWEEN_NODES) or "mpi"
    if seat.nodes > 1 and (in_rounds or way == "mpi"):
        raise UserError("a replica of several nodes needs between_nodes gloo or nccl, and no sync=")
    if way == "mpi" or in_rounds or not trained:
        return Between()
    device, interfaces = trained[0].device, used_interfaces(environment)
    if (device.type == "cpu") != (way == "gloo"):
        raise UserError(
            f"between_nodes is {way}, and the model is on {device}: use {'gloo' if device.type == 'cpu' else 'nccl'},"
            " or mpi (pilot submit --between-nodes, or the site file)"
        )
    if way == "nccl":
        return Between(seat, partial(Nccl, device=device))
    return Between(seat, partial(Gloo, interface=interfaces[seat.rank % len(interfaces)]))
