"""Packets that once harmed a trainer: they end the connection, or the rank process with one line and an exit status."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilot.comm.arena import Arena
from pilot.comm.channel import Channel, PeerGone
from pilot.comm.messages import Here, encode
from pilot.comm.rank_server import RankServer
from pilot.core.errors import ProtocolError
from pilot.train.node.sockets import RankConnected, RankGone, RankMessage, WorkerSockets
from tests.unit.comm.twin import World

PART = {"offset": 0, "count": 16, "dtype": "float32", "wire": ""}


def attach(**changes: Any) -> dict[str, Any]:
    return {"type": "Attach", "parts": [{**PART, **changes}]}


def serve(*packets: tuple[Any, int | None]) -> None:
    """A rank process alone in its group receives ``packets``, then its worker hangs up."""
    worker, ours = Channel.pair()
    peer = socket.socket(fileno=os.dup(worker.fileno()))
    for note, fd in packets:
        packet = note if isinstance(note, bytes) else msgspec.msgpack.encode(note)
        socket.send_fds(peer, [packet], [] if fd is None else [fd])
    worker.hang_up()
    RankServer([ours], World(1).ranks()[0], generation=1).run()


BAD: list[tuple[Any, bool]] = [
    (attach(), False),
    (attach(offset=4095), True),
    (attach(count=10**12), True),
    (attach(offset=-4), True),
    (attach(count=-1), True),
    (attach(count=0), True),
    (attach(offset=2**63), True),
    (attach(dtype="O"), True),
    (attach(dtype="complex64"), True),
    (attach(dtype="nothing"), True),
    (attach(wire="bfloat17"), True),
    (attach(dtype="float64", wire="bfloat16"), True),
    ({"type": "Attach", "parts": []}, True),
    (b".", False),
    ({"type": "Gather", "row": []}, False),
    ({"type": "Gather", "row": [2**63]}, False),
    ({"type": "Gather", "row": [1]}, True),
    ({"type": "Spread", "root": 1, "takers": [0], "size": 10}, True),
    ({"type": "Spread", "root": -1, "takers": [0], "size": 10}, True),
    ({"type": "Spread", "root": 0, "takers": [5], "size": 10}, True),
    ({"type": "Spread", "root": 0, "takers": [], "size": 10}, True),
    ({"type": "Spread", "root": 0, "takers": [0, 0], "size": 10}, True),
    ({"type": "Spread", "root": 0, "takers": [0], "size": 10**9}, True),
    ({"type": "Spread", "root": 0, "takers": [0], "size": 10}, False),
    ({"type": "Spread", "root": 0, "takers": [0], "size": 0}, True),
    ({"type": "Here", "generation": 1, "rank": 0, "size": 1}, False),
    (b"\x81\xa4type\xa6Qui\xff\x0f", False),
    (b"\x91" * 5000, False),
]


@pytest.mark.parametrize(("note", "with_arena"), BAD)
def test_a_bad_note_is_a_protocol_error(note: Any, with_arena: bool) -> None:
    with pytest.raises(ProtocolError) as caught:
        serve((note, Arena.of_size(4096).fd if with_arena else None))
    assert str(caught.value).isprintable()


def test_a_good_note_is_carried_out() -> None:
    with pytest.raises(PeerGone):
        serve((attach(), Arena.of_size(4096).fd), (b".", None))
    with pytest.raises(PeerGone):
        serve(({"type": "Gather", "row": [1, 2]}, None), ({"type": "Gather", "row": [3]}, None))
    with pytest.raises(PeerGone):
        serve(({"type": "Spread", "root": 0, "takers": [0], "size": 4096}, Arena.of_size(4096).fd))


def test_memory_that_its_maker_could_cut_is_not_looked_into(tmp_path: Path) -> None:
    cuttable = os.memfd_create("cuttable")
    os.ftruncate(cuttable, 4096)
    (tmp_path / "file").write_bytes(bytes(4096))
    folder, read, zero = os.open(tmp_path, os.O_RDONLY), os.pipe()[0], os.open("/dev/zero", os.O_RDWR)
    for fd in (cuttable, folder, read, zero, os.open(tmp_path / "file", os.O_RDWR)):
        with pytest.raises(ProtocolError):
            serve((attach(), fd))
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(Arena.of_size(4096).fd, 10)


# --- a worker's socket ------------------------------------------------------------------------


class Worker:
    """A worker's sockets, and the peer that connects to them."""

    def __init__(self, folder: Path) -> None:
        ours, self.agent = socket.socketpair()
        self.path = folder / "worker"
        self.sockets = WorkerSockets(ours.detach(), self.path)

    def peer(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.connect(str(self.path))
        return peer

    def happened(self) -> list[Any]:
        return [happening for _ in range(4) for happening in self.sockets.wait(0)]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


NONSENSE = [b"?", b"\xff" * 100, b"\x91" * 5000, b"\x81\xa4type\xa4Quit", msgspec.msgpack.encode(attach())]


@pytest.mark.parametrize("packet", [*NONSENSE, b"."])
def test_a_stranger_who_talks_nonsense_is_shown_the_door(worker: Worker, packet: bytes) -> None:
    stranger, rank = worker.peer(), worker.peer()
    stranger.send(packet)
    rank.send(encode(Here(3, 0, 1)))
    assert worker.happened() == [RankConnected(3)]
    assert stranger.recv(10) == b""
    rank.send(b".")
    assert worker.happened() == [RankMessage(3, None, None)]


@pytest.mark.parametrize("packet", NONSENSE)
def test_a_rank_process_that_talks_nonsense_counts_as_gone(worker: Worker, packet: bytes) -> None:
    rank = worker.peer()
    rank.send(encode(Here(3, 0, 1)))
    assert worker.happened() == [RankConnected(3)]
    rank.send(packet)
    assert worker.happened() == [RankGone(3)]
    with pytest.raises(PeerGone):
        worker.sockets.channel(3)


def test_those_who_connect_and_say_nothing_are_few(worker: Worker) -> None:
    silent = []
    for _ in range(100):
        silent.append(worker.peer())
        worker.happened()
    assert len(worker.sockets.fds()) < 30
    rank = worker.peer()
    rank.send(encode(Here(3, 0, 1)))
    assert RankConnected(3) in worker.happened()


def test_descriptors_that_nobody_asked_for_are_closed(worker: Worker) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for packet in (b"?", encode(Here(4, 0, 1)), b"."):
        peer = worker.peer()
        read, write = os.pipe()
        socket.send_fds(peer, [packet], [read])
        worker.happened()
        for end in (read, write):
            os.close(end)
        peer.close()
        worker.happened()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
