"""Gives the ranks of a generation the same state.

1. All gather the generation, step and phase of their states, and the run's fingerprint.
2. The most advanced rank sends its state to ranks that are behind (:mod:`pilot.train.state.state_transfer`). If no rank
   has a state, rank 0 loads the newest intact checkpoint, or starts from its fresh model, and sends that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from pilot.comm.arena import Arena
from pilot.comm.channel import PeerGone
from pilot.comm.messages import AnyNote, Spread
from pilot.core.errors import CheckpointError, ProtocolError, UserError
from pilot.core.events import Unloaded
from pilot.protocol import wire
from pilot.train.alike.newcomers import Newcomers
from pilot.train.alike.next_step import NextSteps
from pilot.train.between.between import Between
from pilot.train.node.membership import Membership
from pilot.train.node.node_ties import NodeTies
from pilot.train.node.sockets import WorkerSockets
from pilot.train.ranks.saver import Saver
from pilot.train.state.block import Packed, unpack
from pilot.train.state.identity import compare
from pilot.train.state.state_transfer import Holding, Spreading, by_local_rank, strangers, who_spreads
from pilot.train.state.training import Training

_OTHER_DEVICE = (
    "this node trains on {}, and the trainer's other nodes on {}, so their results would differ; if the script chooses"
    " a device by torch.cuda.is_available(), check that nvidia-smi finds the GPU of this node"
)


@dataclass(frozen=True)
class StateSharing:
    """One rank's part in sharing states; all methods raise :class:`PeerGone` if the generation is gone."""

    trainer: str
    training: Training
    saver: Saver
    next_steps: NextSteps
    link: WorkerSockets  #: to the rank processes
    gather: Callable[[Membership, list[int]], list[list[int]]]  #: returns the rows of all ranks of a group
    answer: Callable[[int], AnyNote | int | None]  #: returns the next message of a generation's rank process
    lose: Callable[[int], None]  #: called with a generation that is considered gone
    ties: NodeTies  #: to the other processes of the node, which take over a state together or not at all
    ranks_per_node: int  #: the number of the node's processes
    between: Between  #: sends states of ranks that have trained

    def share(self, group: Membership, held: int) -> tuple[int | None, Newcomers]:
        """Give all ranks one state at the start of a generation. ``held``: the generation in which this rank's state
        was last confirmed. Return the step from which the group resumes, if no rank had a state, and its newcomers.
        """
        own = self.training.holding(held)
        table = [Holding(*row) for row in self.gather(group, own.row())]
        if len({holding.fingerprint for holding in table}) > 1:
            compare(self.training.identity, lambda row: self.gather(group, row))
        spreading, by_node = who_spreads(table, self.training.shards), who_spreads(table, self.ranks_per_node)
        if group.rank in strangers(table, spreading):
            raise UserError(_OTHER_DEVICE.format(*("a GPU", "the CPU") if own.on_gpu else ("the CPU", "GPUs")))
        self.saver.given_up = group.given_up
        if spreading.fresh and group.rank // self.training.shards == spreading.root // self.training.shards:
            self._load(group)
        if self.between.in_use and not by_node.fresh:
            self.spread(group, by_node, self.ranks_per_node)
        else:
            self.spread(group, spreading, self.training.shards)
        resumed = self.training.position.step if spreading.fresh else None
        self.training.shares.group_begins(group.rank, self.training.position.step, table)
        return resumed, Newcomers.of(table, spreading, self.ranks_per_node)

    def spread(self, group: Membership, spreading: Spreading, per_node: int) -> None:
        """Send one rank's state to others, or the states of a node's ``per_node`` ranks to those of the same local rank
        on other nodes.
        """
        each = [one for one in by_local_rank(spreading, per_node) if one.takers]
        if self.between.in_use and not spreading.fresh and per_node == self.ranks_per_node:
            mine = [one for one in each if one.root % per_node == group.rank % per_node]
            arenas = [self.ties.together(partial(self._send_between, group, one)) for one in mine]
        else:
            arenas = [self._transfer(group, one) for one in each]
        for arena in filter(None, arenas):  # only once all have arrived: the shards of a node must be of one step
            arena.close_fd()
            of_node = group.rank // self.ranks_per_node == spreading.root // self.ranks_per_node
            self.training.restore(unpack(arena.memory), saved=spreading.fresh and of_node)

    def _send_between(self, group: Membership, spreading: Spreading) -> Arena | None:
        """Send the root's state to all ranks of its local rank, and return it on ``takers``."""
        root, size, arena = spreading.root // self.ranks_per_node, np.zeros(1, np.int64), None
        if group.rank == spreading.root:
            packed = Packed(self.training.given(inner=False))
            size[0], arena = packed.size, packed.to_arena()
        self.between.broadcast(root, size.nbytes, size)
        if group.rank in spreading.takers:
            arena = Arena.of_size(int(size[0]))
        if arena is not None:
            arena.close_fd()  # no other process maps it, and an open one would keep the state in memory
        self.between.broadcast(root, int(size[0]), arena.memory if arena is not None else None)
        return arena if group.rank in spreading.takers else None

    def _transfer(self, group: Membership, spreading: Spreading) -> Arena | None:
        transfer = self._give if group.rank == spreading.root else self._take
        return self.ties.together(lambda: transfer(group.generation, spreading))

    def _give(self, generation: int, spreading: Spreading) -> None:
        packed = Packed(self.training.given(inner=spreading.fresh and self.ranks_per_node > 1))
        arena = packed.to_arena()
        note = Spread(spreading.root, list(spreading.takers), packed.size)
        try:
            self.link.channel(generation).send(note, arena.fd)
        finally:
            arena.close_fd()
        self.answer(generation)

    def _take(self, generation: int, spreading: Spreading) -> Arena | None:
        """Return the root's state; None for a rank that already has it."""
        self.link.channel(generation).send(Spread(spreading.root, list(spreading.takers)))
        received = self.answer(generation)
        if not isinstance(received, int):
            return None
        try:
            return Arena.received(received)
        except ProtocolError:
            self.lose(generation)
            raise PeerGone from None

    def _load(self, group: Membership) -> None:
        """Load the newest checkpoint, or report an error and wait for another node to load it in a new generation."""
        try:
            state = self.saver.load(
                group, lambda text: self.link.send(wire.Remark(self.trainer, text)), self.training.rows_wanted()
            )
        except CheckpointError as error:
            unloaded = Unloaded.UNREAD if error.transient else Unloaded.DAMAGED
            self.link.send(wire.GroupBroken(self.trainer, group.generation, str(error), unloaded))
            self.answer(group.generation)
            raise PeerGone from None
        if state is not None:
            self.training.restore(state, saved=True)
            self.next_steps.resumed(self.saver.next_step)
