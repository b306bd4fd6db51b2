"""Process groups between nodes, of members that are threads of one process."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from pilot.comm.channel import PeerGone
from pilot.core.errors import UserError
from pilot.train.between import between
from pilot.train.between.between import Between, Formation, between_nodes
from pilot.train.between.process_groups import Gloo, ProcessGroup
from pilot.train.node.membership import Membership, Seat

SIZE = 3
DEADLINE_S = 20.0


class Members:
    """Members of a group that gather by a barrier. ``lost``: the generation is not in force any more."""

    def __init__(self, make: Callable[..., ProcessGroup]) -> None:
        self.each = [Between(Seat(), make) for _ in range(SIZE)]
        self.lost = False
        self.reported: list[str] = []
        self._rows: list[Formation] = [(0, {})] * SIZE
        self._barrier = threading.Barrier(SIZE, timeout=DEADLINE_S)
        for one in self.each:
            one.until, one.report = self.until, lambda _generation, reason: self.reported.append(reason)

    def until(self, done: Callable[[], bool]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < end_s
            if self.lost:
                raise PeerGone
            time.sleep(1e-3)

    def gather(self, rank: int, row: Formation) -> list[Formation]:
        self._rows[rank] = row
        self._barrier.wait()
        rows = list(self._rows)
        self._barrier.wait()
        return rows

    def do(self, act: Callable[[int, Between], Any]) -> list[Any]:
        """What ``act`` returns or raises on each member, all at once."""

        def caught(rank: int) -> Any:
            try:
                return act(rank, self.each[rank])
            except PeerGone as error:
                return error

        with ThreadPoolExecutor(SIZE) as threads:
            return list(threads.map(caught, range(SIZE)))

    def form(self) -> list[Any]:
        return self.do(lambda rank, one: one.form(Membership(7, rank, SIZE), partial(self.gather, rank)))


@pytest.fixture
def members() -> Iterator[Members]:
    made = Members(partial(Gloo, interface="lo"))
    yield made
    for one in made.each:
        one.abandon(7)


@pytest.mark.parametrize("wire", ["", "bfloat16"])
def test_it_sums_in_order(members: Members, wire: str) -> None:
    members.form()

    def add(rank: int, one: Between) -> list[float]:
        numbers = [torch.full((5,), float(rank + bucket)) for bucket in range(4)]
        for bucket in numbers:
            one.sum(bucket, wire)
        one.finish()
        return [float(bucket[0]) for bucket in numbers]

    assert members.do(add) == [[3.0, 6.0, 9.0, 12.0]] * SIZE


def test_it_sends_states_to_those_who_want_them(members: Members) -> None:
    members.form()
    state = np.arange(5 << 20, dtype=np.int64)  # more than two pieces

    def send(rank: int, one: Between) -> Any:
        memory = [np.zeros_like(state), state, None][rank]
        one.broadcast(1, state.nbytes, memory)
        return memory

    received, _, nothing = members.do(send)
    assert np.array_equal(received, state)
    assert nothing is None


def test_a_member_that_never_sums_holds_up_nobody(members: Members) -> None:
    """It may be stopped, or cut off; the others hear of that through their agents."""
    members.form()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as own:
        theirs, _ = server.accept()
        threading.Timer(0.3, lambda: setattr(members, "lost", True)).start()

        def wait(rank: int, one: Between) -> float:
            if rank == SIZE - 1:
                return 0.0
            one.sum(torch.ones(1 << 20), "")
            with pytest.raises(PeerGone):
                one.finish()
            begin_s = time.monotonic()
            one.abandon(7)
            return time.monotonic() - begin_s

        assert max(members.do(wait)) < 2.0
        own.sendall(b"a connection of the script's own goes on")
        assert theirs.recv(10) == b"a connecti"
        theirs.close()


class Stubborn(Gloo):
    """A group whose pending work does not end when it is abandoned; that of gloo seldom does not."""

    def abandon(self) -> None:
        pass


def test_work_that_never_ends_is_left_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "ABANDON_LIMIT_S", 0.1)
    members = Members(partial(Stubborn, interface="lo"))
    members.form()

    def leave(rank: int, one: Between) -> bool:
        if rank == SIZE - 1:
            return False  # it is stopped
        one.sum(torch.ones(1 << 20), "")
        one.abandon(7)
        return one.memory_is_unsafe

    assert members.do(leave) == [True, True, False]
    members.each[-1].abandon(7)
    members.form()
    assert members.do(lambda _rank, one: one.broadcast(0, 8, np.zeros(1))) == [None] * SIZE


def test_work_that_fails_is_reported(members: Members) -> None:
    members.form()

    def end(rank: int, one: Between) -> None:
        if rank == SIZE - 1:
            one.abandon(7)
            return
        one.sum(torch.ones(1 << 20), "")
        one.finish()

    *others, _ = members.do(end)
    assert all(isinstance(error, PeerGone) for error in others)
    assert len(members.reported) == SIZE - 1


def test_a_group_that_one_cannot_join_forms_nowhere() -> None:
    def make(store: Any, *, rank: int, size: int) -> ProcessGroup:
        return Gloo(store, rank, size, interface="lo" if rank else "none")

    members = Members(make)
    assert all(isinstance(error, PeerGone) for error in members.form())
    assert "did not form: this node has no network interface 'none' with an IPv4 address" in members.reported[0]
    assert len(members.reported) == 1


def test_the_way_must_fit_the_model() -> None:
    environment = {"PILOT_BETWEEN_NODES": "nccl", "PILOT_INTERFACES": "lo"}
    with pytest.raises(UserError, match="between_nodes is nccl, and the model is on cpu: use gloo, or mpi"):
        between_nodes(environment, Seat(), [torch.zeros(1)], in_rounds=False)
    assert not between_nodes(environment, Seat(), [torch.zeros(1)], in_rounds=True).in_use
    assert not between_nodes({}, Seat(), [torch.zeros(1)], in_rounds=False).in_use


FORKS = """
import os, sys, torch
from functools import partial
from pilot.train.between.process_groups import Gloo
from tests.between import test_process_groups as threads

members = threads.Members(partial(Gloo, interface="lo"))
members.form()
child = os.fork()
if child == 0:
    sys.exit(0)

def add(rank, one):
    numbers = torch.ones(1)
    one.sum(numbers, "")
    one.finish()
    return numbers.item()

status = os.waitpid(child, 0)[1]
sums = members.do(add)
print(status, *sums, flush=True)
os._exit(0)
"""


def test_a_child_that_a_script_forks_ends_and_leaves_the_group_alone() -> None:
    printed = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60.0)
    assert printed.stdout.split() == ["0", "3.0", "3.0", "3.0"], printed.stderr
