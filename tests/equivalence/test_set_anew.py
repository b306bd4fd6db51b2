"""A script is told of what one turn of its loop leaves to the next, and not of what each turn sets anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from pilot.train.looks import naming
from pilot.train.script import refusal
from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Step = Callable[[torch.Tensor, torch.Tensor], float]


class Trainer:
    """With a function for the epoch."""

    def __init__(self) -> None:
        self.epoch, self.level, self.args = 0, 1.0, SimpleNamespace(epoch=0)
        self.stage = self.total = self.rounds = self.last = 0.0

    def fit(self, ours: Any, loader: Any, step: Step) -> None:
        for self.epoch in ours.epochs(3):
            self.args.epoch = self.epoch
            self.rounds += 1
            if self.epoch == 1:
                self.stage = 1.0
            self.train_epoch(self.epoch, loader, step)

    def train_epoch(self, epoch: int, loader: Any, step: Step) -> None:
        self.level = 1.0 + epoch
        self.total = 0.0
        for x, y in loader:
            self.total += step(x, y)
            self.last = 2.0 * self.total


def test_attributes_that_an_epochs_beginning_sets(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer()
    names = {name.removeprefix("trainer.").removeprefix("self.") for name in told(trainer.fit, capsys)}
    assert names == {"last", "rounds", "stage"}


def test_attributes_that_the_same_function_sets_before_its_pass(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        kept = SimpleNamespace(alpha=0.0, beta=0.0, gamma=0.0, delta=0.0, epsilon=0)
        for epoch in ours.epochs(3):
            kept.alpha = epoch / 10
            kept.beta = kept.beta + 1
            kept.gamma = 0.0 if epoch < 2 else kept.gamma + 1
            if epoch < 2:
                kept.delta, kept.epsilon = 0.5, epoch
            else:
                kept.delta = 1.0
            for x, y in loader:
                step(x, y)

    assert told(script, capsys) == {"kept.beta", "kept.gamma", "kept.epsilon"}


class Twofold:
    """Its first and its eighth step are made by a function that does not make the others."""

    def fit(self, ours: Any, loader: Any, step: Step) -> None:
        makes = self.makes(step)
        for self.epoch in ours.epochs(2):
            for number, batch in enumerate(loader, 6 * self.epoch):
                self.batch = batch
                if number in (0, 7):
                    next(makes)
                else:
                    step(*batch)

    def makes(self, step: Step) -> Iterator[float]:
        while True:
            yield step(*self.batch)


def test_an_attribute_seen_in_a_function_that_was_away_at_an_epochs_beginning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a function that runs anew, and has the place of an ended one."""
    assert told(Twofold().fit, capsys) == {"makes"}


def test_variables_that_each_turn_sets_before_it_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        last = total = rate = shared = 0.0
        best = 99.0

        def halved() -> float:
            return shared / 2

        def doubled(last: float) -> float:
            return 2 * last

        for epoch in ours.epochs(3):
            total = 0.0
            if epoch == 1:
                rate = 0.1
            for x, y in loader:
                last = step(x, y)
                total += doubled(last) + halved()
                shared = last
            best = min(best, total + rate)

    assert told(script, capsys) == {"rate", "best", "shared", "halved.shared"}


def test_variables_that_are_set_and_read_under_a_condition(capsys: pytest.CaptureFixture[str]) -> None:
    """And read behind it, when it did not hold."""

    def script(ours: Any, loader: Any, step: Step) -> None:
        teacher = rate = level = factor = 0.0
        for epoch in ours.epochs(3):
            if epoch == 1:
                teacher = 2.0
                assert teacher > 1
            if epoch < 2:
                level = 0.5
            else:
                level = 1.0 + epoch
                assert level > 1
            try:
                factor = 1 / epoch
            except ZeroDivisionError:
                factor = 2.0
            for number, (x, y) in enumerate(loader):
                if number == 0:
                    rate = 1.0 + epoch
                    assert rate > 0
                step(x, y)
                assert rate + teacher + level + factor < 99

    assert told(script, capsys) == {"teacher", "rate"}


@pytest.mark.xfail(sys.version_info >= (3, 12), reason="there handlers are behind the loop, and are not looked at")
def test_a_variable_that_an_exception_leaves_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        scale = 0.0
        for epoch in ours.epochs(3):
            try:
                scale = 1 / (epoch - 1)
            except ZeroDivisionError:
                assert scale < 9
            for x, y in loader:
                step(x, y)
                assert scale < 99

    assert told(script, capsys) == {"scale"}


