"""What a worker sends to its agent: valid messages, or the worker counts as broken and ends; the agent goes on."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import msgspec

from pilot.agent.worker import LocalRanks, WorkerSocket
from pilot.protocol import wire
from tests.security.fuzz.mutate import changed_bytes, changed_value
from tests.security.fuzz.target import ACCEPTED, REFUSED, Target, check_line

MESSAGES: list[wire.Message] = [
    wire.WorkerReady("t", 1.5),
    wire.CodeLoaded("t", {"/lib.py": "0" * 64}),
    wire.RankPaused("t", 2, 100),
    wire.RankStalled("t", 2, 100, 30.5, summing=True),
    wire.GroupFormed("t", 2, 100, None),
    wire.Progress("t", 2, 100, 1, 6400, 120.5, ledger=[(2, 1, 90, 100, 0, 640)], metrics={"loss": 0.5}),
    wire.CheckpointWritten("t", 2, 100, True, "/x", "", 1.0, 100),
    wire.TrainerFinished("t", 2, 100, 6400),
    wire.Remark("t", "a remark"),
    wire.Heartbeat(1.0),
]


def make(rng: random.Random, _number: int) -> bytes:
    """A few length-prefixed frames, one of them malformed."""
    frames = [wire.encode(rng.choice(MESSAGES)) for _ in range(rng.choice((1, 2, 3)))]
    at = rng.randrange(len(frames))
    length = None
    match rng.randrange(4):
        case 0:
            frames[at] = changed_bytes(rng, frames[at])
        case 1:
            length = rng.choice((0, 1, 3, 2**23, 2**31, 2**32 - 1, len(frames[at]) - 1, len(frames[at]) + 1))
        case _:
            try:
                frames[at] = msgspec.msgpack.encode(changed_value(rng, msgspec.msgpack.decode(frames[at])))
            except (OverflowError, UnicodeEncodeError, RecursionError):
                frames[at] = b"\x91" * 5000
    sizes = [len(frame) for frame in frames]
    sizes[at] = sizes[at] if length is None else max(0, length)
    return b"".join(size.to_bytes(4, "big") + frame for size, frame in zip(sizes, frames, strict=True))


def attempt(_place: Path, data: bytes) -> str:
    """Each message goes through the code that merges a worker's processes into one voice; malformed ones are reported
    in one line.
    """
    return asyncio.run(_attempt(data))


async def _attempt(data: bytes) -> str:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    unison, broken = LocalRanks(2), list[str]()
    control = WorkerSocket(ours, lambda message: _combine(unison, message), broken.append)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    theirs.sendall(data)
    control.drain()
    control.close()
    theirs.close()
    for why in broken:
        check_line(why)
    return REFUSED if broken else ACCEPTED


def _combine(unison: LocalRanks, message: wire.FromAgent) -> None:
    for process in range(2):
        unison.combine(process, message)


TARGET = Target("packets on an agent's control socket", 1000, 100, attempt, make, limit_s=10.0)
