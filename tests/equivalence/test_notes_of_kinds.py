"""Values of rare kinds in a script's variables and its model's attributes: they end no session, and a script is told of
those that change; see :mod:`tests.equivalence.test_notes`.
"""

from __future__ import annotations

import contextvars
import csv
import ctypes
import functools
import io
import multiprocessing
import queue
import threading
import time
from array import array
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.keeping import changing, said
from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, fresh, mlp, session
from tests.equivalence.rows import on_ranks
from tests.equivalence.test_model_notes import Keeping, kept_by


class Own(torch.Tensor):
    """A class of the script's."""


class Squares(nn.Module):
    """A loss."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Sums."""
        return (a - b).pow(2).sum()


def memoised() -> Any:
    """Counts its calls."""
    calls = [0]

    @functools.lru_cache
    def call(_: int) -> int:
        calls[0] += 1
        return calls[0]

    return call


def own() -> torch.Tensor:
    """A tensor of the script's class."""
    return torch.ones(2).as_subclass(Own)


def eye() -> torch.Tensor:
    """A dense matrix."""
    return torch.eye(3)


def settings() -> ModuleType:
    """A configuration in a module's form, which nobody can import."""
    kept = ModuleType("settings")
    kept.rate = 1.0  # type: ignore[attr-defined]  # a configuration's
    return kept


def text() -> io.TextIOWrapper:
    """A file to read."""
    return io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"line\n" * 100)))


def nested() -> torch.Tensor:
    """Two rows."""
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def jagged() -> torch.Tensor:
    """The same, of torch's newer class."""
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def eighths() -> torch.Tensor:
    """Numbers of 8 bits."""
    return torch.ones(3).to(torch.float8_e4m3fn)


SPARSE = [
    lambda: eye().to_sparse(),
    lambda: eye().to_sparse_csr(),
    lambda: eye().to_sparse_csc(),
    lambda: eye().to_sparse_bsr((1, 1)),
    lambda: eye().to_mkldnn(),
]
TENSORS = [*SPARSE, own, nested, jagged, eighths]


