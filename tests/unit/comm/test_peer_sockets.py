"""A sleep ends when a peer has sent something, but not for ever if nobody reads that."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from pilot.comm import naps, step_sum
from pilot.comm.channel import Channel
from pilot.comm.fabric import Fabric
from pilot.comm.naps import PeerSockets, ready_or_sent
from pilot.comm.pipeline import SharedPart
from pilot.comm.rails import Rails
from pilot.comm.step_sum import Lockstep

LONG_S = 60.0
Ends = tuple[socket.socket, socket.socket]
Channels = tuple[Channel, Channel]


@pytest.fixture
def connection() -> Iterator[Ends]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, other


@pytest.fixture
def channel() -> Iterator[Channels]:
    ends = Channel.pair()
    yield ends
    for end in ends:
        end.close()


def test_only_connections_to_peers_are_found(connection: Ends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(type=socket.SOCK_DGRAM) as other_kind:
        found = PeerSockets().readable_when_sent_to()
        assert {one.fileno() for one in connection} <= set(found)
        assert not {server.fileno(), other_kind.fileno()} & set(found)


def test_a_sleep_ends_by_what_a_peer_sends_and_by_a_doorbell(connection: Ends, channel: Channels) -> None:
    ours, theirs = channel
    sockets = PeerSockets()
    connection[1].send(b"numbers")
    assert ready_or_sent([ours], sockets, LONG_S) == ([], True)
    theirs.ring()
    assert ready_or_sent([ours], sockets, LONG_S) == ([ours], True)
    connection[0].recv(100)
    assert ready_or_sent([ours], sockets, LONG_S) == ([ours], False)


def test_a_connection_that_mpi_has_closed_is_no_longer_waited_for(
    connection: Ends, channel: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naps, "REFRESH_EVERY_S", LONG_S)
    ours, theirs = channel
    sockets = PeerSockets()
    closed = connection[0].fileno()
    assert closed in sockets.readable_when_sent_to()
    connection[0].close()
    theirs.ring()
    assert ready_or_sent([ours], sockets, LONG_S) == ([ours], False)
    assert closed not in sockets.readable_when_sent_to()


def test_what_nobody_reads_does_not_end_sleeps_for_ever(connection: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer may be a collective ahead, or dead."""
    sleeps = {"early": 0, "complete": 0}

    class Ahead:
        """A sum that is complete once a sleep was not cut short."""

        sockets = PeerSockets()
        rank, size = 0, 2

        def done(self) -> bool:
            assert sleeps["early"] <= naps.MOST_WAKES
            return sleeps["complete"] > 0

        def sum(self, _numbers: object) -> Ahead:
            return self

    def sleep_early(*arguments: object) -> tuple[list[Channel], bool]:
        sleeps["early"] += 1
        return ready_or_sent(*arguments)  # type: ignore[arg-type]  # whatever it gets

    def sleep(*_: object) -> list[Channel]:
        sleeps["complete"] += 1
        return []

    monkeypatch.setattr(naps, "ready_or_sent", sleep_early)
    monkeypatch.setattr(naps, "ready", sleep)
    connection[1].send(b"of the next sum")
    fabric: Fabric = Ahead()  # type: ignore[assignment]  # it has what a step needs
    step_sum.StepSum([SharedPart((np.ones(4),), "", per_process=True)], [], fabric, Rails(), Lockstep(fabric, [])).run()
    assert sleeps == {"early": naps.MOST_WAKES, "complete": 1}
