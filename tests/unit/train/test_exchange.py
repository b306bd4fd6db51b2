"""Gradients in and out of the buckets, with nobody at the other end."""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pilot.core.errors import UserError
from pilot.train.gradients.exchange import Exchange
from pilot.train.gradients.late_exchange import LateExchange
from pilot.train.gradients.step_words import FIELDS, Words
from pilot.train.state.shares import MOST_TIMED

WORDS = Words.of(3, True, 0.5)


def backward(model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    model(x).square().mean().backward()


class Rings:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_buckets_leave_while_backward_runs_and_gradients_come_back_weighted() -> None:
    model, x, rings = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), torch.randn(4, 8), Rings()
    backward(model, x)
    expected = [0.25 * p.grad for p in model.parameters() if p.grad is not None]
    exchange = Exchange(list(model.parameters()), bucket_bytes=64)
    exchange.begin(rings)
    exchange.begin_batch(0.25, last=True)
    backward(model, x)
    assert rings.count == len(exchange.layout.parts) - 2 > 1, "the last bucket waits for the control vector"
    exchange.flush()
    exchange.finish(WORDS)
    assert rings.count == len(exchange.layout.parts) - 1
    assert exchange.take() == WORDS
    torch.testing.assert_close([p.grad for p in model.parameters()], expected)


def test_a_bucket_leaves_with_its_last_gradient_whatever_order_backward_takes() -> None:
    first, *layers = [nn.Linear(4, 4) for _ in range(5)]
    exchange = Exchange([p for layer in (first, *layers) for p in layer.parameters()], bucket_bytes=512)
    assert len(exchange.layout.parts) == 3, "those of four layers, that of the first, and the control vector"
    left_in_backward = []
    for _ in range(4):
        rings = Rings()
        exchange.begin(rings)
        exchange.begin_batch(1.0, last=True)
        nn.ModuleList([first, *layers]).zero_grad()
        nn.Sequential(first, layers[2], layers[0], layers[3], layers[1])(torch.ones(1, 4)).sum().backward()
        left_in_backward.append(rings.count == 1)
        exchange.flush()
        exchange.finish(WORDS)
        exchange.take()
        assert rings.count == 2
        assert all(p.grad is not None for layer in layers for p in layer.parameters())
    assert left_in_backward == [True] * 4


def test_a_gradient_zeroed_after_a_micro_batch_counts_and_one_of_a_later_backward_is_refused() -> None:
    parameters = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    exchange = Exchange(parameters)
    exchange.begin(Rings())
    for batch in range(2):
        exchange.begin_batch(0.5, last=batch == 1)
        torch.cat(parameters).sum().backward()
        if batch == 0:
            exchange.batch_ends()
            torch.optim.SGD(parameters).zero_grad()
    exchange.flush()
    exchange.finish(WORDS)
    exchange.take()
    assert [p.grad for p in parameters] == [torch.ones(1), torch.ones(1)]
    exchange.drop_gradients()
    exchange.begin(Rings())
    exchange.begin_batch(0.5, last=False)
    torch.cat(parameters).sum().backward()
    exchange.batch_ends()
    parameters[0].square().sum().backward()
    with pytest.raises(UserError, match="call backward once per batch"):
        exchange.begin_batch(0.5, last=True)


def test_one_parameter_of_a_bucket_has_a_hook_however_many_there_are() -> None:
    """The hook scans the bucket: at every gradient it would cost the square of their number."""
    parameters = [nn.Parameter(torch.ones(1)) for _ in range(50)]
    exchange = Exchange(parameters)
    for order in (parameters, parameters[25:] + parameters[:25], parameters[::-1], parameters):
        exchange.begin(Rings())
        exchange.begin_batch(1.0, last=True)
        torch.cat(order).sum().backward()
        exchange.drop()
        for p in parameters:
            p.grad = None
        assert sum(len(getattr(p, "_post_accumulate_grad_hooks", None) or ()) for p in parameters) == 1


@pytest.mark.parametrize("kind", [Exchange, LateExchange])
def test_an_exchange_that_nobody_uses_is_collected_though_its_parameters_live(kind: type[Exchange]) -> None:
    model = nn.Linear(8, 1)
    exchange = kind(list(model.parameters()))
    arena, reference = weakref.ref(exchange.arena), weakref.ref(exchange)
    descriptor = exchange.arena.fd
    os.fstat(descriptor)
    exchange.begin(Rings(), alone=True)
    exchange.begin_batch(1.0, last=True)
    backward(model, torch.ones(1, 8))
    exchange.flush()
    exchange.finish(WORDS)
    exchange.take()
    del exchange
    gc.collect()
    assert reference() is None
    assert arena() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    model(torch.ones(1, 8)).sum().backward()  # as without one


def test_a_rank_without_samples_gives_exact_zeros_whatever_it_computed() -> None:
    model = nn.Linear(8, 1)
    exchange = Exchange(list(model.parameters()))
    exchange.begin(Rings())
    exchange.begin_batch(0.0, last=True)
    backward(model, torch.full((2, 8), float("nan")))
    exchange.flush()
    exchange.finish(WORDS)
    buckets = torch.frombuffer(exchange.arena.memory, dtype=torch.float32, count=exchange.layout.parts[0].count)
    assert buckets.tolist() == [0.0] * len(buckets)


def test_a_void_step_leaves_zeros() -> None:
    model = nn.Linear(3, 1)
    exchange = Exchange(list(model.parameters()))
    exchange.begin(Rings())
    exchange.begin_batch(1.0, last=True)
    backward(model, torch.ones(1, 3))
    exchange.drop()
    assert all(not p.grad.any() for p in model.parameters())
    backward(model, torch.ones(1, 3))
    assert all(p.grad.all() for p in model.parameters())


def test_parameters_of_8_bits_are_refused() -> None:
    with pytest.raises(UserError, match="float8_e4m3fn"):
        Exchange([nn.Parameter(torch.zeros(2).to(torch.float8_e4m3fn))])


def test_the_control_vector_has_a_time_for_each_rank_unless_the_group_is_too_large() -> None:
    exchange = Exchange([nn.Parameter(torch.ones(2))])
    counts = {ranks: exchange.parts(ranks)[-1].count for ranks in (1, 5, MOST_TIMED, MOST_TIMED + 1)}
    assert counts == {1: FIELDS + 2, 5: FIELDS + 6, MOST_TIMED: FIELDS + 1 + MOST_TIMED, MOST_TIMED + 1: FIELDS + 1}
    exchange.begin(Rings())
    exchange.begin_batch(1.0, last=True)
    exchange.flush()
    exchange.finish(replace(WORDS, times=np.array([0.0, 2.5, 0.0])))
    control = exchange.parts(3)[-1]
    np.frombuffer(exchange.arena.memory, np.float64, control.count, control.offset)[-3:] += [1.5, 0.0, 0.5]
    assert exchange.take().times.tolist() == [1.5, 2.5, 0.5]
