"""A script is told of numbers with which an epoch begins, which each batch changes, and on which its loss depends; and
what to do instead trains as one undisturbed process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, fresh, mlp, session
from tests.equivalence.rows import on_ranks

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Step = Callable[[torch.Tensor], None]
Script = Callable[[Any, Any, Loss, Step], None]


def temperature(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for _ in ours.epochs(2):
        temp = 1.0
        for number, (x, y) in enumerate(loader):
            loss = loss_of(x, y) / temp
            step(loss)
            if number % 3 == 1:
                temp = max(temp * 0.9, 0.5)


def a_count_of_batches(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for epoch in ours.epochs(2):
        done = epoch * 6
        for x, y in loader:
            weight = min(1.0, done / 10)
            term = loss_of(x, y) * weight
            done += 1
            step(term + loss_of(x, y))


def an_average(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    def epoch() -> None:
        mean = torch.zeros(())
        for x, y in loader:
            mean = 0.9 * mean + 0.1 * x.mean()
            step(loss_of(x - mean, y))

    for _ in ours.epochs(2):
        epoch()


def with_backward(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    """It calls ``backward`` itself, and its step gets nothing that depends on the number."""
    for _ in ours.epochs(2):
        scale = np.ones(1)
        for x, y in loader:
            loss = loss_of(x, y)
            (loss * float(scale[0])).backward()
            step(NOTHING)
            scale = scale * 0.9


def an_argument(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for epoch in ours.epochs(2):
        counted_in_a_function(loader, loss_of, step, epoch * len(loader))


def an_argument_from_the_state(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    ours.state["done"] = 0
    for _ in ours.epochs(2):
        ours.state["done"] = counted_in_a_function(loader, loss_of, step, ours.state["done"])


def counted_in_a_function(loader: Any, loss_of: Loss, step: Step, done: int) -> int:
    for x, y in loader:
        step(loss_of(x, y) * 0.9**done)
        done += 1
    return done


def a_tested_count(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    """It decides when the parameters change by hand."""
    parameters = [one for group in optimizer_of(ours).param_groups for one in group["params"]]
    for _ in ours.epochs(2):
        since = 0
        for x, y in loader:
            step(loss_of(x, y))
            since += len(x)
            if since == 2 * BATCH:
                with torch.no_grad():
                    for p in parameters:
                        p.mul_(0.9)


def counts_in_a_tensor(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    parameters = [one for group in optimizer_of(ours).param_groups for one in group["params"]]
    for _ in ours.epochs(2):
        used = torch.zeros(3)
        for x, y in loader:
            step(loss_of(x, y))
            used += 1
            if used[0] > 1:
                for p in parameters:
                    p.data.mul_(0.9)


def counts_of_what_is_unused(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    weight = optimizer_of(ours).param_groups[0]["params"][0]
    for _ in ours.epochs(2):
        usage = torch.zeros(3)
        for x, y in loader:
            step(loss_of(x, y))
            usage += torch.arange(3) % 2
            unused = (usage < 1).nonzero().flatten()
            weight.data[unused] = 0.01


class WarmUpScheduler:
    """Not a subclass of torch's, and told the number of steps (as timm's)."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step_update(self, num_updates: int) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.01 * (1 + num_updates)


