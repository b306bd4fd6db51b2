"""A script is told of lists, arrays and numbers of its dataset that an epoch changes from what they were in the one
before: a node that joins, or a run that resumes, has them as they are before the loop.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import ConcatDataset, Dataset, Subset

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Changed = Callable[["Items", int], object]


class Growing:
    """A transform that becomes stronger."""

    def __init__(self) -> None:
        self.by = 0.0

    def grow(self) -> None:
        self.by += 0.1


class Items(Dataset[Any]):
    """With what scripts change in their datasets."""

    def __init__(self) -> None:
        self.items = [DATA[index] for index in range(len(DATA))]
        self.targets = list(range(len(DATA)))
        self.samples = [(f"{index}.png", index) for index in range(len(DATA))]
        self.pairs = [[index, 0] for index in range(len(DATA))]
        self.weights, self.done = {"w": [1.0] * len(DATA)}, set[int]()
        self.maps, self.recent_pairs = [torch.ones(2) for _ in DATA], deque(range(len(DATA)))
        self.order = np.arange(len(DATA))
        self.rows = torch.arange(2 * len(DATA)).reshape(-1, 2)
        self.cache: list[Any] = [None] * len(DATA)
        self.read, self.recent = list[int](), list(range(len(DATA)))
        self.paths: list[Any] = [f"{index}.png" for index in range(len(DATA))]
        self.part: Any = None
        self.read_through = list(range(len(DATA)))
        self.stage, self.epoch, self.noise = 0, 0, random.Random(0)
        self.x, self.base, self.pair = torch.ones(3).double(), torch.ones(3).double(), (torch.ones(3), torch.ones(3))
        self.transforms = [SimpleNamespace(scale=1.0)]
        self.growing = SimpleNamespace(transforms=[Growing()])

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.cache[index] = self.paths[index] = self.items[index][0]
        self.read_through[index] = self.read_through[index]
        self.recent.remove(index)
        self.recent.append(index)
        self.read.append(index)
        x, y = self.items[index]
        return x + 0.1 * self.stage, y

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)

    def relabel(self) -> None:
        for index, (name, label) in enumerate(self.samples):
            self.samples[index] = name, label + 1

    def draw(self) -> None:
        """Negative samples, as collaborative filtering does."""
        self.pairs = [[index, random.randrange(9)] for index in range(len(DATA))]

    def draw_first(self) -> None:
        self.drawn = [[index, random.randrange(9)] for index in range(len(DATA))]

    def harder(self) -> None:
        self.stage += 1

    def count(self, loader: Any) -> None:
        loader.dataset.stage += 1

    def fade(self) -> None:
        self.x.mul_(0.9)

    def at(self, epoch: int) -> None:
        self.x = self.base.clone()
        self.stage = 0
        for _ in range(epoch):
            self.x *= 0.9
            self.stage += 1


class Anew(Items):
    """It begins each epoch with the same."""

    def anew(self, epoch: int) -> None:
        if self.epoch != epoch:
            self.epoch = epoch
        self.order[:] = np.random.permutation(len(DATA))
        self.items.sort(key=lambda item: item[1].item())
        random.shuffle(self.items)
        kept = self.targets.copy()
        self.targets.clear()
        self.targets.extend(random.sample(kept, len(kept)))
        for index, one in enumerate(random.sample(self.samples, len(DATA))):
            self.samples[index] = one


class Swapped(Items):
    """It is shuffled by hand."""

    def swap(self) -> None:
        for i in range(len(DATA)):
            j = random.randrange(len(DATA))
            self.items[i], self.items[j] = self.items[j], self.items[i]


def told(
    capsys: pytest.CaptureFixture[str],
    *,
    begins: Changed = lambda _data, _epoch: None,
    ends: Changed = lambda _data, _epoch: None,
    part: Callable[[Items], Any] = lambda data: data,
    restores: bool = False,
    kind: type[Items] = Items,
) -> str:
    """The names that a script is told of."""
    model, data = fresh(mlp), kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    if restores:
        ours.on_restore(lambda: None)
    loader = ours.loader(part(data), global_batch_size=BATCH, shuffle=False)
    for epoch in ours.epochs(3):
        begins(data, epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
        ends(data, epoch)
    lines = capsys.readouterr().err.splitlines()
    assert all("test_notes_of_dataset_changes.py, line " in line for line in lines)
    assert len(lines) <= 1, lines
    return "".join(line.partition("in the epoch before (")[2].partition(")")[0] for line in lines)


def shuffled(name: str) -> Changed:
    return lambda data, _epoch: random.shuffle(getattr(data, name))


@pytest.mark.parametrize(
    ("begins", "names"),
    [
        (shuffled("items"), "dataset.items"),
        (shuffled("targets"), "dataset.targets"),
        (lambda data, _epoch: data.noise.shuffle(data.targets), "dataset.targets"),
        (shuffled("read_through"), "dataset.read_through"),
        (lambda data, _epoch: np.random.shuffle(data.items), "dataset.items"),
        (lambda data, _epoch: data.on_epoch_end(), "dataset.order"),
        (lambda data, _epoch: np.random.shuffle(data.rows.numpy()), "dataset.rows"),
    ],
)
def test_shuffled_in_place_at_an_epochs_beginning(
    begins: Changed, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, begins=begins) == names
    assert told(capsys, begins=begins, restores=True) == ""


def test_shuffled_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, begins=lambda data, _epoch: data.swap(), kind=Swapped) == "dataset.items"  # type: ignore[attr-defined]  # a method of this kind


def labelled_anew(data: Items, _epoch: int) -> None:
    data.targets = [label + 1 for label in data.targets]


@pytest.mark.parametrize(
    ("ends", "names"),
    [
        (shuffled("items"), "dataset.items"),
        (labelled_anew, "dataset.targets"),
        (lambda data, _epoch: data.relabel(), "dataset.samples"),
        (lambda data, _epoch: data.targets.reverse(), "dataset.targets"),
    ],
)
def test_changed_at_an_epochs_end(ends: Changed, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, ends=ends) == names
    assert told(capsys, ends=ends, restores=True) == ""


class Noise:
    """A transform, which notes what it has drawn last."""

    def __init__(self) -> None:
        self.strength, self.last, self.on = 0.0, 0.0, True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Adds it."""
        self.draw()
        return x + self.strength * self.last

    def draw(self) -> None:
        """A number."""
        self.last = random.random()


