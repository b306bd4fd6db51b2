"""Rank processes connected only by our own PMI server: sums, ports, segments, and how they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from pilot.comm import mpich
from pilot.comm.arena import Arena
from pilot.comm.channel import Channel, listen
from pilot.comm.messages import Attach, BucketPart, Closing, Gather, Gathered, Here, Open, Quit
from pilot.comm.mpich import segment_name
from pilot.comm.pmi import variables
from pilot.comm.rank_order import WORKER_GONE, RankOrder, encode
from pilot.comm.world import World, run
from pilot.host import proc
from tests.integration.rank_processes import serve, start_rails, start_rank_process

LIMIT_S = 60.0
NUMBERS = 100_000

DIES = """
import os, signal
from pilot.comm import mpi
from pilot.host import proc

def die():
    os.write(1, "".join(f"{name}\\n" for name in proc.segments(os.getpid())).encode())
    os.kill(os.getpid(), signal.SIGKILL)

mpi._forget_segments = die
mpi.start()
"""
"""A rank that is killed while it has MPICH's segments mapped, and that reports which."""


@dataclass
class Ranks:
    """The rank processes of one generation, and their training processes' ends."""

    processes: list[subprocess.Popen[bytes]]
    channels: list[Channel]


@contextmanager
def ranks(folder: Path, size: int, rails: int = 1) -> Iterator[Ranks]:
    """A generation in MPI that was warm before it got its orders."""
    listeners = [listen(folder / f"w{rank}") for rank in range(size)]
    started = [process for _ in range(size) for process in start_rails(rails)]
    for number, (_, end) in enumerate(started):
        rank, rail = divmod(number, rails)
        end.sendall(encode(RankOrder(7, rank, size, [str(folder / f"w{rank}")], rail, rails)))
    thread = serve([end for _, end in started], rails)
    try:
        yield Ranks([process for process, _ in started], [_accept(listener) for listener in listeners])
    finally:
        for process, _ in started:
            process.kill()
            process.wait()
        thread.join()


def _accept(listener: socket.socket) -> Channel:
    listener.settimeout(LIMIT_S)
    return Channel(listener.accept()[0])


@pytest.mark.parametrize(("size", "rails"), [(1, 1), (3, 1), (2, 2)])
def test_ranks_sum_and_end_in_good_order(tmp_path: Path, size: int, rails: int) -> None:
    with ranks(tmp_path, size, rails) as group:
        arenas = [Arena.of_size(8 * NUMBERS) for _ in range(size)]
        numbers = [np.frombuffer(arena.memory, np.float64) for arena in arenas]
        for rank, channel in enumerate(group.channels):
            assert channel.receive() == (Here(7, rank, size), None)
            numbers[rank][:] = rank + 1
            half = NUMBERS // 2
            parts = [BucketPart(0, half, "float64"), BucketPart(8 * half, NUMBERS - half, "float64")]
            channel.send(Attach(parts), arenas[rank].fd)
            channel.ring()
        for rank, channel in enumerate(group.channels):
            assert channel.receive() == (None, None)
            assert (numbers[rank] == size * (size + 1) / 2).all()
            channel.send(Gather([rank]))
        for channel in group.channels:
            assert channel.receive() == (Gathered([[rank] for rank in range(size)]), None)
            channel.send(Quit())
        assert [process.wait(LIMIT_S) for process in group.processes] == [0] * size * rails


@pytest.mark.parametrize(("size", "rails"), [(1, 1), (2, 2), (5, 1)])
def test_the_first_rank_that_gathers_ends_the_round_of_all(tmp_path: Path, size: int, rails: int) -> None:
    with ranks(tmp_path, size, rails) as group:
        for channel in group.channels:
            assert channel.receive()[0] is not None
        for number in range(2 * size):
            first = group.channels[number % size]
            for channel in group.channels:
                channel.send(Open(number))
            first.send(Gather([number]))
            for channel in group.channels:
                if channel is not first:
                    assert channel.receive() == (Closing(number), None)
                    channel.send(Gather([number]))
            assert [channel.receive() for channel in group.channels] == [(Gathered([[number]] * size), None)] * size
        _gather_at_once_and_quit(group, Open(2 * size))
        assert [process.wait(LIMIT_S) for process in group.processes] == [0] * size * rails


