"""gloo's port, on which a training process listens for those of other nodes: what strangers do there."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Iterator
from functools import partial

import psutil
import pytest
import torch

from pilot.train.between.process_groups import Gloo, ProcessGroup
from pilot.train.node.forming import Forming

LIMIT_S = 30.0


@pytest.fixture
def groups() -> Iterator[list[ProcessGroup]]:
    """Two members of a group, in this process."""
    forming = [Forming(partial(Gloo, rank=rank, size=2, interface="lo")) for rank in range(2)]
    while not all(one.is_over for one in forming):
        news = [one.new() for one in forming]
        for one, other in zip(forming, reversed(news), strict=True):
            one.introduce(other)
        time.sleep(0.01)
    assert [one.error for one in forming] == ["", ""]
    made = [one.group for one in forming if one.group is not None]
    del forming, one, other  # they hold the groups
    yield made


def ports() -> list[int]:
    """Where this process listens."""
    return [one.laddr.port for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN]


def summed(groups: list[ProcessGroup]) -> list[list[float]]:
    numbers = [torch.full((2,), rank + 1.0) for rank in range(2)]
    for work in [group.allreduce(one) for group, one in zip(groups, numbers, strict=True)]:
        work.wait()
    return [one.tolist() for one in numbers]


@pytest.mark.parametrize("sent", [b"", b"x", b"\0" * 8, b"\xff" * 8, bytes(range(256)) * 16], ids=len)
def test_gloo_ignores_what_a_stranger_sends(sent: bytes, groups: list[ProcessGroup]) -> None:
    assert len(ports()) == 2
    for port in ports():
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(sent)
            assert summed(groups) == [[3.0, 3.0], [3.0, 3.0]]
    assert summed(groups) == [[3.0, 3.0], [3.0, 3.0]]


def test_a_strangers_connections_are_gone_with_the_generation(groups: list[ProcessGroup]) -> None:
    before = psutil.Process().num_fds()
    for _ in range(50):
        socket.create_connection(("127.0.0.1", ports()[0])).close()
    groups.clear()
    gc.collect()
    end_s = time.monotonic() + LIMIT_S
    while psutil.Process().num_fds() > before and time.monotonic() < end_s:
        time.sleep(0.05)
    assert psutil.Process().num_fds() <= before
