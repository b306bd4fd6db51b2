"""Packets on a worker's socket: strangers are rejected, and a rank process that sends malformed ones counts as gone."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path

from pilot.comm.messages import Here, encode
from pilot.train.node.sockets import RankConnected, RankGone, RankMessage, WorkerSockets
from tests.security.fuzz.target import ACCEPTED, REFUSED, Target, Wrong
from tests.security.fuzz.targets.notes import OPEN, Packet, packet_of


@dataclass
class Place:
    """A worker's sockets; ``control`` is its agent's end."""

    folder: Path
    link: WorkerSockets
    control: socket.socket
    generation: int = 0


def make(rng: random.Random, _number: int) -> tuple[bool, list[Packet]]:
    """Whether the rank process was introduced, and what it sends."""
    return rng.random() < 0.5, [packet_of(rng) for _ in range(rng.choice((1, 2, 4)))]


def prepare(folder: Path) -> Place:
    """A worker that listens."""
    (folder / "file").write_bytes(bytes(4096))
    ours, theirs = socket.socketpair()
    return Place(folder, WorkerSockets(ours.detach(), folder / "worker"), theirs)


def attempt(place: Place, value: tuple[bool, list[Packet]]) -> str:
    """Whatever comes, the link survives, and reports that its rank process came, said something, or is gone."""
    introduced, packets = value
    place.generation += 1
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(str(place.folder / "worker"))
    if introduced:
        peer.send(encode(Here(place.generation, 0, 1)))
    for packet, kind in packets:
        _send(place.folder, peer, packet, kind)
    peer.shutdown(socket.SHUT_WR)
    happened = [h for _ in range(3 + 2 * len(packets)) for h in place.link.wait(0)]
    peer.close()
    if any(not isinstance(h, RankConnected | RankMessage | RankGone) for h in happened):
        raise Wrong(f"happened: {happened}")
    if introduced and RankGone(place.generation) not in happened:
        raise Wrong("nobody noticed that the rank process hung up")
    fresh = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fresh.connect(str(place.folder / "worker"))
    place.generation += 1
    fresh.send(encode(Here(2**40 + place.generation, 0, 1)))
    came = [h for _ in range(3) for h in place.link.wait(0)]
    if RankConnected(2**40 + place.generation) not in came:
        raise Wrong(f"the next rank process is not heard: {came}")
    fresh.close()
    list(place.link.wait(0))
    for said in happened:
        if isinstance(said, RankMessage) and said.fd is not None:
            socket.close(said.fd)
    return ACCEPTED if any(isinstance(h, RankMessage) for h in happened) else REFUSED


def _send(folder: Path, peer: socket.socket, packet: bytes, kind: str) -> None:
    fds = OPEN[kind](folder)
    try:
        socket.send_fds(peer, [packet], fds[:1])
    except OSError:
        return  # it was rejected already
    finally:
        for fd in fds:
            socket.close(fd)


TARGET = Target("packets on a worker's socket", 1000, 100, attempt, make, prepare, limit_s=10.0)
