"""What public training scripts do beyond the plain loop: with hooks, weights, modules, optimizers and schedulers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import pilot.train
from tests.equivalence.recipe import Recipe, sgd, square
from tests.equivalence.rows import SAMPLES, Row, Topic

# --- hooks ---


def changes_what_was_accumulated(model: nn.Module) -> None:
    """In place, as soon as it is complete."""

    def halve(p: torch.Tensor) -> None:
        assert p.grad is not None
        p.grad.mul_(0.5)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(halve)


# --- weights ---


def decays(model: nn.Module) -> None:
    """By hand, through ``.data``."""
    for p in model.parameters():
        p.data.mul_(0.95)


def not_fused(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """As of the first runs of a scripted model; later ones round differently."""
    with torch.jit.optimized_execution(False):
        return square(model, x)


@torch.inference_mode()
def precomputed() -> torch.Tensor:
    return 2 * torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _rounded(_module: nn.Module, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
    for name in list(state):
        state[name] = state[name].float()


def renames(model: nn.Module) -> None:
    """Its file has different names, as from a DataParallel checkpoint."""
    model.register_state_dict_post_hook(_prefixed)
    model.register_load_state_dict_pre_hook(_stripped)


def _prefixed(_module: nn.Module, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
    for name in list(state):
        state[f"module.{name}"] = state.pop(name)


def _stripped(_module: nn.Module, state: dict[str, Any], _prefix: str, *_: Any) -> None:
    for name in list(state):
        state[name.removeprefix("module.")] = state.pop(name)


# --- gradients ---


def logs_the_norm(session: pilot.train.Session, _stepped: bool) -> None:
    """After each step, whether or not it was applied."""
    norms = [p.grad.norm() for p in session._training.model.parameters() if p.grad is not None]
    assert torch.stack(norms).norm().isfinite()


def halves_large(model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad.norm() > 0.1:
            p.grad.mul_(0.5)


# --- optimizers ---


class Around(torch.optim.Optimizer):
    """Wraps another optimizer, which it steps, with a state of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state

    def step(self, _closure: Any = None) -> None:
        self.inner.step()


def with_state_hooks(parameters: Any) -> torch.optim.Optimizer:
    """Its file has an additional field."""
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    optimizer.register_state_dict_post_hook(lambda _optimizer, state: state | {"format": 2})
    optimizer.register_load_state_dict_pre_hook(
        lambda _optimizer, state: {name: value for name, value in state.items() if name != "format"}
    )
    return optimizer


def compiled_step(parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    return optimizer


# --- data ---


def with_gaps(samples: list[Any]) -> Any:
    """Like a dataset that returns None for unreadable samples."""
    kept = [x for (x,) in samples if x[0] < 0.5]
    return torch.stack(kept or [x for (x,) in samples])


ROWS: list[Row] = [
    Recipe(name="register_post_accumulate_grad_hook, in place", fitted=changes_what_was_accumulated),
    Recipe(
        name="session.sum without examining its result",
        before_step=lambda session, model: (session.sum(), halves_large(model)),
        on_sums=halves_large,
    ),
    Recipe(name="the gradients' norm after each step", after_step=logs_the_norm),
    Recipe(
        name="weights decayed by hand before session.step", before_step=lambda _, model: decays(model), on_sums=decays
    ),
    Recipe(name="torch.jit.script(model)", fitted=torch.jit.script, loss=not_fused),
    Recipe(name="features computed in torch.inference_mode()", data=precomputed),
    Recipe(
        name="a state_dict hook that rounds",
        fitted=lambda model: model.register_state_dict_post_hook(_rounded) and None,
        refused="changes or omits its parameter 0.weight",
        instead="where the script saves",
    ),
    Recipe(
        name="a state_dict hook that renames, and none that loads",
        fitted=lambda model: model.register_state_dict_post_hook(_prefixed) and None,
        refused="load_state_dict does not accept the new names",
        instead="a load_state_dict hook, too",
    ),
    Recipe(name="state_dict hooks that rename", fitted=renames),
    Recipe(
        name="an optimizer around another one (Lookahead)",
        optimizer=lambda p: Around(sgd(p)),
        refused="steps another one in its own step",
        instead="the inner one, and session.track",
    ),
    Recipe(name="an optimizer with state_dict hooks", optimizer=with_state_hooks),
    Recipe(name="torch.compile(optimizer.step)", optimizer=compiled_step, real=True),
    Recipe(name="SWALR", scheduler=lambda o: torch.optim.swa_utils.SWALR(o, 0.01, 4), schedule="step"),
    Recipe(
        name="samples left out by collate_fn",
        collate=with_gaps,
        loader={"collate_fn": with_gaps},
        different="a mean over those kept",
    ),
]
TOPIC = Topic(68, "Habits of scripts", ROWS)