class Noisy(Items):
    """It has transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.noises = [Noise()]

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return self.noises[0](x), y

    def evaluate(self) -> None:
        """Without them, and as it was before."""
        self.noises[0].on = False
        self.noises[0](torch.zeros(1))
        self.noises[0].on = True


def test_numbers_of_a_transform_at_an_epochs_end(capsys: pytest.CaptureFixture[str]) -> None:
    def stronger(data: Any, _epoch: int) -> None:
        data.noises[0].strength += 0.1

    assert told(capsys, ends=stronger, kind=Noisy) == "dataset.noises[0].strength"
    assert told(capsys, ends=stronger, kind=Noisy, restores=True) == ""
    assert told(capsys, ends=lambda data, _epoch: data.evaluate(), kind=Noisy) == ""  # type: ignore[attr-defined]  # a method of this kind


@pytest.mark.parametrize(
    "part", [lambda data: Subset(data, range(len(data))), lambda data: ConcatDataset([data])], ids=["part", "concat"]
)
def test_in_a_part_of_it(part: Callable[[Items], Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, begins=shuffled("items"), part=part).endswith(".items")


def test_the_indices_of_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    def half(data: Items) -> Any:
        data.part = Subset(data, list(range(len(DATA))))
        return data.part

    assert told(capsys, begins=lambda data, _epoch: random.shuffle(data.part.indices), part=half) == "dataset.indices"


def made_anew(data: Items, epoch: int) -> None:
    data.order = np.random.permutation(len(DATA))
    data.targets = random.Random(epoch).sample(range(len(DATA)), len(DATA))
    data.rows = data.rows[torch.randperm(len(DATA))]
    data.stage = epoch


def read_through(data: Items, epoch: int) -> None:
    data.read = [*data.read, epoch]
    data.cache[0] = data.cache[1]


def test_what_each_beginning_makes_anew_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, begins=made_anew) == ""
    assert told(capsys, begins=lambda data, epoch: data.anew(epoch), kind=Anew) == ""  # type: ignore[attr-defined]  # a method of this kind


def test_what_a_dataset_keeps_of_what_it_reads_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys) == ""
    assert told(capsys, begins=read_through) == ""
    assert told(capsys, ends=read_through) == ""


def script(capsys: pytest.CaptureFixture[str], epoch_begins: str, kind: type[Items]) -> str:
    """A loop with these lines at an epoch's beginning."""
    model, data = fresh(mlp), kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(data, global_batch_size=BATCH)
    text = f"""
for epoch in ours.epochs(3):
    {epoch_begins}
    for x, y in loader:
        step(x, y)
"""

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)

    names = {"ours": ours, "loader": loader, "data": data, "step": step, "random": random}
    exec(compile(text, __file__, "exec"), {"__name__": "script", "__file__": __file__, **names})
    lines = capsys.readouterr().err.splitlines()
    return "".join(line.partition("in the epoch before (")[2].partition(")")[0] for line in lines)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("data.stage += 1", "dataset.stage"),
        ("data.harder()", "dataset.stage"),
        ("loader.dataset.harder()", "dataset.stage"),
        ("data.count(loader)", "dataset.stage"),
        ("for one in [data.harder]: one()", "dataset.stage"),
        ("setattr(data, 'stage', data.stage + 1)", "dataset.stage"),
        ("data.x.mul_(0.9)", "dataset.x"),
        ("data.x = data.x * 0.9", "dataset.x"),
        ("data.x[:2] *= 0.9", "dataset.x"),
        ("data.pair[0].mul_(0.9)", "dataset.pair"),
        ("data.fade()", "dataset.x"),
        ("data.transforms[0].scale *= 0.9", "dataset.transforms[0].scale"),
        ("data.growing.transforms[0].grow()", "dataset.growing.transforms[0].by"),
        ("data.growing.transforms[-1].by = 0.1 * epoch", ""),
        ("for one in data.growing.transforms: one.grow()", "dataset.growing.transforms[0].by"),
        ("data.stage = epoch", ""),
        ("data.x = data.base * 0.9 ** epoch", ""),
        ("data.x.copy_(data.base).mul_(0.9 ** epoch)", ""),
        ("data.x[:] = data.base; data.fade()", ""),
        ("data.x = data.x.float()", ""),
        ("data.stage = 0; data.harder()", ""),
        ("data.transforms[0].scale = 0.9 ** epoch", ""),
        ("data.at(epoch)", ""),
        ("data.anew(epoch)", ""),
        ("if epoch == 1: data.targets = [label + 1 for label in data.targets]", "dataset.targets"),
        ("if epoch >= 1: data.targets = [label + 1 for label in range(len(data))]", ""),
        ("data.targets = [label + epoch for label in range(len(data))]", ""),
        ("data.items[:] = random.sample(data.items, len(data))", ""),
    ],
)
def test_a_loop_in_one_function(line: str, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert script(capsys, line, Anew if "anew" in line else Items) == names


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda data, _: data.weights["w"].__setitem__(2, 0.5), "dataset.weights['w'][2]"),
        (lambda data, epoch: data.done.add(epoch), "dataset.done"),
        (lambda data, _: data.maps[3].mul_(0.9), "dataset.maps[3]"),
        (lambda data, epoch: data.recent_pairs.__setitem__(1, 9 + epoch), "dataset.recent_pairs[1]"),
        (lambda data, epoch: data.pairs[4].__setitem__(1, 1 + epoch), "dataset.pairs[4][1]"),
    ],
)
def test_what_its_lists_and_dicts_hold(change: Changed, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, ends=change) == name


