"""Gradients created on a GPU arrive like those created in host memory."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from pilot.comm.arena import Arena
from pilot.core.errors import UserError
from pilot.train.gradients.exchange import Exchange
from pilot.train.gradients.staging import pin
from pilot.train.gradients.step_words import Words

WORDS = Words.of(0, False, 0.0)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


class User:
    """Copies to and from an arena."""


def gradients(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """For three steps of two micro-batches each, summed with no other rank, as the optimizer would finally get them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(device, dtype)
    unused = nn.Parameter(torch.ones(3, device=device, dtype=dtype))
    x = torch.randn(10, 64).to(device, dtype)
    exchange = Exchange([*model.parameters(), unused], bucket_bytes=1024)
    for _ in range(3):
        rings = []
        exchange.begin(lambda: rings.append(1))  # noqa: B023  # called before the next step begins
        for part, weight in ((x[:6], 0.6), (x[6:], 0.4)):
            exchange.begin_batch(weight, last=weight == 0.4)
            model(part).square().mean().backward()
        exchange.flush()
        exchange.finish(WORDS)
        assert len(rings) == len(exchange.layout.parts) - 1
        exchange.take()
        assert unused.grad is None
        sums = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        exchange.drop_gradients()
    return sums


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_gpu_gives_the_gradients_of_the_cpu(dtype: torch.dtype) -> None:
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(gradients("cuda", dtype), gradients("cpu", dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@needs_gpu
def test_the_arena_is_pinned_and_gradients_come_back_to_their_gpu() -> None:
    model = nn.Linear(4, 1, device="cuda")
    exchange = Exchange(list(model.parameters()))
    assert torch.frombuffer(exchange.arena.memory, dtype=torch.uint8).is_pinned()
    exchange.begin(lambda: None)
    exchange.begin_batch(0.5, last=True)
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    exchange.flush()
    exchange.finish(WORDS)
    exchange.take()
    assert model.weight.grad is not None
    assert model.weight.grad.is_cuda
    assert model.weight.grad.tolist() == [[0.5] * 4]


@pytest.mark.gpu
@needs_gpu
def test_an_exchange_that_is_replaced_leaves_its_address_free() -> None:
    """As whenever what is trained changes; memory that stays registered fails whatever comes to the same address."""
    for _ in range(20):
        model = nn.Linear(4, 1, device="cuda")
        exchange = Exchange(list(model.parameters()))
        exchange.close()
        del exchange
        gc.collect()
    torch.ones(1 << 24).pin_memory().cuda()
    torch.cuda.synchronize()


@pytest.mark.gpu
@needs_gpu
def test_memory_that_cannot_be_pinned_is_used_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    user, arena, device = User(), Arena.of_size(1 << 16), torch.device("cuda")
    pin(arena, device, user)
    assert not caplog.text
    pin(arena, device, User())
    assert "CUDA cannot pin 65536 bytes" in caplog.text
    torch.ones(1, device=device).add_(1)
    torch.cuda.synchronize()


def test_parameters_on_several_devices_are_refused_in_one_line() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, device="meta")])
    with pytest.raises(UserError, match="the parameters are on cpu, meta: a rank trains on the CPU or on one CUDA"):
        Exchange(list(model.parameters()))
