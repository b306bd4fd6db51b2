"""What a script does to a model and its optimizer besides its steps. Of those that train, the tests are in a file of
their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.equivalence.loops import a_step, fresh, mlp, session, trained
from tests.equivalence.refusing import Refusals
from tests.equivalence.rows import Topic
from tests.equivalence.topics.several import elsewhere

ROWS = elsewhere(
    "test_between_steps",
    {
        "rate_lowered_at_first": "group['lr'] *= 0.5 at an epoch's beginning",
        "rate_lowered_at_last": "group['lr'] *= 0.5 at an epoch's end",
        "rate_lowered_after_each_step": "group['lr'] *= 0.5 after session.step",
        "rate_lowered_in_each_iteration": "group['lr'] *= 0.5 in session.iterations",
        "momenta_forgotten": "optimizer.state.clear() at an epoch's beginning",
        "momenta_scaled_after_each_step": "momenta in optimizer.state scaled after session.step",
        "momenta_loaded_after_each_step": "optimizer.load_state_dict of its edited state after session.step",
        "unsaved_buffer_scaled_after_each_step": "a buffer with persistent=False, scaled after session.step",
        "unsaved_buffer_replaced_in_forward": "a buffer with persistent=False, replaced in forward",
        "weights_decayed_after_each_step": "weights changed after session.step",
        "weights_loaded_at_last": "load_state_dict at an epoch's end",
        "left_in_evaluation_mode": "model.eval() at an epoch's end, and no model.train()",
    },
)
REFUSED = Refusals()


def train(make: Callable[[], nn.Module] = mlp, at_first: Callable[[nn.Module], object] = lambda _model: None) -> None:
    model = fresh(make)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trained(session, model, optimizer, at_first=lambda _epoch: at_first(model))


class Masked(nn.Module):
    """Its mask is created once the batch size is known."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones_like(x[0]))
        return self.last(x * self.mask)


@REFUSED.script(
    "a buffer registered in forward", r"names .*\(mask\).*persistent=False", "in __init__, or persistent=False"
)
def registers_in_forward() -> None:
    train(Masked)


def images() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 1, 1)), nn.ZeroPad2d(2), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 1)
    )


@REFUSED.script(
    "channels_last after the session is made", r"parameter 2\.weight has another .* memory format", "before it"
)
def changes_the_layout() -> None:
    train(images, lambda model: model.to(memory_format=torch.channels_last))


@REFUSED.script("model.float() after the session is made", r"parameter 0\.weight has another dtype", "before it")
def changes_the_type() -> None:
    train(at_first=lambda model: model.float())


@REFUSED.script(
    "a scheduler that the script steps, not tracked", r"schedule=, or .* session\.track", "schedule=, or session.track"
)
def steps_a_scheduler_by_itself() -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    trained(session, model, optimizer, body=lambda *parts: a_step(*parts) and scheduler.step())


class LazyAverage(nn.Module):
    """Created with its first update."""

    def update(self, model: nn.Module) -> None:
        self.average = copy.deepcopy(model)


@REFUSED.script(
    "a tracked module that makes its parts later",
    r"tracked object 'average' .*\(average.0.bias\).*before the loop",
    "before the loop",
)
def tracks_what_is_made_later() -> None:
    model, average = fresh(mlp), LazyAverage()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def body(*parts: Any) -> None:
        a_step(*parts)
        average.update(model)

    trained(session, model, optimizer, body=body, average=average)


TOPIC = Topic(69, "Between two steps", [*ROWS, *REFUSED])
