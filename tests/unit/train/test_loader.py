"""The training loader: samples do not depend on which process loads them; what it accepts and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)

import pilot.train
from pilot.core.errors import UserError
from pilot.train.data import rng
from pilot.train.data.sampler import Batching, mix
from tests import sample_streams
from tests.unit.train.positioned import (
    DRAWS,
    LoopView,
    Noisy,
    NoisyAtOnce,
    Walking,
    all_steps,
    batchings,
    changes,
    draws,
    made,
    one_by_one,
    one_step,
    samples_in,
)


@settings(deadline=None)
@given(
    kind=st.sampled_from([Noisy, NoisyAtOnce]),
    draws=st.lists(st.one_of(st.just(()), draws), min_size=1, max_size=40),
    batching=batchings,
    changes=changes,
    seed=st.integers(0, 9),
)
def test_samples_are_those_of_their_own_streams_whatever_the_group_the_cut_and_the_dataset(
    kind: type[Noisy],
    draws: list[tuple[str, ...]],
    batching: Batching,
    changes: list[tuple[int, bool]],
    seed: int,
) -> None:
    """Even if only some samples draw, so that a loader finds out late that one does."""
    dataset = kind(draws)
    expected = one_by_one(dataset, seed, 0)
    loops = [LoopView(rank, 4, seed=seed) for rank in range(4)]
    loaders = [made(loop, dataset, batching, options={}) for loop in loops]
    taken: list[tuple[int, float]] = []
    for batches, void in all_steps(loaders, loops, changes):
        for sample in samples_in(batches):
            assert sample == expected[sample[0]]
            taken += [] if void else [sample]
    assert sorted(taken) == expected


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("kind", [Noisy, NoisyAtOnce])
def test_they_are_the_same_from_workers_also_where_the_plan_changes(kind: type[Noisy], options: dict[str, Any]) -> None:
    dataset = kind([() if i % 3 else tuple(sorted(DRAWS))[: i % 7] for i in range(40)])
    loop = LoopView(seed=3)
    loader = made(loop, dataset, Batching(total=8, micro=3), options=options)
    for epoch in range(2):
        loop.epoch, loop.cursor = epoch, 0
        expected, iterator = one_by_one(dataset, 3, epoch), iter(loader)
        taken: list[tuple[int, float]] = []
        while (batches := one_step(iterator, loop)) is not None:
            taken += samples_in(batches)
            loop.cursor = loop.begun[-1][0].cursor_end
            loop.revision += loop.cursor == 16
        assert sorted(taken) == expected


class Failing(Noisy):
    """If the first number that it draws is not its own."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        value, begun = random.random(), random.getstate()
        sample_streams.begin(0, 0, index)
        own = random.random()
        random.setstate(begun)
        if value != own:
            raise ValueError("not its own")
        return index, value


def test_a_dataset_may_fail_where_it_was_not_seeded_yet() -> None:
    failing = Failing([()] * 6)
    assert sum(len(batch[0]) for batch in made(Walking(), failing, Batching(total=6), shuffle=False, options={})) == 6


def test_an_error_of_the_dataset_is_raised_as_it_is() -> None:
    broken = Noisy([("no such generator",)] * 4)
    with pytest.raises(KeyError, match="no such generator"):
        next(iter(made(Walking(), broken, Batching(total=4), options={})))


