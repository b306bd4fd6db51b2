"""What a script has tracked, and what forward changes, is as in a plain loop after any change of the group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

from pilot.core.errors import PilotError, UserError
from pilot.train.steps import snapshots
from tests.equivalence.loops import (
    BATCH,
    DATA,
    EPOCHS,
    Result,
    Script,
    a_step,
    an_epoch,
    assert_equal,
    fresh,
    mlp,
    session,
    tensors,
    trained,
)
from tests.equivalence.rows import on_ranks
from tests.equivalence.topics.several import Counter
from tests.unit.train.storm import End


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)


def average_after(made: Callable[..., Any]) -> Result:
    """Updated whether or not the step was applied."""
    model = fresh(mlp)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def body(*parts: Any) -> None:
        a_step(*parts)
        average.update_parameters(model)

    return trained(made, model, sgd(model), body=body, average=average)


def average_before(made: Callable[..., Any]) -> Result:
    """A teacher that is updated before the student's step, and used in its loss."""
    model = fresh(mlp)
    teacher = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))

    def body(session: Any, model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        teacher.update_parameters(model)
        loss = mse_loss(model(x), y) + mse_loss(model(x), teacher(x).detach())
        loss.backward()
        session.step(loss)

    return trained(made, model, sgd(model), body=body, teacher=teacher)


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


def slow_weights(made: Callable[..., Any]) -> Result:
    model = fresh(mlp)
    inner = sgd(model)
    outer = Slow(inner)

    def body(session: Any, model: nn.Module, _inner: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        outer.zero_grad()
        mse_loss(model(x), y).backward()
        session.step()
        outer.pull()

    return trained(made, model, inner, body=body, outer=outer)


class Rollouts(nn.Module):
    """The model's current behaviour as the data of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", DATA.tensors[0].clone())
        self.register_buffer("wanted", DATA.tensors[1].clone())

    @torch.no_grad()
    def play(self, model: nn.Module) -> None:
        self.seen.copy_(DATA.tensors[0] + 0.1 * model(DATA.tensors[0]))
        self.wanted.copy_(model(self.seen).tanh())


def learns_from_rollouts(made: Callable[..., Any], *, tracked: bool = False) -> Result:
    """As in reinforcement learning. A node that joins in the middle of an epoch has only the model of that moment."""
    model, rollouts = fresh(mlp), Rollouts()
    optimizer = sgd(model)
    session = made(model, optimizer)
    if tracked:
        session.track("rollouts", rollouts)
    loader = session.loader(TensorDataset(rollouts.seen, rollouts.wanted), global_batch_size=BATCH)
    for _ in session.epochs(EPOCHS):
        rollouts.play(model)
        an_epoch(session, loader, model, optimizer)
    return tensors(model=model, optimizer=optimizer)


def test_data_that_are_made_in_the_loop_are_tracked() -> None:
    assert_equal(partial(learns_from_rollouts, tracked=True), joins=range(2, 14))


def test_data_that_are_made_in_the_loop_and_differ_are_found() -> None:
    with pytest.raises(PilotError, match=r"dataset\.tensors\[0\] \(and 1 more\) has differed"):
        on_ranks(lambda: learns_from_rollouts(session), 1, [End(4, (True,), (False,), 1)])


def counter(made: Callable[..., Any]) -> Result:
    model, count = fresh(mlp), Counter()

    def body(*parts: Any) -> None:
        count.seen.append(len(count.seen))
        a_step(*parts)
        count.seen[-1] *= 2

    return trained(made, model, sgd(model), body=body, counter=count)


def counts_in_the_state(made: Callable[..., Any]) -> Result:
    """``session.state``, on which the loss depends, is changed before each step, and after it if it is void, too."""
    model = fresh(mlp)

    def body(
        session: Any, model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
    ) -> None:
        state = session.state
        state["beta"] = min(1.0, state.get("beta", 0.0) + 0.07)
        state.setdefault("options", {"seen": [], "kind": "linear", "mean": torch.zeros(1)})["seen"].append(1)
        state["options"]["mean"] += state["beta"]
        optimizer.zero_grad()
        loss = mse_loss(model(x), y) * state["beta"] + state["options"]["mean"].sum() * model[0].weight.mean()
        loss.backward()
        session.step(loss)
        state["beta"] *= 0.99
        state["after"] = state.get("after", 0) + len(state["options"]["seen"])

    return trained(made, model, sgd(model), body=body)


def own_scheduler(made: Callable[..., Any]) -> Result:
    """The script itself steps it, for each batch that was applied."""
    model = fresh(mlp)
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def body(session: Any, model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        if a_step(session, model, optimizer, x, y):
            scheduler.step()

    return trained(made, model, optimizer, body=body, scheduler=scheduler)


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


def forward_changes(made: Callable[..., Any]) -> Result:
    model = fresh(Remembering)
    return trained(made, model, sgd(model))


SCRIPTS: list[Script] = [
    average_after,
    average_before,
    counter,
    counts_in_the_state,
    own_scheduler,
    forward_changes,
    slow_weights,
]
IDS = [script.__name__ for script in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=IDS)
def test_equal_to_the_plain_loop(script: Script) -> None:
    assert_equal(script)


@pytest.mark.parametrize("script", [one for one in SCRIPTS if one is not counts_in_the_state])
def test_what_is_large_is_put_back_too_where_it_was_seen_to_change(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SMALL_BYTES", -1)
    assert_equal(script, operations=range(4, 11))


def test_a_hook_says_when_a_state_was_taken_over_or_put_back() -> None:
    """So nothing derived from it is stale: here, the double of a tracked number."""
    told: list[str] = []

    def script(made: Callable[..., Any] = session) -> int:
        model, count = fresh(mlp), Counter()
        optimizer, doubled = sgd(model), [0]
        ours = made(model, optimizer)
        loader = ours.loader(DATA, global_batch_size=BATCH)
        ours.track("counter", count)

        def again() -> None:
            doubled[0] = 2 * len(count.seen)
            told.append("restored")

        ours.on_restore(again)
        for _ in ours.epochs(1):
            for x, y in loader:
                count.seen.append(0)
                doubled[0] += 2
                a_step(ours, model, optimizer, x, y)
                assert doubled[0] == 2 * len(count.seen)
        return doubled[0]

    assert script() == 12
    assert not told
    assert on_ranks(script, 2, [End(4, (True, False), (False,), 1)]) == [12] * 3
    assert len(told) >= 2 + 1


def test_ranks_that_track_different_things_are_refused() -> None:
    def script() -> None:
        model = fresh(mlp)
        ours = session(model, sgd(model))
        ours.loader(DATA, global_batch_size=BATCH)
        if first.pop():
            ours.track("counter", Counter())
        for _ in ours.epochs(1):
            pass

    first = [False, True]
    with pytest.raises(UserError, match="the tracked object counter is"):
        on_ranks(script, 2, [])


def test_a_function_of_on_restore_may_use_the_steps() -> None:
    """Also in a process that joins, and does not know its group yet."""
    told: list[int] = []

    def script() -> list[int]:
        model = fresh(mlp)
        optimizer = sgd(model)
        ours = session(model, optimizer)
        loader = ours.loader(DATA, global_batch_size=BATCH)
        ours.on_restore(lambda: told.append(ours.steps))
        for _ in ours.epochs(2):
            an_epoch(ours, loader, model, optimizer)
        return told

    on_ranks(script, 1, [End(4, (True,), (False,), 1)])
    assert told
    assert 0 < max(told) < 12


@pytest.mark.parametrize("what", ["rank", "size"])
def test_a_function_of_on_restore_does_not_know_the_group(what: str) -> None:
    def script() -> None:
        model = fresh(mlp)
        optimizer = sgd(model)
        ours = session(model, optimizer)
        loader = ours.loader(DATA, global_batch_size=BATCH)
        ours.on_restore(lambda: getattr(ours, what))
        for _ in ours.epochs(2):
            an_epoch(ours, loader, model, optimizer)

    with pytest.raises(UserError, match="runs while its process is in no group"):
        on_ranks(script, 2, [])


@pytest.mark.parametrize("function", [3, lambda state: state])
def test_what_on_restore_could_not_call_is_refused_at_once(function: Any) -> None:
    with pytest.raises(UserError, match="needs no arguments"):
        session(model := fresh(mlp), sgd(model)).on_restore(function)
