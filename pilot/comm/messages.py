"""Messages between a training process and its rank process, other than single ``DOORBELL`` bytes.

``rank`` and ``size`` count training processes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pilot.core.errors import ProtocolError

DOORBELL = b"."
"""A single byte. From a training process: the step's next part is full, or the last two are. From the rank process: all
parts of the step are summed. From rail 0 to the other rails of its node: the next part may be summed; from those: it is
summed.
"""


Count = Annotated[int, msgspec.Meta(ge=0, le=2**47)]
"""Bytes, or counts of numbers; no machine has more memory."""

Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

Word = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A 64-bit integer."""


class Note(msgspec.Struct, frozen=True, tag=True):
    """Base of all notes; the tag is the class name."""


class Here(Note, frozen=True):
    """First note of a rank process: MPI is up on all ranks of ``generation``."""

    generation: int
    rank: int
    size: int


class BucketPart(msgspec.Struct, frozen=True):
    """``count`` numbers of numpy type ``dtype`` from ``offset`` (bytes) on, which are summed in one operation.

    ``wire``, one of :data:`pilot.comm.narrow.WIRES`, is how they are sent; empty: unchanged. ``per_process``: each of
    a node's training processes has its own numbers there, which are summed only with those of the same local rank on
    the other nodes (they are its share of a sum that the node has computed by itself, or its shard of a model).
    """

    offset: Count
    count: Count
    dtype: str
    wire: str = ""
    per_process: bool = False


ArenaNumber = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
"""An arena for each optimizer: some scripts have one for each layer."""


class Attach(Note, frozen=True):
    """Sent with an arena's descriptor: the parts of each step that uses it, in the order in which they are filled.

    A training process has one arena or several, identified by ``number``.
    """

    parts: list[BucketPart]
    number: ArenaNumber = 0


class Select(Note, frozen=True):
    """The following steps use this arena (initially: number 0). Answered by ``Gathered``: what all ranks have selected,
    one number each.
    """

    number: ArenaNumber


class Gather(Note, frozen=True):
    """A row of 64-bit integers, of the same length on all ranks, in one packet. Answered by ``Gathered``."""

    row: list[Word]


class Gathered(Note, frozen=True):
    """The rows of all ranks, by rank; in several notes, one after the other, if they do not fit in a packet."""

    rows: list[list[Word]]


class Spread(Note, frozen=True):
    """Broadcast ``size`` bytes from ``root`` to ``takers``; sent by all ranks, but only the nodes of these take part.

    The root sends it with the descriptor of the bytes, the others without one and with size 0. Answered by
    ``SpreadDone`` when everything has arrived, for a taker with a descriptor of the bytes.
    """

    root: Rank
    takers: list[Rank]
    size: Count = 0


class Broadcast(Note, frozen=True):
    """Broadcast your pieces of ``size`` bytes from the first of ``nodes`` to the others: rail 0 sends this to the other
    rails of its node, with a descriptor of the bytes. Answered by a ``DOORBELL`` when they have arrived.
    """

    nodes: list[Rank]
    size: Count


class Open(Note, frozen=True):
    """A round of seldom-synchronised training begins, number ``round``, higher than the last one of this generation:
    training processes train by themselves until they gather. If another node gathers first, they get a ``Closing``
    (perhaps only when they wait for the answer to their own ``Gather``). ``ends``: when they gather first, others get
    one.
    """

    round: Count
    ends: bool = True


class Closing(Note, frozen=True):
    """Sent to a training process in round ``round``: another node has ended it, and waits for this one to gather."""

    round: Count


class OutOfStep(Note, frozen=True):
    """Sent to a training process that sums or selects while ``gathering`` gathers: neither will be answered."""

    gathering: Rank


class Moving(Note, frozen=True):
    """The current spread has moved bytes since the last such note; sent at most once a second."""


class SpreadDone(Note, frozen=True):
    """The broadcast is complete on this node."""


class Quit(Note, frozen=True):
    """The generation ends normally: finalize MPI with the other ranks and exit."""


Answer = Gathered | Closing | OutOfStep | Moving | SpreadDone
"""The messages of a rank process to its training processes after ``Here``, other than its doorbell."""

AnyNote = Here | Attach | Select | Open | Gather | Spread | Broadcast | Quit | Answer

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyNote] = msgspec.msgpack.Decoder(AnyNote)


def encode(note: AnyNote) -> bytes:
    """One note as one packet."""
    return _encoder.encode(note)


def decode(packet: bytes) -> AnyNote:
    """The note in ``packet``; :class:`ProtocolError` if it is not one."""
    try:
        return _decoder.decode(packet)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a note between worker and rank process: {error}") from None