class Whole(Noisy):
    """Its ``__getitems__`` already collates."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor([Noisy.__getitem__(self, index) for index in indices])


def test_what_collates_by_itself_is_taken_unless_it_is_random() -> None:
    options = {"collate_fn": lambda batch: batch}
    batch = next(iter(made(Walking(), Whole([()] * 4), Batching(total=4), options=options)))
    assert sorted(batch[:, 0].tolist()) == [0, 1, 2, 3]
    with pytest.raises(UserError, match="__getitems__ uses random numbers"):
        next(iter(made(Walking(), Whole([("torch",)] * 4), Batching(total=4), options=options)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_random_collate_function_depends_on_the_batch_alone(workers: int) -> None:
    options = {"collate_fn": lambda batch: (torch.tensor(batch), random.random()), "num_workers": workers}
    data: Any = Subset(range(12), range(12))
    batches = list(made(Walking(), data, Batching(total=4), options=options))

    def expected(start: int) -> float:
        rng.seed_all(mix(0, 0, start))
        return random.random()

    assert [value for _, value in batches] == [expected(start) for start in (0, 4, 8)]


class Growing(Dataset[int]):
    """Has a value that the script changes."""

    value = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.value


@pytest.mark.parametrize(("options", "seen"), [({}, [0, 1]), ({"persistent_workers": True}, [0, 0])])
def test_workers_begin_anew_in_each_epoch_unless_they_are_to_persist(options: dict[str, Any], seen: list[int]) -> None:
    dataset = Growing()
    loader = made(Walking(), dataset, Batching(total=4), options={"num_workers": 1} | options)
    values = []
    for value in (0, 1):
        dataset.value = value
        values += [batch[0].item() for batch in loader]
    assert values == seen


def test_in_a_worker_the_dataset_is_the_script_s_own() -> None:
    def init(_worker: int) -> None:
        info: Any = get_worker_info()
        assert isinstance(info.dataset, Growing)
        info.dataset.value = 7

    loader = made(Walking(), Growing(), Batching(total=4), options={"num_workers": 1, "worker_init_fn": init})
    assert [batch.tolist() for batch in loader] == [[7] * 4]


def test_with_replacement_an_epoch_may_have_any_length_and_a_sample_comes_as_another_one_each_time() -> None:
    loop = Walking(seed=1)
    loader = made(loop, Noisy([("torch",)] * 3), Batching(total=10), replacement=True, num_samples=25, options={})
    drawn = samples_in(loader)
    assert len(drawn) == len(set(drawn)) == len(loader) * 10 - 5 == 25
    assert {index for index, _ in drawn} == {0, 1, 2}


def test_it_knows_its_dataset_and_sizes() -> None:
    data = TensorDataset(torch.arange(50))
    loader = made(Walking(rank=1, size=3), data, Batching(total=10, micro=2), options={})
    assert loader.dataset is data
    assert loader.batch_size == 2
    assert len(loader) == len(list(loader)) == 10
    assert made(Walking(size=2), data, Batching(per_node=8), options={}).batch_size == 8


@settings(deadline=None)
@given(batching=batchings, length=st.integers(0, 60), size=st.integers(1, 4), drop_last=st.booleans())
def test_its_length_is_that_of_its_plan(batching: Batching, length: int, size: int, drop_last: bool) -> None:
    batching = replace(batching, drop_last=drop_last)
    for rank in range(size):
        planned = sum(len(share.batches) for share in batching.shares(0, length, rank, size))
        assert batching.batches(length, rank, size) == planned
    if shares := list(batching.shares(0, length, 0, size)):
        assert batching.last_cursor(length, size) == shares[-1].cursor


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


def test_a_dataset_whose_length_changes_is_refused() -> None:
    data: Any = [1, 2, 3]
    loader = made(Walking(), data, Batching(total=3), options={})
    data.append(4)
    with pytest.raises(UserError, match="had 3 samples when the loader was made and has 4 now"):
        next(iter(loader))


DATA = TensorDataset(torch.arange(10.0).view(10, 1))


def doubled(samples: list[Any]) -> Any:
    return 2 * torch.stack([x for (x,) in samples])


def test_a_data_loader_gives_its_dataset_and_its_options() -> None:
    given: DataLoader[Any] = DataLoader(DATA, batch_size=4, collate_fn=doubled, num_workers=1, drop_last=True)
    loader = session_without_loader().loader(given)
    assert loader.dataset is DATA
    assert [name for name in dir(loader) if not name.startswith("_")] == ["batch_size", "dataset", "enumerate", "next"]
    assert [batch.flatten().tolist() for batch in loader._batches._batches] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert loader._batches.batching == Batching(total=4, drop_last=True)
    shuffled = session_without_loader("none").loader(DataLoader(DATA, batch_size=4, shuffle=True), batch_size=2)
    assert shuffled._batches.batching == Batching(per_node=2)


def session_without_loader(lr_rule: str | None = None) -> pilot.train.Session:
    model = nn.Linear(1, 1)
    return pilot.train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), lr_rule=lr_rule)


@pytest.mark.parametrize(
    ("given", "options", "line"),
    [
        (DATA, {"num_workers": -1}, "session.loader: num_workers"),
        (DATA, {"num_workers": 1.5}, "session.loader: num_workers"),
        (DATA, {"num_workers": "auto"}, "session.loader: num_workers .* got 'auto': pass a number"),
        (DATA, {"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor must be at least 1"),
        (DATA, {"prefetch_factor": 2}, "session.loader: prefetch_factor"),
        (DATA, {"persistent_workers": True}, "session.loader: persistent_workers"),
        (DATA, {"num_workers": 1, "multiprocessing_context": "thread"}, "session.loader: multiprocessing_context"),
        (DATA, {"num_samples": 3}, "needs replacement"),
        (DATA, {"replacement": True, "shuffle": False}, "shuffle=False"),
        (DATA, {"replacement": True, "num_samples": 0}, "at least 1"),
        (DATA, {"replacement": True, "num_samples": 10.0}, "a whole number of at least 1"),
        (DATA, {"global_batch_size": None, "batch_size": 2}, "'sqrt' or 'none' to pilot.train.session"),
        (DataLoader(DATA, sampler=SubsetRandomSampler([1, 2])), {}, "no DataLoader with a SubsetRandomSampler"),
        (DataLoader(DATA, batch_sampler=[[1, 2]]), {}, "no DataLoader with a list"),
        (DataLoader(DATA, batch_size=None), {}, "no DataLoader with a NoneType"),
        (DataLoader(DATA, shuffle=True, generator=torch.Generator()), {}, "takes no generator"),
        (DataLoader(Numbers()), {}, r"session\.stream trains"),
        (TensorDataset(torch.ones(0, 3)), {}, "the dataset has no samples"),
    ],
)
def test_it_refuses_options_that_it_cannot_keep_and_loaders_that_choose_samples(
    given: Any, options: dict[str, Any], line: str
) -> None:
    with pytest.raises(UserError, match=line) as refused:
        session_without_loader().loader(given, **{"global_batch_size": 2} | options)
    assert "\n" not in str(refused.value)


def test_samples_may_have_no_numbers() -> None:
    assert len(session_without_loader().loader(TensorDataset(torch.ones(5, 0)), global_batch_size=2)) == 3
