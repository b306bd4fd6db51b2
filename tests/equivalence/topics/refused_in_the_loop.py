"""Refused in the first step in which it would matter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import TensorDataset

import pilot.train
from tests.equivalence.refusing import Made, Refusals
from tests.equivalence.rows import Topic

ROWS = Refusals()


@ROWS.made("optimizer.step() before session.step", "optimizer.step", "leave it out")
def steps_before(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.optimizer.step()
        made.session.step()


@ROWS.made("a second optimizer beside the session", "second optimizer", "one optimizer with two groups")
def has_a_second_optimizer(made: Made) -> None:
    other = nn.Linear(2, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    for x in made.batches():
        second.zero_grad()
        (made.loss(x) + other(x).mean()).backward()
        made.session.step()
        second.step()


@ROWS.made("a new optimizer at an epoch's beginning", "creates another optimizer .Adam.", "optimizer.state.clear()")
def makes_a_new_optimizer(made: Made) -> None:
    for epoch in made.session.epochs(2):
        if epoch == 1:
            made.optimizer = torch.optim.Adam(made.model.parameters())
        for (x,) in made.loader:
            made.optimizer.zero_grad()
            made.loss(x).backward()
            made.session.step()


@ROWS.made("another optimizer takes over", "uses another optimizer .Adam.", "one optimizer, with other options")
def changes_to_another_optimizer(made: Made) -> None:
    other = torch.optim.Adam(made.model.parameters())
    for _ in made.batches():
        other.zero_grad()


@ROWS.made("a new scheduler at an epoch's beginning", "creates a learning-rate scheduler .StepLR.", "before the loop")
def makes_a_new_scheduler(made: Made) -> None:
    for _ in made.batches():
        torch.optim.lr_scheduler.StepLR(made.optimizer, 2)


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
    optimizer = ByModule(model)
    session = pilot.train.session(model, optimizer)
    loader = session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)
    for _ in session.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            session.step()


@ROWS.script(
    "a buffer that the script replaces in torch.inference_mode()",
    "buffer 3.mean was made in torch.inference_mode",
    "`torch.no_grad()`",
)
def replaces_a_buffer() -> None:
    made = Made(others=(Centre(),))
    for x in made.batches():
        made.loss(x).backward()
        made.session.step()
        with torch.inference_mode():
            made.model[3].mean = x.mean()


class Centre(nn.Module):
    """Subtracts a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.mean


@ROWS.made("a GradScaler that the session has not", "scaler=", "scaler=")
def scales_the_loss_by_itself(made: Made) -> None:
    scaler = torch.amp.GradScaler("cpu")
    for x in made.batches():
        scaler.scale(made.loss(x)).backward()
        made.session.step()


@ROWS.script("scaler.update() after session.step", "calls scaler.update", "leave it out")
def updates_the_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu")
    made = Made(scaler=scaler)
    for x in made.batches():
        scaler.scale(made.loss(x)).backward()
        made.session.step()
        scaler.update()


@ROWS.made("a layer unfrozen later", "1.weight was unfrozen", "lr=0 and a scheduler")
def unfreezes(made: Made) -> None:
    for x in made.batches():
        made.model[1].requires_grad_(True)
        made.loss(x).backward()
        made.session.step()


@ROWS.made("a layer pruned for the first time", "parameters have changed", "prune.identity before the optimizer")
def prunes(made: Made) -> None:
    for _ in made.session.epochs(1):
        prune.l1_unstructured(made.model[0], "weight", amount=0.5)
        for (x,) in made.loader:
            made.optimizer.zero_grad()
            made.loss(x).backward()
            made.session.step()


@ROWS.made("a layer frozen later", "2.weight was frozen", "lr=0 and a scheduler")
def freezes(made: Made) -> None:
    for x in made.batches():
        made.model[2].requires_grad_(False)
        made.loss(x).backward()
        made.session.step()


@ROWS.made("add_param_group later", "parameter groups have changed", "lr=0 and a scheduler")
def adds_a_group(made: Made) -> None:
    for x in made.batches():
        made.loss(x).backward()
        made.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        made.session.step()


@ROWS.made("a layer replaced later", "model's parameters have changed", "before the session is made")
def replaces_a_layer(made: Made) -> None:
    made.model[1] = nn.Sequential(nn.Linear(2, 2))
    for x in made.batches():
        made.loss(x).backward()
        made.session.step()


@ROWS.made("for epoch in range(n)", "session.epochs", "`session.epochs(n)`")
def counts_epochs_itself(made: Made) -> None:
    for _ in range(3):
        for (x,) in made.loader:
            made.loss(x).backward()
            made.session.step()


@ROWS.made("a weight of each sample in session.step", "weight must be a number, got Tensor", "their sum")
def steps_with_several_weights(made: Made) -> None:
    for x in made.batches():
        loss = made.loss(x)
        loss.backward()
        made.session.step(loss, weight=torch.ones(2))


@ROWS.made("session.epochs of a text", "session.epochs needs a number, got '3'", "argparse's `type=int`")
def counts_in_text(made: Made) -> None:
    for _ in made.session.epochs("3"):  # type: ignore[arg-type]  # as a command line gives it
        pass


@ROWS.made("a second loop of session.epochs", "a session has one loop", "one loop, and `if epoch == 3:` in its body")
def loops_once_more(made: Made) -> None:
    for epochs in (1, 2):
        for x in made.batches(epochs):
            made.loss(x).backward()
            made.session.step()


@ROWS.script("session.loader in the loop's body", "session.loader first: before session.epochs", "before the loop")
def makes_its_loader_late() -> None:
    model = nn.Linear(2, 1)
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in session.epochs(1):
        for (x,) in session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4):
            model.zero_grad()
            model(x).square().mean().backward()
            session.step()


@ROWS.script("session.rank before session.loader", "before session.rank", "after it")
def asks_for_its_rank_early() -> None:
    model = nn.Linear(2, 1)
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if session.rank == 0:
        session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)


@ROWS.script("session.steps before session.loader", "session.steps or an evaluation", "after it")
def asks_for_its_steps_early() -> None:
    model = nn.Linear(2, 1)
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(session.steps):
        pass


@ROWS.script("session.track after session.rank", "comes after the script has asked for session.rank", "before it")
def tracks_late() -> None:
    model = nn.Linear(2, 1)
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1))
    session.loader(TensorDataset(torch.ones(8, 2)), global_batch_size=4)
    if session.rank == 0:
        session.report(parameters=3)
    session.track("average", torch.optim.swa_utils.AveragedModel(model))


@ROWS.made("next(iter(loader)) before the loop", "session.epochs", "a DataLoader of one's own")
def looks_at_a_batch_before(made: Made) -> None:
    next(iter(made.loader))


@ROWS.made("batches taken by another thread", "another thread takes the batches", "num_workers")
def loads_ahead_in_a_thread(made: Made) -> None:
    with ThreadPoolExecutor(1) as thread:
        for _ in made.session.epochs(1):
            thread.submit(next, iter(made.loader)).result()


@ROWS.made("next(batches) with StopIteration, over the epoch's end", "have all been used", "`for batch in loader`")
def begins_anew_at_stop_iteration(made: Made) -> None:
    for _ in made.session.epochs(1):
        batches = iter(made.loader)
        for _step in range(100):
            try:
                (x,) = next(batches)
            except StopIteration:
                batches = iter(made.loader)
                continue
            made.optimizer.zero_grad()
            made.loss(x).backward()
            made.session.step()


TOPIC = Topic(120, "Refused in the loop", ROWS)
