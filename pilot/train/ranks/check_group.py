"""The group of a script run by ``pilot check``: for one step, alone or as one of two ranks that talk to each other
directly. Nothing is saved, and the process ends when the step is applied.

The script runs three times: alone, when it leaves its initial state and the step's gradients in a folder, and as two
ranks, which take over that state like a newcomer. Rank 0 of the two compares.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import torch

from pilot.core.errors import UserError
from pilot.core.run_identity import PER_NODE
from pilot.train.alike.newcomers import Newcomers
from pilot.train.alike.next_step import NextSteps, kept_nowhere
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.node.sockets import inherited
from pilot.train.ranks import by_design
from pilot.train.ranks.reporter import Metrics
from pilot.train.state import identity
from pilot.train.state.block import Packed, unpack
from pilot.train.state.placeholder import Placeholder
from pilot.train.state.training import Training

SEAT = "PILOT_CHECK"
"""The variable that says which run this is, as JSON: see :class:`Run`."""

_LENGTH_BYTES = 8
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """Rank ``rank`` of ``size``; ``folder``: this check's; ``link``: a descriptor, the socket to the other rank."""

    rank: int
    size: int
    folder: str
    link: int = -1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Run:
        """As ``pilot check`` says in ``SEAT``."""
        return msgspec.json.decode(environment[SEAT], type=cls)

    def keep_link(self) -> None:
        """No interpreter that the script starts gets the link, as none gets a worker's socket to its agent."""
        if self.link >= 0:
            os.set_inheritable(self.link, False)

    def report(self) -> Path:
        """The file for this run's results."""
        return Path(self.folder, f"report-{self.rank}-of-{self.size}.json")


@dataclass(frozen=True, slots=True)
class Compared:
    """One gradient of one optimizer's step: its norm alone and on two ranks, the norm of the difference, and the dot
    product; ``digits``: the relative rounding error of its type.
    """

    name: str
    alone: float
    ranks: float
    difference: float
    product: float
    digits: float


Gradients = dict[str, torch.Tensor]


