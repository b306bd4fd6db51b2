"""What a script tracks, keeps in ``session.state``, or changes in forward; also if it grows between epochs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

from tests.equivalence.loops import EPOCHS, Loop, Make, Result, SessionScript, X, Y, fresh, mlp
from tests.equivalence.refusing import Refusals
from tests.equivalence.rows import Row, Topic


def average_after(make: Make) -> Result:
    """Updated whether or not the step was applied."""
    model = fresh(mlp)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loop = Loop(make, model, tracked={"average": average})

    def body(*batch: torch.Tensor) -> None:
        loop.step(*batch)
        average.update_parameters(model)

    return loop.train(body=body).tensors()


def average_before(make: Make) -> Result:
    """A teacher that is updated before the student's step, and used in its loss."""
    model = fresh(mlp)
    teacher = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    loop = Loop(make, model, tracked={"teacher": teacher})

    def body(x: torch.Tensor, y: torch.Tensor) -> None:
        loop.optimizer.zero_grad()
        teacher.update_parameters(model)
        loss = loop.loss(x, y) + mse_loss(model(x), teacher(x).detach())
        loss.backward()
        loop.session.step(loss)

    return loop.train(body=body).tensors()


class Slow(torch.optim.Optimizer):
    """Wraps another optimizer (Lookahead): the session steps the inner one, the script does the rest."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    def state_dict(self) -> dict[str, Any]:
        return {"slow": self.slow}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.slow = state_dict["slow"]

    def pull(self) -> None:
        for slow, p in zip(self.slow, self.param_groups[0]["params"], strict=True):
            p.data = slow.lerp_(p.data, 0.5).clone()


def slow_weights(make: Make) -> Result:
    loop = Loop(make)
    outer = Slow(loop.optimizer)
    loop.session.track("outer", outer)

    def body(*batch: torch.Tensor) -> None:
        outer.zero_grad()
        loop.loss(*batch).backward()
        loop.session.step()
        outer.pull()

    return loop.train(body=body).tensors(outer=outer)


class Rollouts(nn.Module):
    """The model's current behaviour as the data of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", X.clone())
        self.register_buffer("wanted", Y.clone())

    @torch.no_grad()
    def play(self, model: nn.Module) -> None:
        self.seen.copy_(X + 0.1 * model(X))
        self.wanted.copy_(model(self.seen).tanh())


def rollouts(make: Make, *, tracked: bool = True) -> Result:
    """As in reinforcement learning. A node that joins in the middle of an epoch has only the model of that moment."""
    its = Rollouts()
    data = TensorDataset(its.seen, its.wanted)
    loop = Loop(make, data=data, tracked={"rollouts": its} if tracked else {})
    return loop.train(first=lambda _: its.play(loop.model)).tensors()


class Counter:
    """The script's own object."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def counter(make: Make) -> Result:
    count = Counter()
    loop = Loop(make, tracked={"counter": count})

    def body(*batch: torch.Tensor) -> None:
        count.seen.append(len(count.seen))
        loop.step(*batch)
        count.seen[-1] *= 2

    return loop.train(body=body).tensors()


def counts_in_the_state(make: Make) -> Result:
    """The loss depends on ``session.state``, which changes before each step, and after it, even if it is void."""
    loop = Loop(make)
    state = loop.session.state

    def body(x: torch.Tensor, y: torch.Tensor) -> None:
        state["beta"] = min(1.0, state.get("beta", 0.0) + 0.07)
        state.setdefault("options", {"seen": [], "kind": "linear", "mean": torch.zeros(1)})["seen"].append(1)
        state["options"]["mean"] += state["beta"]
        loop.optimizer.zero_grad()
        loss = loop.loss(x, y) * state["beta"] + state["options"]["mean"].sum() * loop.model[0].weight.mean()
        loss.backward()
        loop.session.step(loss)
        state["beta"] *= 0.99
        state["after"] = state.get("after", 0) + len(state["options"]["seen"])

    return loop.train(body=body).tensors(state=state)


def own_scheduler(make: Make) -> Result:
    """The script itself steps it, for each batch that was applied."""
    loop = Loop(make)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(loop.optimizer, 0.9)
    loop.session.track("scheduler", scheduler)
    loop.train(body=lambda *batch: loop.step(*batch) and scheduler.step())
    return loop.tensors(scheduler=scheduler)


class Remembering(nn.Module):
    """Changes its buffers in forward: in place, by a new tensor, through ``.data``, and one that is not saved; and a
    frozen copy of its layer, like a momentum encoder's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.momentum = nn.Linear(3, 1), nn.Linear(3, 1).requires_grad_(False)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(1, 3))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("hidden", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean = 0.5 * self.mean + self.layer.weight.detach()
        self.scale.data.mul_(1.01)
        self.hidden.mul_(1.01)
        for slow, fast in zip(self.momentum.parameters(), self.layer.parameters(), strict=True):
            slow.data = 0.9 * slow.data + 0.1 * fast.data
        return self.layer(x) * self.scale + self.momentum(x) + (self.mean * x).sum(1, keepdim=True)