def test_variables_that_are_read_after_loops_that_set_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Inner loops have turns, and ``with`` ends no exceptions."""

    def script(ours: Any, loader: Any, step: Step) -> None:
        last = most = count = 0.0
        for _ in ours.epochs(2):
            for x, y in loader:
                with torch.enable_grad():
                    last = step(x, y)
                for value in (last, 1.0):
                    if value > 9:
                        continue
                    count += 1
                    most = value
            assert last + most >= 0

    assert told(script, capsys) == {"most", "count"}


def test_variables_that_some_turns_set_for_what_follows_the_loop(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best epoch's weights, which a process that begins after it does not have."""
    monkeypatch.setattr(naming, "SHOWN", 99)

    def script(ours: Any, loader: Any, step: Step) -> None:
        model = ours._training.model
        weights, copied, tensor = deepcopy(model.state_dict()), deepcopy(model), torch.zeros(2)
        best_epoch, made = -1, None
        ours.state["best"] = 99.0
        for epoch in ours.epochs(3):
            loss = 0.0
            for x, y in loader:
                loss += step(x, y)
            if loss < ours.state["best"]:
                ours.state["best"] = loss
                weights, copied, tensor = deepcopy(model.state_dict()), deepcopy(model), torch.ones(2)
                best_epoch, made = epoch, [loss]
        model.load_state_dict(weights)
        print(copied, tensor, best_epoch, made)

    names = {name.partition("[")[0].partition(".")[0] for name in told(script, capsys)}
    assert names == {"weights", "copied", "tensor", "best_epoch", "made"}


def test_variables_that_there_are_not_before_the_loop_and_that_some_turns_set_for_what_follows_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in a tutorial, with a validation in the same loop. A run that resumes may come to the end without them."""

    def script(ours: Any, loader: Any, step: Step) -> None:
        model, loaders = ours._training.model, {"train": loader, "val": list(DATA)}
        ours.state["best"] = 99.0
        for epoch in ours.epochs(3):
            for phase in ("train", "val"):
                total = 0.0
                for x, y in loaders[phase]:
                    total += step(x, y) if phase == "train" else mse_loss(model(x), y).item()
                mean = total / len(loaders[phase])
                if phase == "val" and mean < ours.state["best"]:
                    ours.state["best"] = mean
                    weights, best_epoch = deepcopy(model.state_dict()), epoch
        model.load_state_dict(weights)
        print(best_epoch, mean)

    assert told(script, capsys) == {"weights", "best_epoch"}


def test_variables_that_iterations_set_for_what_follows_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        best, last, reached = None, 0.0, -1
        for number in ours.iterations(6):
            last = step(*loader.next())
            if number == 2:
                best = [torch.ones(1)]
            if number == 4:
                reached = number
                break
        print(best, last, reached)

    assert told(script, capsys) == {"best"}


def test_variables_that_each_turn_sets_for_what_follows_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    """In each turn in which it may be another value; or in the last one."""

    def script(ours: Any, loader: Any, step: Step) -> None:
        loss = mean = measured = end = stopped = unread = first = other = shown = third = 0.0
        does_measure, values = ours.steps >= 0, [1.0]
        for epoch in ours.epochs(3):
            for number, (x, y) in enumerate(loader):
                loss = step(x, y)
                if number % 3 == 2:
                    third = loss
                for value in values:
                    first = value + loss
            mean = loss / 2
            if does_measure:
                measured = mean
            if epoch == 1:
                unread = mean
            if epoch > 0:
                other = mean
                assert other > 0
            else:
                other = 2 * mean
            try:
                shown = loss / mean
            except ZeroDivisionError:
                shown = 0.0
            if epoch == 2:
                end = mean
            if epoch == 2 and number > -1:
                stopped = epoch
                ours.stop()
        unread = 1.0
        print(loss, mean, measured, end, stopped, unread, first, other, shown, third)

    assert told(script, capsys) == set()


def test_attributes_that_each_iteration_sets_before_it_calls_anything(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        kept = SimpleNamespace(step=0, number=0, last=0.0)
        for kept.step in ours.iterations(9):
            kept.number = kept.step + 1
            kept.last = step(*loader.next())

    assert told(script, capsys) == {"kept.last"}


def test_attributes_that_each_iteration_sets_first_and_then_changes(capsys: pytest.CaptureFixture[str]) -> None:
    """A process that joins begins with an iteration."""

    def script(ours: Any, loader: Any, step: Step) -> None:
        kept = SimpleNamespace(step=0, count=0)
        for kept.step in ours.iterations(9):
            step(*loader.next())
            kept.step += 1
            kept.count += 1
            assert kept.step > 0

    assert told(script, capsys) == {"kept.count"}


class Counting:
    """Counts its epoch's batches."""

    def __init__(self) -> None:
        self.count, self.weight, self.epoch = 0, 0.0, 0

    def counts(self) -> None:
        """One more."""
        self.count += 1


