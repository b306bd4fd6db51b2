"""16 bits, in the model, in its computations, or in the sums."""

from __future__ import annotations

import math

import torch

from tests.equivalence.recipe import Recipe, square
from tests.equivalence.rows import DEVICE, Row, Topic
from tests.equivalence.topics.gradients import by_the_session, clip
from tests.equivalence.topics.optimizers import OF, half_precision, made


def under_autocast(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(DEVICE.type, torch.bfloat16):
        output = model(x.float())
    return (output.float() - 0.5).square().mean()


def scaler() -> torch.amp.GradScaler:
    """Its scale grows, too."""
    return torch.amp.GradScaler(DEVICE.type, init_scale=2.0**10, growth_interval=3)


def bad_at_first(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Not finite for one sample, hence on one rank."""
    loss = square(model, x)
    return loss * torch.inf if bool((x[:, 0] > 2.0).any()) else loss


ADAM = made(OF.Adam, lr=0.01)
ROWS: list[Row] = [
    Recipe(name="float32", dtype=torch.float32, loss=half_precision, tolerance=1e-4),
    Recipe(name="bfloat16", dtype=torch.bfloat16, loss=half_precision, tolerance=0.1),
    Recipe(name="float16", dtype=torch.float16, loss=half_precision, tolerance=0.02),
    Recipe(
        name="bfloat16, fused AdamW",
        dtype=torch.bfloat16,
        loss=half_precision,
        optimizer=made(OF.AdamW, lr=0.01, fused=True),
        tolerance=math.inf,
    ),
    Recipe(name="autocast to bfloat16", dtype=torch.float32, loss=under_autocast, tolerance=0.05),
    Recipe(
        name="autocast to bfloat16, micro-batches", dtype=torch.float32, loss=under_autocast, micro=1, tolerance=0.05
    ),
    Recipe(name="GradScaler", scaler=scaler),
    Recipe(
        name="GradScaler, Adam, clipped by the session",
        scaler=scaler,
        optimizer=ADAM,
        before_step=by_the_session,
        on_sums=clip,
    ),
    Recipe(
        name="GradScaler, a gradient that is not finite on one rank",
        scaler=scaler,
        loss=bad_at_first,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        schedule="step",
        core=True,
    ),
    Recipe(name="GradScaler, micro-batches", scaler=scaler, micro=1),
    Recipe(
        name="wire_dtype='bfloat16'",
        dtype=torch.float32,
        loss=half_precision,
        wire_dtype=torch.bfloat16,
        tolerance=0.01,
        real=True,
    ),
]
TOPIC = Topic(25, "Precision", ROWS)
