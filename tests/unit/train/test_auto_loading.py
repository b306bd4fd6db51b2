"""``num_workers="auto"``: the same samples in the same order, with real processes, while their number changes."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, get_worker_info

import pilot.train
from pilot.core.errors import UserError
from pilot.train.data import auto_loading
from pilot.train.data.loader import DatasetBatches
from pilot.train.data.sampler import Batching, StepShare
from pilot.train.data.training_loader import Loader
from tests.unit.train.test_loader import Noisy, Walking, loader_of

CORES = 8
LOAD_S, USED_S = 1.0, 0.3
"""With four processes a batch comes every 0.25 s."""


class Clock:
    """The test's clock: loading and training advance it."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class Paced:
    """``loader`` takes ``LOAD_S`` per batch in each of its ``processes``, and prefetches as far as these allow."""

    loader: DataLoader[Any]
    processes: int
    clock: Clock
    seen: list[int]

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.seen.append(len(multiprocessing.active_children()))
            self.clock.now_s += max(0.0, LOAD_S / self.processes - USED_S) if self.processes else LOAD_S
            yield batch


class Changing(Walking):
    """Every 25th step is void, and at the 70th the group's size changes."""

    steps = 0

    def begin(self, share: StepShare, batch: int) -> None:
        before = self.cursor
        super().begin(share, batch)
        self.last = batch + 1 == len(share.batches)
        self.after, self.cursor = self.cursor, before

    def came_back(self) -> None:
        if not self.last:
            return
        self.steps += 1
        if self.steps % 25 == 0:
            self.revision += 1
            return
        self.cursor = self.after
        if self.steps == 70:
            self.size, self.revision = 3 - self.size, self.revision + 1


def taken(course: Changing, loader: Any, clock: Clock, epochs: int) -> list[tuple[StepShare, int, list[list[float]]]]:
    """The batches received, in order."""
    batches: list[tuple[StepShare, int, list[list[float]]]] = []
    for epoch in range(epochs):
        course.epoch, course.cursor = epoch, 0
        for batch in loader:
            batches.append((*course.begun[-1], [column.tolist() for column in batch]))
            clock.now_s += USED_S
    return batches


@pytest.mark.parametrize(
    ("options", "batching"),
    [({}, Batching(whole=4)), ({"persistent_workers": True, "prefetch_factor": 3}, Batching(whole=6, micro=2))],
)
def test_samples_and_their_order_are_those_of_any_fixed_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: dict[str, Any], batching: Batching
) -> None:
    """Through void steps and changes of the group's size, bit for bit."""
    clock, seen = Clock(), list[int]()
    dataset = Noisy([("torch", "python") if i % 3 else () for i in range(300)])

    class Timed(DatasetBatches):
        def _torch_loader(self, options: dict[str, Any]) -> Any:
            return Paced(super()._torch_loader(options), options.get("num_workers", 0), clock, seen)

    monkeypatch.setattr(auto_loading, "usable_cores", lambda: CORES)
    monkeypatch.setattr(auto_loading, "time", clock)
    runs = []
    for number in (0, "auto"):
        course = Changing(seed=3)
        seen.clear()
        batches = Timed(course, dataset, batching, options={"num_workers": number} | (options if number else {}))
        runs.append(taken(course, Loader(batches, dataset), clock, epochs=2))
    assert runs[0] == runs[1]
    assert set(seen) == ({1, 2, 4} if options else {0, 1, 2, 4})
    assert "4 loader processes, of at most 8 (measured with" in capsys.readouterr().err


SAID = "pilot: session.loader("


class Slow(Dataset[Any]):
    """Reads slowly; each sample says which process read it."""

    def __init__(self) -> None:
        self.data = TensorDataset(torch.arange(80.0).reshape(80, 1), torch.ones(80, 1))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        info = get_worker_info()
        return *self.data[index], -1 if info is None else info.id


class Alone(Slow):
    """Readable only in the training process, like one that puts its samples on a GPU, or has its own processes."""

    def __init__(self, fails: Callable[[], None]) -> None:
        super().__init__()
        self._fails = fails

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            self._fails()
        return super().__getitem__(index)


def raises() -> None:
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")


def trained(
    number: int | str, dataset: Dataset[Any] | None = None, **options: Any
) -> tuple[dict[str, torch.Tensor], set[int]]:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    session = pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=1e-4), seed=1)
    loader = session.loader(dataset or Slow(), global_batch_size=1, num_workers=number, **options)
    readers = set()
    for _ in session.epochs(1):
        for x, y, reader in loader:
            readers.add(int(reader))
            model.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            session.step(loss)
    return model.state_dict(), readers


def test_a_dataset_that_is_slow_gets_processes_and_the_session_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PILOT_CONTROL_FD", raising=False)
    monkeypatch.setattr(auto_loading, "usable_cores", lambda: 2)
    model, readers = trained("auto")
    plain, _ = trained(0)
    assert all(torch.equal(model[name], plain[name]) for name in plain)
    assert readers == {-1, 0, 1}
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith(SAID)]
    number = r"[\d.e+]+ batches/s, waiting \d+%"
    pattern = r'pilot: session.loader\(num_workers="auto"\): [012] loader process(es)?, of at most 2(; .*)? \(measured'
    assert re.fullmatch(rf"{pattern} with 0: {number}; 1: {number}; 2: {number}\)", said)


@pytest.mark.parametrize(
    ("fails", "why"), [(raises, "RuntimeError: Cannot re-initialize CUDA"), (partial(os._exit, 9), "DataLoader worker")]
)
def test_a_dataset_that_fails_in_processes_is_read_without_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: Callable[[], None], why: str
) -> None:
    monkeypatch.delenv("PILOT_CONTROL_FD", raising=False)
    model, readers = trained("auto", Alone(fails))
    plain, _ = trained(0)
    assert all(torch.equal(model[name], plain[name]) for name in plain)
    assert readers == {-1}
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith(SAID)]  # torch says more
    assert said.startswith(f'pilot: session.loader(num_workers="auto"): 0 loader processes, since 1 failed: {why}')
    with pytest.raises(RuntimeError, match="Cannot re-initialize"):
        trained("auto", Alone(raises), timeout=60)  # options for processes imply that some are wanted


@pytest.mark.parametrize(
    "make",
    [
        lambda: loader_of(Walking(), Slow(), Batching(whole=2), options={"num_workers": "Auto"}),
        lambda: loader_of(Walking(), Slow(), Batching(whole=2), options={"num_workers": 1.5}),
    ],
)
def test_what_is_no_number_of_processes_is_refused(make: Callable[[], Loader]) -> None:
    with pytest.raises(UserError, match=r'num_workers is a number, 0 or more, or "auto"; got'):
        make()


def test_an_evaluation_takes_a_number() -> None:
    session = pilot.train.session(model := nn.Linear(1, 1), torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(UserError, match=r'session\.evaluate takes a number for num_workers; "auto" is for'):
        session.evaluate(Slow(), lambda _batch: {}, num_workers="auto")
