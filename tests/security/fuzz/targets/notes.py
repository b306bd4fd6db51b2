"""Notes to the loop of a rank process: each is carried out, or ends the loop with a ``ProtocolError``."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pilot.comm.arena import Arena
from pilot.comm.channel import Channel, PeerGone
from pilot.comm.rank_server import RankServer
from tests.security.fuzz.mutate import NASTY, changed_bytes, changed_value
from tests.security.fuzz.target import ACCEPTED, Target
from tests.unit.comm.twin import World

ARENA_BYTES = 4096
PART = {"offset": 0, "count": 16, "dtype": "float32", "wire": ""}
NOTES: list[Any] = [
    {
        "type": "Attach",
        "parts": [PART, {**PART, "offset": 64}, {**PART, "offset": 128, "count": 8, "dtype": "float64"}],
    },
    {"type": "Attach", "parts": [{**PART, "wire": "bfloat16"}, {**PART, "offset": 64, "wire": "int8"}]},
    {"type": "Open", "round": 3},
    {"type": "Gather", "row": [1, 2, 3]},
    {"type": "Spread", "root": 0, "takers": [0], "size": 100},
    {"type": "Here", "generation": 1, "rank": 0, "size": 1},
    {"type": "Gathered", "rows": [[1]]},
    {"type": "Quit"},
    None,
]
LIKELY: list[Any] = [
    -1, 0, 1, 3, 4095, 4096, 2**20, 2**31, 2**40, 2**62, 2**63 - 1, "O", "float16", "int8", "complex128",
]  # fmt: skip
KINDS = ["none", *["arena"] * 3, "short", "empty", "pipe", "socket", "folder", "zero", "read-only"]
Packet = tuple[bytes, str]


def make(rng: random.Random, _number: int) -> list[Packet]:
    """A few packets, each with the descriptor that is passed along."""
    return [packet_of(rng) for _ in range(rng.choice((1, 1, 2, 3, 5)))]


def packet_of(rng: random.Random) -> Packet:
    """A packet, and the kind of its descriptor."""
    note = rng.choice(NOTES)
    if note is None:
        return b".", rng.choice(KINDS)
    if rng.random() < 0.2:
        return changed_bytes(rng, msgspec.msgpack.encode(note)) or b"?", rng.choice(KINDS)
    if rng.random() < 0.85:
        note = _changed(rng, note)
    try:
        return msgspec.msgpack.encode(note)[:100_000], rng.choice(KINDS)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        return rng.randbytes(20), "arena"


def _changed(rng: random.Random, note: Any) -> Any:
    if rng.random() < 0.5:
        return changed_value(rng, note)
    text = msgspec.json.encode(note).decode()
    places = [i for i, c in enumerate(text) if c.isdigit() and not text[i - 1].isalnum()]
    if not places:
        return {**note, "row": [rng.choice(NASTY)]}
    at = rng.choice(places)
    end = next(i for i in range(at, len(text)) if not text[i].isdigit())
    return msgspec.json.decode(text[:at] + msgspec.json.encode(rng.choice(LIKELY)).decode() + text[end:])


def prepare(folder: Path) -> Path:
    """A folder with a file in it."""
    (folder / "file").write_bytes(bytes(ARENA_BYTES))
    return folder


OPEN: dict[str, Callable[[Path], list[int]]] = {
    "none": lambda _: [],
    "arena": lambda _: [os.dup(Arena.of_size(ARENA_BYTES).fd)],
    "short": lambda _: [os.dup(Arena.of_size(64).fd)],
    "empty": lambda _: [os.memfd_create("empty")],
    "pipe": lambda _: [*os.pipe()],
    "socket": lambda _: [socket.socket(socket.AF_UNIX).detach()],
    "folder": lambda folder: [os.open(folder, os.O_RDONLY)],
    "zero": lambda _: [os.open("/dev/zero", os.O_RDWR)],
    "read-only": lambda folder: [os.open(folder / "file", os.O_RDONLY)],
}
"""Descriptors by kind; the one to send comes first."""


def attempt(folder: Path, packets: list[Packet]) -> str:
    """A worker sends all of it and hangs up."""
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for packet, kind in packets:
        fds = OPEN[kind](folder)
        socket.send_fds(theirs, [packet], fds[:1])
        for fd in fds:
            os.close(fd)
    theirs.shutdown(socket.SHUT_WR)
    with np.errstate(all="ignore"):
        try:
            RankServer([Channel(ours)], World(1).ranks()[0], generation=1).run()
        except PeerGone:
            return ACCEPTED
        finally:
            theirs.close()
            ours.close()
    return ACCEPTED


TARGET = Target("notes to a rank process", 4000, 400, attempt, make, prepare, limit_s=10.0)
