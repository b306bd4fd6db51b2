"""What a script does to a model and its optimizer besides its steps: at the start and the end of an epoch, and after
``session.step``. A joining node runs the start of the epoch's body once more, and a batch may run again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.equivalence.loops import Loop, Make, Result, SessionScript, fresh, mlp, nothing
from tests.equivalence.refusing import Refusals
from tests.equivalence.rows import Row, Topic

Deed = Callable[[Any, Any], object]
"""With the model and its optimizer."""


def doing(
    make: Make,
    *,
    model: Callable[[], nn.Module] = mlp,
    first: Deed = nothing,
    after_step: Deed = nothing,
    last: Deed = nothing,
) -> Result:
    """It ignores the result of ``session.step``."""
    loop = Loop(make, model)

    def body(*batch: torch.Tensor) -> None:
        loop.step(*batch)
        after_step(loop.model, loop.optimizer)

    loop.train(
        first=lambda _: first(loop.model, loop.optimizer),
        body=body,
        last=lambda _: last(loop.model, loop.optimizer),
    )
    return loop.tensors()


def lowers_the_rate(_model: Any, optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def decays_weights(model: Any, _optimizer: Any) -> None:
    for p in model.parameters():
        p.data.mul_(0.9)


def loads_weights(model: Any, _optimizer: Any) -> None:
    model.load_state_dict({name: value * 0.9 for name, value in model.state_dict().items()})


def scales_momenta(_model: Any, optimizer: Any) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"].mul_(0.9)


def loads_momenta(_model: Any, optimizer: Any) -> None:
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state["momentum_buffer"] = state["momentum_buffer"] * 0.9
    optimizer.load_state_dict(saved)


class Unsaved(nn.Module):
    """With a buffer that is not saved, by which it multiplies; ``in_forward``: and which forward changes."""

    scale: torch.Tensor

    def __init__(self, *, in_forward: bool) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self._in_forward = in_forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._in_forward and self.training:
            self.scale = self.scale * 0.9
        return x * self.scale


class Halves(nn.Module):
    """In evaluation mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else x * 0.5


def around(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(3, 4), layer(), nn.Linear(4, 1))


def scales_the_buffer(model: Any, _optimizer: Any) -> None:
    model[1].scale *= 0.9


def rate_in_each_iteration(make: Make) -> Result:
    """At the start of its turn, which is repeated if its step is void."""
    loop = Loop(make)
    for _ in loop.session.iterations(9):
        lowers_the_rate(loop.model, loop.optimizer)
        loop.step(*loop.loader.next())
    return loop.tensors()


SCRIPTS: dict[str, Callable[[Make], Result]] = {
    "group['lr'] *= 0.5 at an epoch's beginning": partial(doing, first=lowers_the_rate),
    "group['lr'] *= 0.5 at an epoch's end": partial(doing, last=lowers_the_rate),
    "group['lr'] *= 0.5 after session.step": partial(doing, after_step=lowers_the_rate),
    "group['lr'] *= 0.5 in session.iterations": rate_in_each_iteration,
    "optimizer.state.clear() at an epoch's beginning": partial(
        doing, first=lambda _, optimizer: optimizer.state.clear()
    ),
    "momenta in optimizer.state scaled after session.step": partial(doing, after_step=scales_momenta),
    "optimizer.load_state_dict of its edited state after session.step": partial(doing, after_step=loads_momenta),
    "a buffer with persistent=False, scaled after session.step": partial(
        doing, model=around(partial(Unsaved, in_forward=False)), after_step=scales_the_buffer
    ),
    "a buffer with persistent=False, replaced in forward": partial(
        doing, model=around(partial(Unsaved, in_forward=True))
    ),
    "weights changed after session.step": partial(doing, after_step=decays_weights),
    "load_state_dict at an epoch's end": partial(doing, last=loads_weights),
    "model.eval() at an epoch's end, and no model.train()": partial(
        doing, model=around(Halves), last=lambda model, _: model.eval()
    ),
}
ROWS: list[Row] = [
    SessionScript(name=name, run=script, operations=range(2, 14), joins=range(2, 14), parts=3)
    for name, script in SCRIPTS.items()
]
REFUSED = Refusals()


class Masked(nn.Module):
    """Its mask is created once the batch size is known."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones_like(x[0]))
        return self.last(x * self.mask)


REFUSED.script(
    "a buffer registered in forward", r"names .*\(mask\).*persistent=False", "in __init__, or persistent=False"
)(lambda: Loop(model=Masked).train())


def images() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 1, 1)), nn.ZeroPad2d(2), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 1)
    )


REFUSED.first(
    "channels_last after the session is made",
    r"parameter 2\.weight has another .* memory format",
    "before it",
    lambda: Loop(model=images),
)(lambda loop, _: loop.model.to(memory_format=torch.channels_last))
REFUSED.first("model.float() after the session is made", r"parameter 0\.weight has another dtype", "before it", Loop)(
    lambda loop, _: loop.model.float()
)


@REFUSED.made(
    "a scheduler that the script steps, not tracked",
    r"schedule=, or .* session\.track",
    "schedule=, or session.track",
    Loop,
)
def steps_a_scheduler_by_itself(loop: Loop) -> None:
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(loop.optimizer, 12)
    loop.train(body=lambda *batch: loop.step(*batch) and scheduler.step())


class LazyAverage(nn.Module):
    """Created with its first update."""

    def update(self, model: nn.Module) -> None:
        self.average = copy.deepcopy(model)


@REFUSED.script(
    "a tracked module that makes its parts later",
    r"tracked object 'average' .*\(average.0.bias\).*before the loop",
    "before the loop",
)
def tracks_a_module_made_later() -> None:
    average = LazyAverage()
    loop = Loop(model=fresh(mlp), tracked={"average": average})
    loop.train(body=lambda *batch: (loop.step(*batch), average.update(loop.model)))


TOPIC = Topic(69, "Between two steps", [*ROWS, *REFUSED])