@pytest.mark.parametrize(
    "make",
    [
        *TENSORS,
        lambda: [eye().to_sparse(), nested()],
        lambda: torch.jit.script(nn.Linear(3, 1)),
        lambda: torch.jit.script(nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1))),
        lambda: torch.jit.trace(nn.Linear(3, 1), torch.ones(2, 3)),
        lambda: torch.jit.freeze(torch.jit.script(nn.Linear(3, 1)).eval()),
        lambda: SimpleNamespace(criterion=torch.jit.script(Squares())),
        lambda: nn.LazyLinear(1),
        lambda: nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d()),
        memoised,
        lambda: multiprocessing.Value("d", 0.0),
        lambda: contextvars.ContextVar("its"),
        lambda: list(map(float, range(500))),
        queue.Queue,
        lambda: ChainMap({}),
        lambda: np.array([1, None, "text"]),
        lambda: np.ma.masked_array([1.0], [True]),
        lambda: csr_array(np.eye(2)),
        settings,
        text,
    ],
)
def test_values_that_stay_the_same_are_not_told_of(make: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        kept = make()
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
        assert kept is not None

    assert said(script, capsys) == []


def in_context() -> contextvars.ContextVar[int]:
    """With a value."""
    variable = contextvars.ContextVar[int]("its")
    variable.set(0)
    return variable


def of_thread() -> Any:
    """With a number."""
    kept = threading.local()
    kept.count = 0
    return kept


@torch.no_grad()
def add(kept: Any) -> None:
    """To a number of it."""
    if isinstance(kept, nn.Module):
        next(kept.parameters()).add_(1)
    elif kept.layout in {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr} or kept.is_nested:
        kept.values().add_(1)
    elif kept.layout is torch.sparse_coo:
        kept._values().add_(1)
    else:
        kept.copy_(kept.float() + 1)


def increase(kept: Any, key: Any) -> None:
    """A number of it."""
    kept[key] += 1


@pytest.mark.parametrize(
    ("make", "change", "name"),
    [
        *((make, add, "kept") for make in [*SPARSE[:4], own, nested, jagged, eighths]),
        (lambda: multiprocessing.Value("d", 0.0), lambda kept: setattr(kept, "value", kept.value + 1), "kept"),
        (lambda: multiprocessing.Value("i", 0, lock=False), lambda kept: setattr(kept, "value", 1), "kept"),
        (lambda: multiprocessing.Array("i", 2), lambda kept: increase(kept, 1), "kept"),
        (lambda: (ctypes.c_int * 2)(), lambda kept: increase(kept, 1), "kept"),
        (lambda: array("d", [0.0]), lambda kept: increase(kept, 0), "kept"),
        (in_context, lambda kept: kept.set(kept.get() + 1), "kept.get()"),
        (of_thread, lambda kept: setattr(kept, "count", kept.count + 1), "kept.count"),
        (memoised, lambda kept: kept(kept.cache_info().currsize), "kept.calls[0]"),
        (lambda: UserDict(a=1), lambda kept: increase(kept, "a"), "kept.data['a']"),
        (lambda: UserList([1.0]), lambda kept: increase(kept, 0), "kept.data[0]"),
        (lambda: ChainMap({"a": 1}), lambda kept: increase(kept, "a"), "kept.maps[0]['a']"),
        (lambda: WeakKeyDictionary({Own: 1}), lambda kept: increase(kept, Own), "kept.data['ReferenceType 0']"),
        (queue.Queue, lambda kept: kept.put(1), "kept.queue"),
        (lambda: np.ma.masked_array([1.0]), lambda kept: increase(kept, 0), "kept"),
        (lambda: np.ma.masked_array([1.0, 2.0]), lambda kept: kept.__setitem__(0, np.ma.masked), "kept"),
        (lambda: np.matrix([1.0]), lambda kept: increase(kept, (0, 0)), "kept"),
        (lambda: np.array([1, None]), lambda kept: increase(kept, 0), "kept[0]"),
        (lambda: csr_array(np.eye(2)), lambda kept: increase(kept.data, 0), "kept.data"),
        (lambda: csr_array(np.eye(2)).tolil(), lambda kept: increase(kept, (0, 0)), "kept.data[0][0]"),
        (settings, lambda kept: setattr(kept, "rate", kept.rate * 0.5), "kept.rate"),
        (text, next, "kept"),
        (lambda: csv.reader(map(str, range(100))), next, "kept"),
        (lambda: csv.DictReader(map(str, range(100)), ["x"]), next, "kept"),
        (lambda: [0.0] * 150, lambda kept: increase(kept, 120), "kept"),
        (lambda: dict.fromkeys(range(150), 0), lambda kept: increase(kept, 120), "kept"),
        (lambda: OrderedDict.fromkeys(range(9)), lambda kept: kept.move_to_end(next(iter(kept))), "kept"),
        (lambda: SimpleNamespace(at=Path("a")), lambda kept: setattr(kept, "at", kept.at / "b"), "kept.at"),
        (lambda: SimpleNamespace(of=range(1)), lambda kept: setattr(kept, "of", range(kept.of.stop + 1)), "kept.of"),
        (
            lambda: SimpleNamespace(of=frozenset()),
            lambda kept: setattr(kept, "of", kept.of | {len(kept.of)}),
            "kept.of",
        ),
        (lambda: SimpleNamespace(type=torch.float32), lambda kept: setattr(kept, "type", torch.float64), "kept.type"),
        (lambda: {"a": {"b": [1.0]}}, lambda kept: increase(kept["a"]["b"], 0), "kept['a']['b'][0]"),
        (lambda: [[[1.0]]], lambda kept: increase(kept[0][0], 0), "kept[0][0][0]"),
        (lambda: {"a": [({"b": 1.0},)]}, lambda kept: increase(kept["a"][0][0], "b"), "kept['a'][0][0]['b']"),
    ],
)
def test_values_that_change_are_told_of(
    make: Callable[[], Any], change: Callable[[Any], Any], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = said(changing(make, change), capsys)
    assert f"change in its loop ({name})" in line


def test_what_a_defaultdict_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    asked = changing(lambda: defaultdict(list), lambda kept: kept[len(kept)])
    filled = changing(lambda: defaultdict(list), lambda kept: kept[len(kept)].append(1))
    assert said(asked, capsys) == []
    (line,) = said(filled, capsys)
    assert "change in its loop (kept" in line


def test_a_queue_that_is_always_emptied_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def through(kept: queue.Queue[int]) -> None:
        kept.put(1)
        kept.get()

    assert said(changing(queue.Queue, through), capsys) == []


def test_a_scripted_module_that_changes_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        kept = torch.jit.script(nn.Linear(3, 1))
        for _ in ours.epochs(3):
            for x, y in loader:
                step(x, y)
            add(kept)

    (line,) = said(script, capsys)
    assert "change in its loop (kept.weight)" in line


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("make", TENSORS)
def test_tensors_in_a_models_attributes_that_stay_the_same(
    make: Callable[[], torch.Tensor], many: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kept_by(lambda: [make()] if many else make(), lambda _: None, capsys) == []


@pytest.mark.parametrize("make", SPARSE[:4])
def test_sparse_tensors_in_a_models_attributes_that_change(
    make: Callable[[], torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    told, *_ = kept_by(make, lambda model: add(model.kept), capsys)
    assert "change in its loop (model.kept)" in told


def scale_up(model: Any) -> None:
    """In forward."""
    model.scale = (model.scale.float() + 1).to(model.scale.dtype)


@pytest.mark.parametrize("make", TENSORS)
def test_nodes_join_where_a_model_has_such_tensors(make: Callable[[], torch.Tensor]) -> None:
    def script() -> list[float]:
        keeping = Keeping([make(), eighths()], scale_up)
        keeping[0], keeping.scale = fresh(mlp), eighths()
        optimizer = torch.optim.SGD(keeping.parameters(), lr=0.05)
        ours = session(keeping, optimizer)
        loader = ours.loader(DATA, global_batch_size=BATCH)
        for _ in ours.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                loss = mse_loss(keeping(x), y)
                loss.backward()
                ours.step(loss)
        numbers: list[float] = keeping.scale.tolist()
        return numbers

    (alone,) = on_ranks(script, 1, [])
    assert on_ranks(script, 1, GROWS_AND_SHRINKS) == [alone] * 2


def test_of_many_values_those_that_the_steps_use_are_named_first(capsys: pytest.CaptureFixture[str]) -> None:
    meters = [[0.0] for _ in range(6)]
    options = {"scale": 1.0}

    def script(ours: Any, loader: Any, step: Any) -> None:
        a, b, c, d, e, f = meters
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y, 0 * options["scale"])
                for meter in (a, b, c, d, e, f):
                    meter[0] += x.mean().item()
                options["scale"] /= 2

    (line,) = said(script, capsys)
    assert "in its loop (options['scale'], a[0], " in line


@pytest.mark.parametrize("clock", [time.time, time.monotonic, time.perf_counter])
def test_times_are_not_told_of_and_how_long_something_took_is(
    clock: Callable[[], float], capsys: pytest.CaptureFixture[str]
) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        timer, began, took = SimpleNamespace(last=clock()), clock(), 0.0
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                now = clock()
                took, began = took + now - began, now
                timer.last = clock()

    def added(ours: Any, loader: Any, step: Any) -> None:
        began, took = clock(), 0.0
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                now = clock()
                took += now - began
                began = now

    for one in (script, added):
        (line,) = said(one, capsys)
        assert "in its loop (took)" in line


def test_the_time_since_the_batch_before_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        timer, before = SimpleNamespace(dt=0.0), time.monotonic()
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                now = time.monotonic()
                timer.dt, before = now - before, now
            print(timer.dt)

    assert said(script, capsys) == []


def test_of_many_values_each_is_named_once_and_a_list_of_tensors_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        loop = SimpleNamespace(averages=[torch.zeros(1) for _ in range(7)], number=0, seen=0.0)
        same = loop
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y, 0 * loop.number)
                for one in same.averages:
                    one += 1
                same.number += 1
                same.seen += 0.5

    (line,) = said(script, capsys)
    names = line.partition("in its loop (")[2].partition(")")[0]
    assert names == "loop.number, loop.averages[...], loop.seen"
