"""Changes of the trained set at an epoch's beginning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune

from tests.equivalence.loops import Loop, Make, Result, SessionScript, fresh, mlp, sgd
from tests.equivalence.refusing import Refusals
from tests.equivalence.rows import Row, Topic

Change = Callable[[Any, Any, int], object]
"""Called with the model, its optimizer and the epoch."""


def frozen() -> Any:
    model = fresh(mlp)
    model[0].requires_grad_(False)
    return model


def pruned() -> Any:
    model = fresh(mlp)
    prune.identity(model[0], "weight")
    return model


def last_layer(model: Any, **options: Any) -> torch.optim.Optimizer:
    return sgd(model[2].parameters(), **options)


def changing(
    change: Change, make: Make, model: Callable[[], Any] = frozen, optimizer: Callable[[Any], Any] = last_layer
) -> Result:
    its = model()
    loop = Loop(make, its, lambda _: optimizer(its))
    loop.train(3, first=lambda epoch: change(its, loop.optimizer, epoch))
    return loop.tensors(flags=[int(parameter.requires_grad) for parameter in its.parameters()])


def prunes_further(model: Any, _optimizer: Any, epoch: int) -> None:
    """Iterative magnitude pruning, by the current weights: ``layer.weight`` is that of the last forward."""
    if epoch > 0:
        scores = model[0].weight_orig.detach() * model[0].weight_mask
        prune.l1_unstructured(model[0], "weight", amount=0.3, importance_scores=scores)


def adds_layer_by_layer(model: Any, optimizer: Any, epoch: int) -> None:
    """One more group in each epoch; and the last layer is frozen in the last one."""
    if epoch == 1:
        optimizer.add_param_group({"params": [model[0].weight.requires_grad_()], "lr": 0.003})
    if epoch == 2:
        optimizer.add_param_group({"params": model[0].bias.requires_grad_(), "momentum": 0.5})
        model[2].requires_grad_(False)


def adds_by_name(model: Any, optimizer: Any, epoch: int) -> None:
    if epoch == 1:
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(model[0].named_parameters()), "lr": 0.003})


def of_all(model: nn.Module) -> torch.optim.Optimizer:
    return sgd(model.parameters())


CHANGES: dict[str, Callable[[Make], Result]] = {
    "a layer unfrozen at an epoch's beginning": partial(
        changing, lambda model, _, epoch: model[0].requires_grad_(epoch >= 1), optimizer=of_all
    ),
    "a layer pruned further at an epoch's beginning, by importance_scores=": partial(
        changing, prunes_further, model=pruned, optimizer=of_all
    ),
    "one group more in each epoch": partial(changing, adds_layer_by_layer),
    "a layer frozen and unfrozen, alternately": partial(
        changing, lambda model, _, epoch: model[0].requires_grad_(epoch % 2 == 0), optimizer=of_all
    ),
    "an optimizer of named parameters, add_param_group": partial(
        changing, adds_by_name, optimizer=lambda model: sgd(model[2].named_parameters())
    ),
}
ROWS: list[Row] = [
    SessionScript(name=name, run=script, operations=range(5, 24, 2), joins=range(4, 30, 3))
    for name, script in CHANGES.items()
]
REFUSED = Refusals()


class LastLayer(Loop):
    """It trains the last layer only."""

    def __init__(self) -> None:
        model = frozen()
        super().__init__(model=model, optimizer=lambda _: last_layer(model))


REFUSED.first(
    "a layer unfrozen that no optimizer has",
    "0.weight was unfrozen but the optimizer does not have it",
    "add_param_group",
    LastLayer,
)(lambda loop, _: loop.model[0].requires_grad_(True))
REFUSED.first(
    "add_param_group with a parameter made later",
    "number 0 of group 1 of the optimizer was added after the session was created",
    "before the session",
    LastLayer,
)(lambda loop, _: loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}))


@REFUSED.first(
    "another parameter in the place of one",
    r"another parameter has taken the place of 0.bias .* \(register_buffer\)",
    "written into it",
    LastLayer,
)
def replaces_a_parameter(loop: Loop, epoch: int) -> None:
    if epoch:
        loop.model[0].bias = nn.Parameter(loop.model[0].bias * 0.9)


TOPIC = Topic(74, "Changes of the trained set", [*ROWS, *REFUSED])
