"""What a script is told because it may matter when nodes come and go, and cannot be refused: it may not matter."""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import qmc
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset, default_collate

from tests.equivalence.keeping import (
    Best,
    Focal,
    Nested,
    OfNumbers,
    OwnSGD,
    Pool,
    Stopper,
    begun,
    changing,
    counting,
    halving,
    said,
    with_a_default,
)
from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session, train
from tests.equivalence.rows import on_ranks


@pytest.mark.parametrize("first", [False, True])
def test_a_second_loader_in_the_step(first: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        unlabelled = DataLoader(TensorDataset(DATA.tensors[0]), batch_size=2)
        for _ in ours.epochs(2):
            pairs = zip(unlabelled, loader, strict=False) if first else zip(loader, unlabelled, strict=False)
            for pair in pairs:
                step(*pair[first])
            ours.stop()

    (line,) = said(script, capsys)
    assert f"{'test_notes' if first else 'keeping'}.py, line " in line
    assert "DataLoader of its own, too: each rank takes its own from the whole" in line


def test_loaders_for_other_purposes_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        validation = DataLoader(DATA, batch_size=2)
        list(validation)
        for _ in ours.epochs(2):
            for x, y in loader:
                with torch.no_grad():
                    list(validation)
                step(x, y)
                list(validation)
                ours.evaluate(DATA, lambda _: {"one": 1.0})
            list(validation)

    assert said(script, capsys) == []


def test_an_evaluation_after_a_pass_was_left_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        validation = DataLoader(DATA, batch_size=2)
        for _ in ours.epochs(2):
            for x, y in loader:
                if ours.steps == 3:
                    break
                step(x, y)
            list(validation)
            break

    assert said(script, capsys) == []


def test_a_streams_source_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    stream = ours.stream(DataLoader(DATA, batch_size=None), global_batch_size=BATCH)
    for _ in ours.epochs(2):
        for x, y in stream:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)

    assert "DataLoader of its own" not in capsys.readouterr().err


def test_what_a_script_keeps_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        stopper, pool, count, best, losses = Stopper(), Pool(), 0, None, []
        for epoch in ours.epochs(2):
            for x, y in loader:
                count += 1
                step(x, y)
                pool.kept.append(x)
                pool.mean += 1
            losses.append(epoch)
            stopper.counter += 1
            best = epoch if best is None else best + epoch

    by_step, pools, by_epoch = said(script, capsys)
    assert "(count)" in by_step
    assert "(pool.kept, pool.mean)" in pools
    assert "(stopper.counter, best, losses)" in by_epoch
    assert "session.state or session.track" in by_epoch


