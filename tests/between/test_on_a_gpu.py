"""NCCL between nodes: what a single GPU can show."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pilot.agent.workers import _NCCL
from pilot.train.between.between import ABANDON_LIMIT_S, Between
from pilot.train.between.process_groups import Nccl
from pilot.train.gradients.exchange import Exchange
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Seat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this torch has no NCCL"),
]
WORDS = Words.of(0, False, 0.0)
SLACK_BYTES = 8 << 20


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a training process. (NCCL and torch read some of them only once in a process.)"""
    for name, value in {**_NCCL, "NCCL_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)


def member(size: int) -> Nccl:
    """The first member of a group, which has constructed it."""
    return Nccl(torch.distributed.HashStore(), 0, size, device=torch.device("cuda", 0))


def group_of_one() -> Nccl:
    group = member(1)
    group.connected(torch.distributed.HashStore())
    return group


def used_bytes() -> int:
    """Of the GPU's memory."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def ended(end: Callable[[], None]) -> None:
    """Call ``end``; the thread that it starts must end in time."""
    others = set(threading.enumerate())
    end()
    for thread in set(threading.enumerate()) - others:
        thread.join(ABANDON_LIMIT_S)
        assert not thread.is_alive(), f"NCCL has not returned after {ABANDON_LIMIT_S} s"


def growth_bytes(act: Callable[[], None], times: int = 3) -> int:
    """How much more of the GPU's memory is in use after ``act``, besides what its first call loads."""
    act()
    before = used_bytes()
    for _ in range(times):
        act()
    return used_bytes() - before


def test_a_group_of_one_sums_and_sends_to_itself() -> None:
    group = group_of_one()
    numbers, block = torch.arange(4.0, device="cuda"), torch.arange(4, dtype=torch.uint8)
    group.allreduce(numbers).wait()
    group.broadcast(block, 0).wait()
    assert numbers.tolist() == block.tolist() == [0, 1, 2, 3]
    ended(group.close)


def test_a_member_whose_peer_never_comes_is_abandoned_and_returns_its_memory() -> None:
    assert growth_bytes(lambda: ended(member(2).abandon)) < SLACK_BYTES


def test_a_group_that_is_closed_returns_its_memory() -> None:
    assert growth_bytes(lambda: ended(group_of_one().close)) < SLACK_BYTES


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a group of one"])
def test_gradients_are_summed_on_the_gpu_without_copies_to_the_host(grouped: bool) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to("cuda", torch.float64)
    inputs = torch.randn(10, 64, dtype=torch.float64, device="cuda")
    model(inputs).square().mean().backward()
    expected = [0.5 * p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad()

    between = Between(Seat(), Nccl)
    if grouped:
        between._group = group_of_one()  # a group of this size is not formed otherwise
    exchange = Exchange(list(model.parameters()), bucket_bytes=1024, between=between)
    assert not torch.frombuffer(exchange.arena.memory, dtype=torch.uint8).is_pinned()
    exchange.begin(lambda: None)
    exchange.begin_batch(0.5, last=True)
    model(inputs).square().mean().backward()
    exchange.flush()
    exchange.finish(WORDS)
    between.finish()
    exchange.take()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    *buckets, _control = exchange.layout.parts
    assert len(buckets) > 1
    for part in buckets:
        numbers = torch.frombuffer(exchange.arena.memory, dtype=torch.float64, count=part.count, offset=part.offset)
        assert not numbers.any(), "a bucket was copied to the host"