def forward_changes(make: Make) -> Result:
    return Loop(make, Remembering).train().tensors()


class Bank(nn.Module):
    """Past values; it begins empty."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(0))

    def take(self, value: torch.Tensor) -> None:
        self.past = torch.cat([self.past, value[None]])

    def mean(self) -> torch.Tensor:
        return self.past.sum() / max(1, len(self.past))


class WithBank(nn.Sequential):
    """A model with one."""

    def __init__(self) -> None:
        super().__init__(*mlp())
        self.add_module("bank", Bank())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self[2](self[1](self[0](x)))
        return output + 0.1 * self.bank.mean()


def exemplars(make: Make) -> Result:
    """As in class-incremental learning."""
    loop = Loop(make, WithBank)
    bank = loop.model.bank
    return loop.train(
        EPOCHS + 1, first=lambda epoch: bank.take(torch.tensor(epoch + 1.0, dtype=torch.float64))
    ).tensors()


def replay_buffer(make: Make) -> Result:
    bank = fresh(Bank)
    loop = Loop(make, tracked={"bank": bank})
    loop.train(
        EPOCHS + 1,
        body=lambda *batch: loop.step(*batch, factor=1 + bank.mean()),
        last=lambda _: bank.take(next(loop.model.parameters()).detach().sum()),
    )
    return loop.tensors()


class Fading(nn.Module):
    """A layer that fades in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)
        self.register_buffer("alpha", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.second((1.0 - self.alpha) * x + self.alpha * self.first(x).tanh())
        return output


def fades_in_later(make: Make) -> Result:
    """Not in the first epoch; from the second one on the script also changes a parameter."""
    loop, epochs = Loop(make, Fading), list[int]()

    def body(*batch: torch.Tensor) -> None:
        if epochs[-1]:
            loop.model.alpha += 0.1
            with torch.no_grad():
                loop.model.second.weight.mul_(0.9)
        loop.step(*batch)

    return loop.train(first=epochs.append, body=body).tensors()


BY_STEP: list[SessionScript] = [
    SessionScript(name=name, run=script)
    for name, script in {
        "swa_utils.AveragedModel (EMA), tracked": average_after,
        "an EMA teacher in the loss, tracked": average_before,
        "an object with state_dict, tracked": counter,
        "a scheduler that the script steps, tracked": own_scheduler,
        "an optimizer around the session's (Lookahead), tracked": slow_weights,
        "a module whose forward replaces and scales its tensors": forward_changes,
    }.items()
]
ROWS: list[Row] = [
    *BY_STEP,
    SessionScript(name="a loss that depends on counts in session.state", run=counts_in_the_state),
    SessionScript(name="data made in the loop (rollouts), tracked", run=rollouts, joins=range(2, 14)),
    SessionScript(name="a model's buffer that grows between epochs (exemplars)", run=exemplars, joins=range(2, 20, 3)),
    SessionScript(name="a tracked module's buffer that grows between epochs", run=replay_buffer, joins=range(2, 20, 3)),
    SessionScript(
        name="a layer that fades in from the second epoch on",
        run=fades_in_later,
        operations=range(7, 16),
        joins=range(7, 16, 2),
    ),
]
REFUSED = Refusals()


@REFUSED.made("session.track in the loop", "before session.epochs, once", "before session.epochs", Loop)
def tracks_late(loop: Loop) -> None:
    loop.train(first=lambda _: loop.session.track("late", Counter()))


@REFUSED.made("two objects tracked by one name", "once per name", "two names", Loop)
def tracks_twice(loop: Loop) -> None:
    loop.session.track("counter", Counter())
    loop.session.track("counter", Counter())


REFUSED.made("tracking what has no state_dict", "needs an object with state_dict", "`session.state`", Loop)(
    lambda loop: loop.session.track("number", 3)
)


@REFUSED.made(
    "tracking a state that cannot be saved",
    r"counter.state_dict\(\)\['seen'\]\[0\] is of type object",
    "tensors, numbers, ...",
    Loop,
)
def tracks_an_object(loop: Loop) -> None:
    count = Counter()
    count.seen = [object()]
    loop.session.track("counter", count)
    loop.train()


class Takes(Counter):
    """Its load_state_dict does not accept its state_dict."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["counter"])


REFUSED.made(
    "tracking a state that its object cannot load",
    r"load_state_dict does not take what its state_dict gave \(KeyError: 'counter'\)",
    "a load_state_dict that takes it",
    Loop,
)(lambda loop: loop.session.track("counter", Takes()))
TOPIC = Topic(72, "Tracked objects, and what grows", [*ROWS, *REFUSED])