def _gather_at_once_and_quit(group: Ranks, opened: Open) -> None:
    """So that each rank leaves unread that others end the round."""
    for channel in group.channels:
        channel.send(opened)
        channel.send(Gather([1]))
    for channel in group.channels:
        answer, _ = channel.receive()
        if answer == Closing(opened.round):
            answer, _ = channel.receive()
        assert answer == Gathered([[1]] * len(group.channels))
        channel.send(Quit())


def test_ranks_in_an_open_round_sleep_also_when_one_has_died(tmp_path: Path) -> None:
    with ranks(tmp_path, 3) as group:
        for channel in group.channels:
            channel.receive()
            channel.send(Open(0))
        *living, dead = group.processes
        dead.kill()
        dead.wait()
        before_s = _cpu_s(living)
        time.sleep(1.0)  # what is measured
        assert _cpu_s(living) - before_s < 0.3
        for channel, process in zip(group.channels, living, strict=False):
            channel.close()
            assert process.wait(LIMIT_S) == WORKER_GONE


def _cpu_s(processes: list[subprocess.Popen[bytes]]) -> float:
    return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in processes)


def test_ranks_listen_on_the_sites_interface_only(tmp_path: Path) -> None:
    with ranks(tmp_path, 2) as group:
        for channel in group.channels:
            channel.receive()
        for process in group.processes:
            sockets = psutil.Process(process.pid).net_connections("inet")
            listening = [s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN or not s.raddr]
            assert set(listening) == {"127.0.0.1"}


def test_a_rank_whose_worker_goes_ends(tmp_path: Path) -> None:
    with ranks(tmp_path, 1) as group:
        group.channels[0].receive()
        group.channels[0].close()
        assert group.processes[0].wait(LIMIT_S) == WORKER_GONE


def test_a_rail_does_not_outlive_another_of_its_node(tmp_path: Path) -> None:
    with ranks(tmp_path, 2, 2) as group:
        for channel in group.channels:
            channel.receive()
            arena = Arena.of_size(16)
            channel.send(Attach([BucketPart(0, 1, "float64"), BucketPart(8, 1, "float64")]), arena.fd)
            arena.close_fd()
            channel.ring()
        assert [channel.receive() for channel in group.channels] == [(None, None)] * 2, "all rails are up"
        first, other, *_ = group.processes
        other.kill()
        group.channels[0].ring()
        assert first.wait(LIMIT_S) == WORKER_GONE
        group.channels[1].close()
        assert [process.wait(LIMIT_S) for process in group.processes[2:]] == [WORKER_GONE] * 2


def test_a_warm_rank_process_ends_with_its_agent() -> None:
    process, end = start_rank_process()
    end.close()
    assert process.wait(LIMIT_S) == 0


def test_ranks_that_die_in_mpi_init_leave_the_segment_that_their_agents_know(capfd: pytest.CaptureFixture[str]) -> None:
    """A rank process may be killed at any moment, even while MPI_Init creates the segment."""
    pairs = [socket.socketpair() for _ in range(2)]
    world = World([ours for ours, _ in pairs])
    processes = [_dies(theirs, rank) for rank, (_, theirs) in enumerate(pairs)]
    assert not world.serve(LIMIT_S)
    assert [process.wait(LIMIT_S) for process in processes] == [-signal.SIGKILL] * 2
    known = [segment_name(space, rank) for rank, space in enumerate(world.spaces)]
    assert sorted(capfd.readouterr().out.split()) == sorted(known), "these and no others"
    assert all((proc.SHARED_MEMORY / name).exists() for name in known)
    proc.unlink_segments(known)
    assert not any((proc.SHARED_MEMORY / name).exists() for name in known)


def _dies(end: socket.socket, rank: int) -> subprocess.Popen[bytes]:
    environment = mpich.environment(os.environ, interface="lo", provider="tcp") | variables(end.fileno(), rank, 2)
    with end:
        return subprocess.Popen([sys.executable, "-c", DIES], env=environment, pass_fds=[end.fileno()])


def test_a_world_ends_with_the_first_rank_that_fails() -> None:
    program = "import sys; from pilot.comm import mpi; mpi.start()"
    environment = mpich.environment(os.environ, interface="lo", provider="nosuch")
    done = run([sys.executable, "-c", program], 2, environment, LIMIT_S)
    assert any(rank.returncode > 0 and "getinfo failed" in rank.stderr for rank in done)
