"""Refused in the first step in which it would matter: how a script steps and loops, and what it has left from a plain
loop.
"""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

from tests.equivalence.loops import ONES, Loop, linear, session, sgd
from tests.equivalence.refusing import Made, Refusals
from tests.equivalence.rows import Topic

ROWS = Refusals()
LEAVE_OUT, RATE_ZERO = "leave it out", "lr=0 and a scheduler"

# --- optimizers, schedulers, scalers ---

ROWS.step("optimizer.step() before session.step", "optimizer.step", LEAVE_OUT)(lambda loop, _: loop.optimizer.step())


@ROWS.made("a second optimizer beside the session", "second optimizer", "one optimizer with two groups")
def has_a_second_optimizer(loop: Loop) -> None:
    other = nn.Linear(2, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    for (x,) in loop.batches():
        second.zero_grad()
        (loop.loss(x) + other(x).mean()).backward()
        loop.session.step()
        second.step()


@ROWS.first("a new optimizer at an epoch's beginning", "creates another optimizer .Adam.", "optimizer.state.clear()")
def makes_a_new_optimizer(loop: Loop, epoch: int) -> None:
    if epoch == 1:
        loop.optimizer = torch.optim.Adam(loop.model.parameters())


@ROWS.made("another optimizer takes over", "uses another optimizer .Adam.", "one optimizer, with other options")
def changes_to_another_optimizer(loop: Loop) -> None:
    other = torch.optim.Adam(loop.model.parameters())
    for _ in loop.batches():
        other.zero_grad()


ROWS.first("a new scheduler at an epoch's beginning", "creates a learning-rate scheduler .StepLR.", "before the loop")(
    lambda loop, _: torch.optim.lr_scheduler.StepLR(loop.optimizer, 2)
)


class ByModule(torch.optim.SGD):
    """Scales by statistics of what its layer gets (like K-FAC)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.parameters(), lr=0.1)
        self.inputs: dict[nn.Module, torch.Tensor] = {}
        layer.register_forward_hook(self.see)

    def see(self, layer: nn.Module, inputs: tuple[torch.Tensor], _output: torch.Tensor) -> None:
        self.inputs[layer] = inputs[0].square().mean()


@ROWS.script(
    "an optimizer that keeps statistics by module (K-FAC)", "in its attribute 'inputs'", "`optimizer.state[parameter]`"
)
def keeps_by_module() -> None:
    model = nn.Linear(2, 1)
    Loop(model=model, optimizer=lambda _: ByModule(model), data=ONES).train()


class Scaled(Made):
    """With a loss scaler."""

    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu")
        super().__init__(scaler=self.scaler)


@ROWS.batch("a GradScaler that the session has not", "scaler=", "scaler=")
def scales_the_loss_by_itself(loop: Loop, x: torch.Tensor) -> None:
    torch.amp.GradScaler("cpu").scale(loop.loss(x)).backward()
    loop.session.step()


@ROWS.batch("scaler.update() after session.step", "calls scaler.update", LEAVE_OUT, Scaled)
def updates_the_scaler(loop: Scaled, x: torch.Tensor) -> None:
    loop.scaler.scale(loop.loss(x)).backward()
    loop.session.step()
    loop.scaler.update()


@ROWS.batch(
    "scaler.step(optimizer) before session.step", r"leave optimizer.step\(\) to session.step", LEAVE_OUT, Scaled
)
def steps_the_scaler(loop: Scaled, x: torch.Tensor) -> None:
    loop.scaler.scale(loop.loss(x)).backward()
    loop.scaler.step(loop.optimizer)


# --- the model ---


class Centre(nn.Module):
    """Subtracts a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.mean


@ROWS.batch(
    "a buffer that the script replaces in torch.inference_mode()",
    "buffer 3.mean was made in torch.inference_mode",
    "`torch.no_grad()`",
    lambda: Made(others=(Centre(),)),
)
def replaces_a_buffer(loop: Loop, x: torch.Tensor) -> None:
    loop.step(x)
    with torch.inference_mode():
        loop.model[3].mean = x.mean()


ROWS.batch("a layer unfrozen later", "1.weight was unfrozen", RATE_ZERO)(
    lambda loop, x: (loop.model[1].requires_grad_(True), loop.step(x))
)
ROWS.first("a layer pruned for the first time", "parameters have changed", "prune.identity before the optimizer")(
    lambda loop, _: prune.l1_unstructured(loop.model[0], "weight", amount=0.5)
)
ROWS.batch("a layer frozen later", "2.weight was frozen", RATE_ZERO)(
    lambda loop, x: (loop.model[2].requires_grad_(False), loop.step(x))
)
ROWS.step("add_param_group later", "parameter groups have changed", RATE_ZERO)(
    lambda loop, _: loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
)


@ROWS.batch("a layer replaced later", "model's parameters have changed", "before the session is made")
def replaces_a_layer(loop: Loop, x: torch.Tensor) -> None:
    loop.model[1] = nn.Sequential(nn.Linear(2, 2))
    loop.step(x)


# --- what the session's functions get ---

ROWS.step("a weight of each sample in session.step", "weight must be a number, got Tensor", "their sum")(
    lambda loop, _: loop.session.step(weight=torch.ones(2))
)
ROWS.step("session.step(optimizer)", "the loss must be a number, got SGD", "session.step(loss)")(
    lambda loop, _: loop.session.step(loop.optimizer)
)
ROWS.step(
    "session.clip_grad_norm(model.parameters(), 1.0)",
    "takes the largest norm and nothing else",
    "`session.clip_grad_norm(1.0)`",
)(lambda loop, _: loop.session.clip_grad_norm(loop.model.parameters(), 1.0))
ROWS.batch(
    "copy.deepcopy of an object that has the session",
    "a session cannot be copied or pickled",
    "a copy of `model.state_dict()`",
)(lambda loop, x: (loop.step(x), copy.deepcopy(loop)))
ROWS.made("a loader that is pickled", "a session's loader cannot be copied or pickled", "a copy of what it needs")(
    lambda loop: pickle.dumps(loop.loader)
)
ROWS.script("seed=None", "seed must be a whole number, got None", "a number")(lambda: Made(seed=None))
ROWS.made("session.epochs of a text", "session.epochs needs a number, got '3'", "argparse's `type=int`")(
    lambda loop: loop.train("3")
)

# --- loops ---

ROWS.made("for epoch in range(n)", "session.epochs", "`session.epochs(n)`")(lambda loop: loop.epoch())
ROWS.made("a second loop of session.epochs", "a session has one loop", "one loop, and `if epoch == 3:` in its body")(
    lambda loop: loop.train(1).train(2)
)
ROWS.made("next(iter(loader)) before the loop", "session.epochs", "a DataLoader of one's own")(
    lambda loop: next(iter(loop.loader))
)


def without_loader() -> object:
    model = nn.Linear(2, 1)
    return session(model, sgd(model.parameters()))


@ROWS.script("session.loader in the loop's body", "session.loader first: before session.epochs", "before the loop")
def makes_its_loader_late() -> None:
    ours = without_loader()
    for _ in ours.epochs(1):
        ours.loader(ONES, global_batch_size=4)


ROWS.script("session.rank before session.loader", "before session.rank", "after it")(lambda: without_loader().rank)
ROWS.script("session.steps before session.loader", "session.steps or an evaluation", "after it")(
    lambda: without_loader().steps
)


@ROWS.script("session.track after session.rank", "comes after the script has asked for session.rank", "before it")
def tracks_late() -> None:
    loop = Loop(model=linear)
    if loop.session.rank == 0:
        loop.session.report(parameters=3)
    loop.session.track("average", AveragedModel(loop.model))


@ROWS.made("batches taken by another thread", "another thread takes the batches", "num_workers")
def loads_ahead_in_a_thread(loop: Loop) -> None:
    with ThreadPoolExecutor(1) as thread:
        for _ in loop.session.epochs(1):
            thread.submit(next, iter(loop.loader)).result()


@ROWS.made("next(batches) with StopIteration, over the epoch's end", "have all been used", "`for batch in loader`")
def begins_anew_at_stop_iteration(loop: Loop) -> None:
    for _ in loop.session.epochs(1):
        batches = iter(loop.loader)
        for _step in range(100):
            try:
                (x,) = next(batches)
            except StopIteration:
                batches = iter(loop.loader)
                continue
            loop.step(x)


@ROWS.made(
    "for _ in range(len(loader)), with next(batches)", r"a range\(len\(loader\)\) does not", "`for batch in loader`"
)
def in_a_range(loop: Loop) -> None:
    for _ in loop.session.epochs(2):
        batches = iter(loop.loader)
        for _ in range(len(loop.loader)):
            loop.step(*next(batches))


TOPIC = Topic(120, "Refused in the loop", ROWS)