@pytest.mark.parametrize(
    ("make", "change", "name"),
    [
        (lambda: argparse.Namespace(rate=1.0), lambda kept: setattr(kept, "rate", kept.rate / 2), "kept.rate"),
        (lambda: SimpleNamespace(seen=0), lambda kept: setattr(kept, "seen", 1 + kept.seen), "kept.seen"),
        (OfNumbers, lambda kept: setattr(kept, "rate", kept.rate / 2), "kept.rate"),
        (Best, lambda kept: setattr(kept, "measure", kept.measure + 1), "kept.measure"),
        (
            lambda: SimpleNamespace(callbacks=[Best()]),
            lambda kept: setattr(kept.callbacks[0], "measure", kept.callbacks[0].measure + 1),
            "kept.callbacks[0].measure",
        ),
        (lambda: defaultdict(float, loss=0.0), lambda kept: kept.update(loss=kept["loss"] + 1), "kept['loss']"),
        (lambda: deque([0.0], maxlen=1), lambda kept: kept.append(kept[0] + 1), "kept[0]"),
        (lambda: ([0],), lambda kept: kept[0].append(0), "kept[0]"),
        (lambda: np.zeros(2), lambda kept: kept.__iadd__(1), "kept"),
        (lambda: np.zeros(1 << 20), lambda kept: kept.__iadd__(1), "kept"),
        (lambda: torch.zeros(2), lambda kept: kept.add_(1), "kept"),
        (lambda: torch.zeros(2), lambda kept: kept.data.add_(1), "kept"),
        (lambda: torch.zeros(1 << 20), lambda kept: kept.data.add_(1), "kept"),
        (lambda: torch.zeros(1 << 20), lambda kept: kept[3].add_(1), "kept"),
        (lambda: [torch.zeros(2)], lambda kept: setattr(kept[0], "data", torch.ones(2)), "kept[0]"),
        (lambda: [torch.nn.Parameter(torch.zeros(2), False)], lambda kept: kept[0].add_(1), "kept[0]"),
        (lambda: bytearray(1), lambda kept: kept.__setitem__(0, kept[0] + 1), "kept"),
        (
            lambda: {(1, 2): Fraction(0)},
            lambda kept: kept.update({(1, 2): kept[1, 2] + Fraction(1, 3)}),
            "kept['tuple 0']",
        ),
        (lambda: SimpleNamespace(phase=0j), lambda kept: setattr(kept, "phase", kept.phase + 1j), "kept.phase"),
        (lambda: np.random.default_rng(0), lambda kept: kept.random(), "kept"),
        (lambda: np.random.RandomState(0), lambda kept: kept.rand(), "kept"),
        (lambda: torch.quasirandom.SobolEngine(1), lambda kept: kept.draw(1), "kept"),
        (lambda: qmc.Sobol(1, seed=0), lambda kept: kept.random(1), "kept"),
        (lambda: torch.Generator().manual_seed(0), lambda kept: torch.rand(1, generator=kept), "kept"),
        (lambda: random.Random(0), lambda kept: kept.random(), "kept"),
        (itertools.count, next, "kept"),
        (lambda: itertools.cycle([0.1, 1.0]), next, "kept"),
        (lambda: iter([0.1] * len(DATA)), next, "kept"),
        (lambda: zip(range(len(DATA)), itertools.count(), strict=False), next, "kept"),
        (lambda: enumerate(itertools.repeat(1.0)), next, "kept"),
        (with_a_default, lambda kept: kept(), "kept.defaults[0][0]"),
        (
            lambda: functools.partial(mse_loss, reduction="sum"),
            lambda kept: kept.keywords.update(reduction="mean"),
            "kept.keywords['reduction']",
        ),
        (torch.nn.TripletMarginLoss, lambda kept: setattr(kept, "margin", kept.margin * 1.1), "kept.margin"),
        (
            lambda: torch.nn.Sequential(Focal()),
            lambda kept: setattr(kept[0], "gamma", kept[0].gamma + 1),
            "kept.0.gamma",
        ),
        (
            lambda: torch.distributions.Normal(torch.zeros(2), torch.ones(2)),
            lambda kept: setattr(kept, "loc", kept.loc + 1),
            "kept.loc",
        ),
        (counting, lambda kept: kept(), "kept.count"),
        (lambda: Best().improve, lambda kept: kept(), "kept.measure"),
        (lambda: [Best().improve], lambda kept: kept[0](), "kept[0].measure"),
        (lambda: partial(Best().improve), lambda kept: kept(), "kept.func.measure"),
        (Nested, lambda kept: kept.loss.weight.best.improve(), "kept.loss.weight.best.measure"),
        (
            lambda: {"loss": {"teacher": {"weight": 1.0}}},
            lambda kept: kept["loss"]["teacher"].update(weight=0.5),
            "kept['loss']['teacher']['weight']",
        ),
        (halving, next, "kept"),
        (begun, next, "kept.rate"),
    ],
)
def test_where_a_script_keeps_what_it_changes(
    make: Callable[[], Any], change: Callable[[Any], Any], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = said(changing(make, change), capsys)
    assert f"change in its loop ({name})" in line


def test_a_module_that_changes_between_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    """One that is changed from step to step is refused."""

    def script(ours: Any, loader: Any, step: Any) -> None:
        teacher, fixed = fresh(mlp), fresh(mlp)
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y, mse_loss(teacher(x), fixed(x)).detach())
            teacher = copy.deepcopy(teacher)
            with torch.no_grad():
                teacher[0].weight.add_(1)

    (line,) = said(script, capsys)
    assert "change in its loop (teacher.0.weight)" in line