def test_attributes_that_an_epoch_sets_first_and_its_batches_change(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        kept = Counting()
        for epoch in ours.epochs(3):
            kept.count, kept.weight, kept.epoch = 0, 1.0, epoch
            for x, y in loader:
                step(x, kept.weight * y)
                kept.weight *= 0.9
                kept.counts()

    (line,) = lines(script, capsys)
    assert "beginning with a value of the epoch's (kept.weight)" in line


class Policy:
    """As of reinforcement learning: a method for the iteration, which is the first thing that it calls."""

    def __init__(self) -> None:
        self.count = self.number = self.added = self.given = self.some = self.late = self.last = self.inner = 0.0

    def train(self, ours: Any, loader: Any, step: Step, _given: float = 0.0) -> None:
        self.count = ours.steps + 1
        self.added += 1
        self.given = self.count
        self.update(ours, loader, step)
        self.last = self.count

    def update(self, ours: Any, loader: Any, step: Step) -> None:
        self.inner = self.number = self.count
        if ours.steps > 3:
            self.some = self.count
        batch = loader.next()
        self.late = step(*batch) + self.inner


def test_attributes_that_a_method_sets_first_which_each_iteration_calls(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        policy = Policy()
        for _ in ours.iterations(9):
            policy.train(ours, loader, step, policy.given)

    assert told(script, capsys) == {f"policy.{name}" for name in ("added", "given", "some", "last", "late")}


def test_attributes_that_a_method_sets_which_an_iteration_may_not_call(capsys: pytest.CaptureFixture[str]) -> None:
    """Or not first."""

    class Sets:
        """And a generator."""

        count = number = given = 0.0

        def train(self, loader: Any, step: Step, name: str) -> None:
            vars(self)[name] = step(*loader.next())

        def counts(self, ours: Any, loader: Any, step: Step) -> None:
            self.count = ours.steps
            self.train(loader, step, "given")

        def goes_on(self, ours: Any, loader: Any, step: Step) -> Iterator[float]:
            self.number = ours.steps + 1.0
            while True:
                self.number = ours.steps + self.number
                yield step(*loader.next())

    def under_a_condition(ours: Any, loader: Any, step: Step) -> None:
        sets = Sets()
        for iteration in ours.iterations(9):
            if iteration % 2 == 0:
                sets.counts(ours, loader, step)
            else:
                sets.train(loader, step, "given")

    def after_another(ours: Any, loader: Any, step: Step) -> None:
        sets = Sets()
        for _ in ours.iterations(9):
            print(vars(sets))
            sets.counts(ours, loader, step)

    def by_a_generator(ours: Any, loader: Any, step: Step) -> None:
        sets = Sets()
        going = sets.goes_on(ours, loader, step)
        for _ in ours.iterations(9):
            next(going)

    assert told(under_a_condition, capsys) >= {"sets.count"}
    assert told(after_another, capsys) >= {"sets.count"}
    assert told(by_a_generator, capsys) >= {"sets.number"}


def test_a_loop_around_the_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        count = 1
        for _ in range(1):
            count = 0
            for _ in ours.epochs(2):
                for x, y in loader:
                    step(x, y)
                    count += 1

    assert told(script, capsys) == {"count"}


def test_epochs_asked_for_by_next(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Step) -> None:
        kept = SimpleNamespace(alpha=0.0)
        epochs = ours.epochs(2)
        epoch = next(epochs, None)
        while epoch is not None:
            kept.alpha = epoch + 1
            for x, y in loader:
                step(x, y)
            epoch = next(epochs, None)

    assert told(script, capsys) == {"kept.alpha"}


def test_a_script_all_of_which_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``pilot doctor``'s is: it has no variables of its own."""
    monkeypatch.setattr(refusal, "is_of_a_library", lambda _filename: True)

    def script(ours: Any, loader: Any, step: Step) -> None:
        count = 0
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                count += 1

    assert told(script, capsys) == set()


def told(script: Callable[[Any, Any, Step], None], capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The names in what a script is told of values of its own."""
    its = [line.partition("change in its loop (")[2].partition(")")[0] for line in lines(script, capsys)]
    return {name for names in its for name in names.split(", ")}


def lines(script: Callable[[Any, Any, Step], None], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a script is told; it is called with a session, its loader and a function that trains on a batch, and returns
    the loss.
    """
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)
        return loss.item()

    script(ours, loader, step)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]