class CheckGroup:
    """See the module, and :class:`~pilot.train.ranks.group.RankGroup`."""

    revision = 0
    newcomers = Newcomers()

    def __init__(self, run: Run, training: Training, exchanges: Exchanges, resized: Callable[[int], None]) -> None:
        self.next_steps = NextSteps(training, kept_nowhere)
        self._run = run
        self._training = training
        self._exchanges = exchanges
        self._selected = 0
        self._resized = resized
        self._entered = False
        self._gradients: list[Gradients] = []
        self._other = inherited(run.link) if run.link >= 0 else None

    @classmethod
    def of(
        cls,
        environment: Mapping[str, str],
        training: Training,
        exchanges: Exchanges,
        resized: Callable[[int], None],
    ) -> CheckGroup:
        """Create one according to ``pilot check``'s environment variable."""
        return cls(Run.of(environment), training, exchanges, resized)

    def enter(self) -> Membership:
        """The first time, load the state of the run alone."""
        if not self._entered:
            self._entered = True
            self._share_state()
            self._resized(self._run.size)
        return Membership(1, self._run.rank, self._run.size)

    def attach(self) -> None:
        """Nothing to do: arenas are looked up with each sum."""

    def select(self, number: int) -> list[int]:
        """What both ranks selected."""
        self._selected = number
        return [row[0] for row in self.gather([number])]

    def ring(self) -> None:
        """All parts are summed at once."""

    def words(self, loss: float) -> Words:
        """Only the loss."""
        by_design.look_at_random_numbers()
        return Words.of(0, False, loss)

    def summed(self) -> bool:
        """Add up the gradients of both ranks."""
        exchange = self._exchanges.each[self._selected]
        arena = exchange.arena
        rows = [np.frombuffer(block, np.uint8) for block in self._together(bytes(arena.memory))]
        for part in exchange.layout.parts if len(rows) > 1 else ():
            views = [np.frombuffer(row, part.dtype, part.count, part.offset) for row in rows]
            np.frombuffer(arena.memory, part.dtype, part.count, part.offset)[:] = np.sum(views, axis=0)
        return True

    def sums_came(self) -> None:
        """Record the gradients of this optimizer's step."""
        held = {name: p.grad for name, p in self._training.trained.named.items() if p.grad is not None}
        self._gradients.append({n: g.detach().clone() for n, g in held.items() if not isinstance(g, Placeholder)})

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:  # noqa: ARG002  # the protocol's signature
        """One step is enough."""
        seen = by_design.seen() + (["batch_size= is per node"] if PER_NODE in self._training.identity else [])
        self._end(samples=share.total, loss=words.loss, by_design=seen, compared=self._compared())

    def settle(self) -> None:
        """Nothing changes."""

    def gather(self, row: list[int]) -> list[list[int]]:
        """Both ranks' rows."""
        rows: list[list[int]] = [msgspec.json.decode(one) for one in self._together(msgspec.json.encode(row))]
        return rows

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        """Both have the same state."""

    def distrust(self, step: int) -> str:  # noqa: ARG002  # the protocol's signature
        """Nothing is saved."""
        return "there is no checkpoint"

    def remark(self, text: str) -> None:
        """Not needed here."""

    def rested(self, seconds: float) -> None:
        """Not needed here."""

    def finish(self, metrics: Metrics) -> None:  # noqa: ARG002  # the protocol's signature
        """The script ended without a step."""
        raise UserError("the script's loop ended before its first step: nothing to check")

    # --- the runs together -------------------------------------------------------------------------------------------

    def _share_state(self) -> None:
        state, own = Path(self._run.folder, "state"), Path(self._run.folder, "identity")
        if self._run.size == 1:
            packed = Packed(self._training.encoded())
            block = bytearray(packed.size)
            packed.write(block)
            state.write_bytes(block)
            own.write_bytes(msgspec.json.encode(self._training.identity))
        else:
            identity.expect_same(
                [msgspec.json.decode(own.read_bytes(), type=identity.Identity), self._training.identity]
            )
            self._training.restore(unpack(bytearray(state.read_bytes())))

    def _compared(self) -> list[dict[str, Any]]:
        file = Path(self._run.folder, "gradients")
        if self._run.size == 1:
            torch.save(self._gradients, file)
        if self._run.size == 1 or self._run.rank:
            return []
        alone: list[Gradients] = torch.load(file, weights_only=True)
        return [asdict(row) for one, other in zip(alone, self._gradients, strict=True) for row in _rows(one, other)]

    def _together(self, own: bytes) -> list[bytes]:
        """What each rank sends, by rank. Rank 0 sends first: if both did, both could wait for buffer space."""
        if self._other is None:
            return [own]
        if self._run.rank == 0:
            self._other.sendall(len(own).to_bytes(_LENGTH_BYTES, "little") + own)
            return [own, self._heard(self._other)]
        heard = self._heard(self._other)
        self._other.sendall(len(own).to_bytes(_LENGTH_BYTES, "little") + own)
        return [heard, own]

    def _heard(self, other: socket.socket) -> bytes:
        length = int.from_bytes(_exactly(other, _LENGTH_BYTES), "little")
        return bytes(_exactly(other, length))

    def _end(self, **seen: Any) -> NoReturn:
        """End the process without running any more of the script, which would save what it trained."""
        self._run.report().write_text(json.dumps(seen))
        os._exit(0)


def _exactly(other: socket.socket, length: int) -> bytearray:
    received = bytearray()
    while len(received) < length:
        piece = other.recv(min(_PIECE_BYTES, length - len(received)))
        if not piece:
            os._exit(1)  # the other rank has ended, and reported why
        received += piece
    return received


def _rows(alone: Gradients, ranks: Gradients) -> list[Compared]:
    """The comparisons, in the model's order."""
    rows = []
    for name in [*alone, *(name for name in ranks if name not in alone)]:
        found = alone.get(name, ranks.get(name))
        assert found is not None
        digits = torch.finfo(found.dtype).eps
        a, b = (_wide(side.get(name, torch.zeros_like(found))) for side in (alone, ranks))
        product = float(torch.dot(a, b))
        rows.append(Compared(name, float(a.norm()), float(b.norm()), float((a - b).norm()), product, digits))
    return rows


def _wide(gradient: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    return real.reshape(-1).to("cpu", torch.float64)