@pytest.mark.parametrize("make", [mlp, Stopper])
def test_what_is_made_at_an_epochs_end_where_there_was_nothing(
    make: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A model's last teacher, or what it has learned of the task before (EWC)."""

    def script(ours: Any, loader: Any, step: Any) -> None:
        before = fixed = None
        for _ in ours.epochs(2):
            made = make()
            for x, y in loader:
                step(x, y, 0.0 if before is fixed else 0.1)
            before = made

    (line,) = said(script, capsys)
    assert "change in its loop (before)" in line


class Transitions:
    """The last two of them."""

    def __init__(self) -> None:
        self.kept = deque([(torch.zeros(1),), (torch.ones(1),)], maxlen=2)


def test_a_memory_that_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        memory = Transitions()
        for _ in ours.epochs(1):
            for x, y in loader:
                memory.kept.append((x.mean(),))
                step(x, y)

    (line,) = said(script, capsys)
    assert "change in its loop (memory.kept[0][0]" in line


def test_tensors_and_arrays_that_one_turn_leaves_to_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        mean, rates, hidden, total = torch.zeros(2), np.ones(2), None, 0.0
        x, loss, fixed = torch.zeros(1), torch.zeros(1), torch.ones(1)
        for _ in ours.epochs(1):
            for x, y in loader:
                loss = x.mean() * fixed
                mean = 0.9 * mean + 0.1 * loss
                rates = rates / 2
                total += loss
                hidden = x if hidden is None else hidden + 1
                step(x, y)

    lines = said(script, capsys)
    assert "change in its loop (mean, rates, total, hidden)" in lines[0]
    assert len(lines) == 1


class Iterators:
    """Which a script asks for the next task."""

    def __init__(self) -> None:
        self.cycled, self.listed = itertools.cycle([0.0, 1.0]), iter([1.0] * 99)
        self.zipped, self.counted = zip([1.0] * 99, itertools.repeat(2), strict=False), enumerate([0.0] * 99)
        self.mapped, self.summed = map(float, "0" * 99), itertools.accumulate([0.0] * 99)
        self.taken = itertools.takewhile(bool, [1.0] * 99)
        self.padded = itertools.zip_longest([1.0], [1.0] * 99, fillvalue=0.0)
        self.endless, self.left = itertools.repeat(1.0), iter([1.0])

    def next(self) -> float:
        pairs = next(self.zipped)[0] + next(self.counted)[1] + next(self.padded)[1] + next(self.taken)
        return pairs + sum(map(next, (self.cycled, self.listed, self.mapped, self.summed, self.endless)))


def test_iterators_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    """Not those over the session's loop."""

    def script(ours: Any, loader: Any, step: Any) -> None:
        tasks = Iterators()
        steps = map(str, ours.iterations(4))
        for _ in steps:
            x, y = loader.next()
            step(x, y, tasks.next())

    (line,) = said(script, capsys)
    names = ", ".join(f"tasks.{name}" for name in ("cycled", "listed", "zipped", "counted", "mapped"))
    assert f"change in its loop ({names}, ...)" in line


class Masking:
    """Makes batches, with noise of its own."""

    def __init__(self, seed: int | None = None) -> None:
        self.numbers, self.noise = seed, random.Random(seed)

    def __call__(self, samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        return (x if self.numbers is None else x * self.noise.random()), y

    def method(self, samples: list[Any]) -> Any:
        return self(samples)


def masked(samples: list[Any], by: Masking) -> Any:
    return by(samples)


def in_a_closure(seed: int | None) -> Callable[[list[Any]], Any]:
    masking = Masking(seed)
    return lambda samples: masking(samples)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(
    "made", [Masking, lambda seed: Masking(seed).method, in_a_closure, lambda seed: partial(masked, by=Masking(seed))]
)
def test_noise_of_its_own_in_collate_fn(made: Any, seed: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Which no variable of the script has."""
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    train(ours, model, optimizer, ours.loader(DATA, global_batch_size=BATCH, collate_fn=made(seed)))
    lines = capsys.readouterr().err.splitlines()
    assert [".noise), and a node that joins" in line for line in lines] == [True] * (seed is not None)


class Levels(torch.utils.data.Dataset[Any]):
    """Harder with each level, and with noise of its own."""

    def __init__(self) -> None:
        self.level, self.noise, self.read = 0, random.Random(3), []
        self.labels, self.weights = torch.zeros(len(DATA)), np.ones(len(DATA))

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        x, y = DATA[index]
        return x * self.level, y


@pytest.mark.parametrize(
    ("at_the_beginning", "after_a_step", "at_the_end", "names"),
    [
        (lambda data, epoch: setattr(data, "level", epoch), None, None, ""),
        (None, None, lambda data, _: setattr(data, "level", data.level + 1), "dataset.level"),
        (None, lambda data, _: data.noise.random(), None, "dataset.noise"),
        (None, lambda data, _: data.labels.add_(1), None, "dataset.labels"),
        (None, None, lambda data, epoch: data.weights.fill(epoch), "dataset.weights"),
        (lambda data, epoch: data.weights.fill(epoch), None, None, ""),
    ],
)
def test_what_a_dataset_keeps(
    at_the_beginning: Any, after_a_step: Any, at_the_end: Any, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = fresh(mlp), Levels()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(torch.utils.data.Subset(data, range(len(data))), global_batch_size=BATCH)
    for epoch in ours.epochs(2):
        if at_the_beginning:
            at_the_beginning(data, epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
            if after_a_step:
                after_a_step(data, epoch)
        if at_the_end:
            at_the_end(data, epoch)

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pilot: ")]
    assert [f"change in its loop ({names})" in line for line in lines] == [True] * bool(names)


def test_what_is_made_in_the_loop_kept_in_the_state_or_restored_is_not_told_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        fixed, unknown = Stopper(), math.nan
        for _ in ours.epochs(2):
            stopper, total = Stopper(), 0.0
            for i, (x, y) in enumerate(loader):
                step(x, y)
                stopper.counter += 1
                total += i
                before = ours.state.get("best", 99.0)
                ours.state["best"] = before - 1.0 / (1 + fixed.counter) + 0 * math.isnan(unknown)

    def restores(ours: Any, loader: Any, step: Any) -> None:
        count = 0
        ours.on_restore(lambda: None)
        for _ in ours.epochs(1):
            for x, y in loader:
                step(x, y)
                count += 1

    assert said(script, capsys) == []
    assert said(restores, capsys) == []


def test_what_the_loop_stores_in_the_state_and_reads_from_its_own_variable(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        best = ours.state.get("best", 99.0)
        for _ in ours.epochs(3):
            for x, y in loader:
                step(x, y)
            best = ours.state["best"] = best - 1.0

    (line,) = said(script, capsys)
    assert "(best)" in line
    assert line.endswith("session.state or session.track, from where the loop reads it")


def test_batches_tensors_of_other_kinds_and_the_sessions_own_parts_are_not_told_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        pool = Pool()
        with torch.inference_mode():
            pool.mean = torch.ones(1)
        pool.kept = [torch.eye(2).to_sparse(), torch.empty(2, device="meta")]
        x, y = next(iter(DataLoader(DATA, batch_size=2)))
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)

    model = fresh(mlp)
    optimizer = OwnSGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    groups, (group, *_) = optimizer.param_groups, optimizer.param_groups
    ours = session(model, optimizer, scheduler, schedule="step")
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)

    assert [group] == groups
    assert "keeps values" not in capsys.readouterr().err
    assert said(script, capsys) == []


def endless(loader: Any) -> Iterator[Any]:
    """The usual generator over a loader."""
    while True:
        yield from loader


def batches(loader: Any) -> Iterator[Any]:
    """The same, with something of each batch."""
    while True:
        for x, y in loader:
            yield x.double(), y


@pytest.mark.parametrize("make", [endless, batches])
def test_a_generator_over_the_loader_is_not_told_of(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        given = make(loader)
        for _ in ours.iterations(5):
            step(*next(given))

    assert said(script, capsys) == []


def test_what_shares_its_memory_with_the_model_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    model = fresh(mlp)
    state, weights = model.state_dict(), [p.data for p in model.parameters()]
    first = next(iter(weights)).numpy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)

    assert len(state) == len(weights)
    assert first.shape
    assert "keeps values" not in capsys.readouterr().err


def test_what_the_optimizer_trains_or_the_session_tracks_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    model, weights = fresh(mlp), [torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    rollouts, rewards = torch.nn.Module(), torch.zeros(3)
    rollouts.register_buffer("rewards", rewards)
    optimizer = torch.optim.SGD([*model.parameters(), *weights], lr=0.05)
    ours = session(model, optimizer)
    ours.track("rollouts", rollouts)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(2):
        rewards += 1
        for x, y in loader:
            optimizer.zero_grad()
            loss = (mse_loss(model(x), y) * torch.exp(-weights[0]) + weights[0] + weights[1] ** 2).sum()
            loss.backward()
            ours.step(loss)

    assert "keeps values" not in capsys.readouterr().err


@pytest.mark.parametrize(("nodes", "told"), [(1, 0), (2, 2)])
def test_an_epoch_without_a_full_step_is_told_of(nodes: int, told: int, capsys: pytest.CaptureFixture[str]) -> None:
    """With a batch for each node there may be one on one node, and none on two."""

    def script() -> None:
        model = fresh(mlp)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ours = session(model, optimizer)
        loader = ours.loader(DATA, batch_size=len(DATA) * 2 // 3, drop_last=True)
        for _ in ours.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                mse_loss(model(x), y).backward()
                ours.step()

    on_ranks(script, nodes, [])
    assert capsys.readouterr().err.count("has no step, so nothing is trained in it") == told