def a_count_of_updates(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    schedule = WarmUpScheduler(optimizer_of(ours))
    for epoch in ours.epochs(2):
        num_updates = epoch * 6
        for x, y in loader:
            step(loss_of(x, y))
            num_updates += 1
            schedule.step_update(num_updates=num_updates)


def a_rate(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    optimizer = optimizer_of(ours)
    for _ in ours.epochs(2):
        rate = 0.05
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = rate
            step(loss_of(x, y))
            rate *= 0.9


def a_rate_of_the_first_group(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    optimizer = optimizer_of(ours)
    for _ in ours.epochs(2):
        rate = 0.05
        for x, y in loader:
            optimizer.param_groups[0]["lr"] = rate
            step(loss_of(x, y))
            rate *= 0.9


def a_norm_to_clip_to(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    for epoch in ours.epochs(2):
        done = epoch * 6
        for x, y in loader:
            most = 1 / (1 + 0.1 * done)
            step(loss_of(x, y))
            nn.utils.clip_grad_norm_(torch.zeros(1, requires_grad=True), most)
            done += 1


def a_decay_of_averages(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    averages = fresh(mlp)
    ours.track("averages", averages)
    for epoch in ours.epochs(2):
        done = epoch * 6
        for x, y in loader:
            step(loss_of(x, y))
            done += 1
            decay = min(1 - 1 / (done + 1), 0.9)
            with torch.no_grad():
                for average, now in zip(averages.parameters(), ours._training.model.parameters(), strict=True):
                    average.mul_(decay).add_(now, alpha=1 - decay)


NOTHING = torch.zeros((), requires_grad=True)


def optimizer_of(ours: Any) -> torch.optim.Optimizer:
    (stepper,) = ours._training.steppers
    (optimizer,) = stepper.optimizers.values()
    found: torch.optim.Optimizer = optimizer
    return found


def said(script: Script, capsys: pytest.CaptureFixture[str], *, mine: bool = False) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(loss: torch.Tensor) -> None:
        if not mine:
            optimizer.zero_grad()
            loss.backward()
        ours.step(loss)
        optimizer.zero_grad()

    script(ours, loader, lambda x, y: mse_loss(model(x), y), step)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (temperature, "temp"),
        (a_count_of_batches, "done"),
        (an_average, "mean"),
        (with_backward, "scale"),
        (an_argument, "done"),
        (an_argument_from_the_state, "done"),
        (a_tested_count, "since"),
        (counts_in_a_tensor, "used"),
        (counts_of_what_is_unused, "usage"),
        (a_count_of_updates, "num_updates"),
        (a_rate, "rate"),
        (a_rate_of_the_first_group, "rate"),
        (a_norm_to_clip_to, "done"),
        (a_decay_of_averages, "done"),
    ],
)
def test_numbers_that_batches_change_and_use(script: Script, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(script, capsys, mine=script is with_backward)
    (line,) = [line for line in lines if "what the script keeps in session.state" not in line]
    assert "test_epoch_numbers.py, line " in line
    assert f"beginning with a value of the epoch's ({name}); a node that joins" in line


def test_sums_counts_and_what_goes_on_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    class Metric(nn.Module):
        def update(self, count: int) -> None:
            self.count = count

    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer_of(ours))
        ours.track("schedule", schedule)
        counted, records = Metric(), dict[int, float]()
        for epoch in ours.epochs(2):
            total, seen, worst, shown = 0.0, 0, -1.0, ""
            done, scale, fixed = ours.steps, ours.state.get("scale", 1.0), 1.0 + epoch
            for x, y in loader:
                seen += len(x)
                shown = f"{total / seen} {optimizer_of(ours).param_groups[0]['lr']} {schedule.get_last_lr()} {seen}"
                counted.update(seen)
                records[seen] = total
                loss = loss_of(x, y) * scale * fixed / (1 + done)
                worst = max(worst, loss.item())
                step(loss)
                total += loss.item()
                done = done + 1
                scale = ours.state["scale"] = scale * 0.9
            assert shown

    assert [line for line in said(script, capsys) if "beginning with a value of the epoch's" in line] == []


def test_arguments_that_go_on_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def kept(ours: Any, loader: Any, loss_of: Loss, step: Step, rate: float, seen: int) -> None:
        for x, y in loader:
            ours.state["rate"] = rate = rate * 0.9
            seen += len(x)
            step(loss_of(x, y) * rate)
        print(seen)

    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        for _ in ours.epochs(2):
            kept(ours, loader, loss_of, step, ours.state.get("rate", 1.0), 0)

    assert said(script, capsys) == []

    def by_steps(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        for _ in ours.epochs(2):
            counted_in_a_function(loader, loss_of, step, ours.steps)

    assert said(by_steps, capsys) == []


def test_a_tensor_that_each_epoch_makes_and_batches_only_read(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        for epoch in ours.epochs(3):
            weights = torch.full((3,), 1.0 + epoch)
            for x, y in loader:
                (loss_of(x, y) * weights.mean()).backward()
                step(NOTHING)

    assert said(script, capsys, mine=True) == []


def test_a_sum_of_what_the_step_returns_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        def train(x: torch.Tensor, y: torch.Tensor) -> float:
            loss = loss_of(x, y)
            step(loss)
            return loss.item()

        for _ in ours.epochs(2):
            total = 0.0
            for x, y in loader:
                total += train(x, y)

    assert said(script, capsys) == []


@pytest.mark.parametrize("adaptive", [False, True])
def test_what_was_set_before_the_sessions_loop_is_told_of_at_most_as_such(
    adaptive: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        weight = 1.0
        for _ in ours.epochs(2):
            for x, y in loader:
                step(loss_of(x, y) * weight)
                if adaptive:
                    weight = weight * 0.9

    assert [line for line in said(script, capsys) if "beginning with a value of the epoch's" in line] == []


def test_a_number_of_the_epochs_that_no_batch_changes_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        for _ in ours.epochs(2):
            weight = 1.0
            for x, y in loader:
                step(loss_of(x, y) * weight)
                if ours.steps > 10**6:
                    weight = weight * 0.9

    assert said(script, capsys) == []


def test_micro_batches_begin_anew_in_each_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
        for _ in ours.iterations(4):
            scale = 1.0
            for x, y in loader:
                step(loss_of(x, y) * scale)
                scale = scale / 2

    assert said(script, capsys) == []


def lowered(ours: Any, loader: Any, loss_of: Loss, step: Step) -> None:
    """As it is told to do."""
    for _ in ours.epochs(2):
        for number, (x, y) in enumerate(loader):
            step(loss_of(x, y) / max(0.9**number, 0.5))


def trained(script: Script) -> list[torch.Tensor]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        ours.step(loss)

    script(ours, loader, lambda x, y: mse_loss(model(x), y), step)
    return [p.detach().clone() for p in model.parameters()]


def test_by_the_number_of_the_batch() -> None:
    expected = trained(lowered)
    for values in on_ranks(lambda: trained(lowered), 1, GROWS_AND_SHRINKS):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
