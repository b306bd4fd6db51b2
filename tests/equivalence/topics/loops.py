"""How a script goes through its batches, what counts as a step, and how much: loops by iteration, and weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.equivalence.loops import Loop, Make, Result, SessionScript, X, session
from tests.equivalence.refusing import Refusals
from tests.equivalence.rows import SAMPLES, Row, Topic

STEPS = 14
DATA = TensorDataset(X)
ADAM = partial(torch.optim.Adam, lr=0.05)
WIDE = partial(nn.Linear, 3, 2)


def by_iteration(make: Make, *, by_next: bool = False, stream: bool = False, **options: Any) -> Result:
    """It evaluates and counts in its turns, and sets its rate by them."""
    loop = Loop(make, WIDE, ADAM, data=DATA, loader=options, stream=stream)
    state = loop.session.state
    for step in loop.session.iterations(STEPS):
        state["turns"] = state.get("turns", 0) + 1
        if step % 5 == 0:
            means = loop.session.evaluate(DATA, loop.measure, batch_size=3)
            state["seen"] = {**state.get("seen", {}), step: means["loss"]}
        for group in loop.optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)
        for batch in [loop.loader.next()] if by_next else loop.loader:
            loss = loop.loss(*batch)
            loss.backward()
            loop.session.step(loss)
        loop.optimizer.zero_grad()
    return loop.tensors(state=state, steps=loop.session.steps)


BY_ITERATION: dict[str, Callable[[Make], Result]] = {
    "session.iterations, for batch in loader": by_iteration,
    "session.iterations, drop_last": partial(by_iteration, drop_last=True),
    "session.iterations, micro-batches": partial(by_iteration, micro_batch_size=1),
    "session.iterations, a stream": partial(by_iteration, stream=True),
    "session.iterations, loader.next": partial(by_iteration, by_next=True),
    "loader.next, more ranks than samples": partial(by_iteration, by_next=True, global_batch_size=1),
    "loader.next, drawn without end": partial(by_iteration, by_next=True, replacement=True),
    "loader.next, ten draws an epoch": partial(by_iteration, by_next=True, replacement=True, num_samples=10),
}

# --- weights ---

LENGTH = 5
_generator = torch.Generator().manual_seed(1)
TOKENS = torch.randn(SAMPLES, LENGTH, 2, generator=_generator, dtype=torch.float64)
MASK = torch.rand(SAMPLES, LENGTH, generator=_generator) < 0.4
MASK[::5] = False  # samples without any


def tagger() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def mean_over_tokens(make: Make, *, clip: bool = False, scaled: bool = False, **options: Any) -> Result:
    """The plain loop takes the mean over all tokens of a batch (NaN if there are none, as torch's cross entropy)."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
    loop = Loop(make, tagger, ADAM, data=TensorDataset(TOKENS, MASK), loader=options, scaler=scaler)

    def body(x: torch.Tensor, mask: torch.Tensor) -> None:
        loop.optimizer.zero_grad()
        loss = (loop.model(x).squeeze(-1)[mask] - 0.5).square().mean()
        (scaler.scale(loss) if scaler else loss).backward()
        if clip:
            loop.session.clip_grad_norm(0.1)
        if loop.session.step(loss, weight=mask.sum()) and make is session:
            assert loop.session._metrics["loss"] == loop.session._metrics["loss"], "a weight of 0 adds no NaN"

    return loop.train(body=body).tensors()


WEIGHTED: dict[str, Callable[[Make], Result]] = {
    "a mean over tokens, session.step(loss, weight=tokens)": mean_over_tokens,
    "a mean over tokens, micro-batches": partial(mean_over_tokens, micro_batch_size=1),
    "a mean over tokens, micro-batches, clipped": partial(mean_over_tokens, micro_batch_size=2, clip=True),
    "a mean over tokens, GradScaler, clipped": partial(mean_over_tokens, clip=True, scaled=True),
}
ROWS: list[Row] = [
    SessionScript(name=name, run=script, operations=range(2, 13, 2), joins=(4,), alone=1e-12 * ("micro" in name))
    for name, script in (BY_ITERATION | WEIGHTED).items()
]

# --- refused ---

REFUSED = Refusals()
REFUSED.made("loader.next before session.iterations", "session.iterations", "`for _ in session.iterations(n)`", Loop)(
    lambda loop: loop.loader.next()
)


def takes_the_next_batch_early(loop: Loop) -> None:
    for _ in loop.session.iterations(3):
        loop.step(*loop.loader.next())
        loop.loader.next()


REFUSED.made("the next batch taken after session.step", "one step", "in the next iteration", Loop)(
    takes_the_next_batch_early
)
REFUSED.made(
    "loader.next, micro-batches",
    "for batch in loader",
    "`for batch in loader`",
    lambda: Loop(loader={"micro_batch_size": 2}),
)(takes_the_next_batch_early)
REFUSED.made(
    "loader.next, no full step",
    "no full step",
    "a smaller batch, or no drop_last",
    lambda: Loop(loader={"global_batch_size": 40, "drop_last": True}),
)(takes_the_next_batch_early)
REFUSED.made("an iteration without session.step", "ended without its step", "session.step in each", Loop)(
    lambda loop: [None for _ in loop.session.iterations(3)]
)


@REFUSED.made("a batch without session.step", "without calling session.step", "session.step for each", Loop)
def skips_a_batch(loop: Loop) -> None:
    for number, batch in enumerate(loop.batches()):
        if number % 2:
            loop.step(*batch)


@REFUSED.made("two batches for one step", "micro_batch_size", "micro_batch_size", Loop)
def takes_two_batches(loop: Loop) -> None:
    for _ in loop.session.iterations(3):
        loop.loader.next()
        loop.step(*loop.loader.next())


REFUSED.first("loader.next in an epoch", "is for session.iterations", "`for batch in loader`", Loop)(
    lambda loop, _: loop.step(*loop.loader.next())
)


@REFUSED.first("next(iter(loader)) for each batch", "one pass", "`for batch in loader`", Loop)
def begins_anew_for_each_batch(loop: Loop, _epoch: int) -> None:
    for _step in range(3):
        loop.step(*next(iter(loop.loader)))


@REFUSED.made(
    "an epoch's batches left in the middle",
    "left in the middle of an epoch",
    "session.stop, or session.iterations",
    Loop,
)
def leaves_an_epoch_early(loop: Loop) -> None:
    for _ in loop.session.epochs(2):
        for batch in loop.loader:
            loop.step(*batch)
            break


@REFUSED.made("session.evaluate between backward and session.step", "between two steps", "between two steps", Loop)
def evaluates_in_a_step(loop: Loop) -> None:
    for _ in loop.session.iterations(3):
        loop.loader.next()
        loop.session.evaluate(DATA, loop.measure)


def weighs(loop: Loop, weight: Callable[[int], Any]) -> None:
    for number in loop.session.iterations(3):
        loop.optimizer.zero_grad()
        loop.loss(*loop.loader.next()).backward()
        loop.session.step(weight=weight(number))


for name, line, instead, weight in [
    ("a weight in all steps but the first", "in every step or in none", "in all", lambda n: 1 if n else None),
    ("a weight in the first step only", "in every step or in none", "in all", lambda n: None if n else 1),
    ("a negative weight", "at least 0", "at least 0", lambda _: -1.0),
    ("a weight that is NaN", "finite", "a number", lambda _: float("nan")),
    ("weights of 0 in the first step", "no mean", "no such data", lambda _: 0),
    ("weights of 0 in a later step", "no mean", "no such data", lambda n: 0 if n else 3),
]:
    REFUSED.made(name, line, instead, Loop)(partial(weighs, weight=weight))
TOPIC = Topic(65, "Loops and weights", [*ROWS, *REFUSED])