class Reading(Items):
    """It keeps much of what it reads, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.counts, self.seen = dict[int, Any](), {"reads": 0}, set[int]()
        self.transforms_of = [Counting()]
        self.generators = [random.Random(0)]

    def __getitem__(self, index: int) -> Any:
        self.kept.setdefault(index, [index])[0] += 1
        self.count_one(index)
        x, y = super().__getitem__(index)
        return self.transforms_of[0](x) + 0 * self.generators[0].random(), y

    def count_one(self, index: int) -> None:
        self.counts["reads"] += 1
        self.seen.add(index)


class Counting:
    def __init__(self) -> None:
        self.calls = [0]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        return x


def test_what_reading_changes_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def evaluates(data: Items, _epoch: int) -> None:
        for index in range(len(data)):
            assert len(data[index]) == 2

    assert told(capsys, ends=evaluates, kind=Reading) == ""


def test_samples_that_an_epochs_end_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, ends=lambda data, _epoch: data.draw()) == "dataset.pairs"


def test_samples_that_some_epochs_beginnings_draw(capsys: pytest.CaptureFixture[str]) -> None:
    def in_some(data: Items, epoch: int) -> None:
        if epoch % 2 == 0:
            data.draw_first()

    def in_each(data: Items, _epoch: int) -> None:
        data.draw_first()

    assert told(capsys, begins=in_some) == "dataset.drawn"
    assert told(capsys, begins=in_each) == ""
