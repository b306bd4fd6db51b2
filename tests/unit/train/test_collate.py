"""Batches equal those of torch's ``default_collate``, sample by sample."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from pilot.train.data.seeded import Batch, collate, reader

Pair = namedtuple("Pair", "x y")
ROW = torch.arange(3.0)
SAMPLES: dict[str, list[Any]] = {
    "tensors and numbers": [(ROW, 1), (ROW + 1, -(2**62))],
    "booleans": [(True, 1), (False, 2)],
    "integers and others": [(1, 1.5), (2.5, 2)],
    "arrays": [(np.ones(2, np.float32), np.int8(3)), (np.zeros(2, np.float32), np.int8(4))],
    "nested": [((ROW, 1), {"a": 2}), ((ROW, 3), {"a": 4})],
    "text": [("a", b"x"), ("b", b"y")],
    "named": [Pair(1, ROW), Pair(2, ROW)],
    "lists": [[1, ROW], [2, ROW]],
    "tuples and lists": [(1, 2), [3, 4]],
    "numbers": [1, 2],
    "empty tuples": [(), ()],
    "one": [(ROW,)],
}


def described(batch: Any) -> Any:
    """Compares types and values."""
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.tolist()
    if isinstance(batch, dict):
        return {key: described(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch), [described(value) for value in batch]
    return batch


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=list(SAMPLES))
def test_a_batch_is_torch_s(samples: list[Any]) -> None:
    assert described(collate(samples)) == described(default_collate(samples))


@pytest.mark.parametrize("samples", [[(1, 2), (3,)], [(ROW,), (ROW[:2],)], [(object(),)], [(2**63,)], []])
def test_samples_that_torch_refuses_are_refused(samples: list[Any]) -> None:
    with pytest.raises(Exception):  # noqa: B017  # torch raises a different error for each
        default_collate(samples)
    with pytest.raises(Exception):  # noqa: B017  # as above
        collate(samples)


TENSORS = TensorDataset(torch.randn(9, 2, 3), torch.arange(9), torch.rand(9, requires_grad=True))


@pytest.mark.parametrize(
    "dataset", [TENSORS, Subset(TENSORS, [8, -1, 3, 3]), Subset(Subset(TENSORS, range(5)), [4, 2])]
)
def test_rows_of_tensors_are_read_at_once(dataset: Dataset[Any]) -> None:
    read = reader(dataset)
    assert read is not None
    batch = read(np.array([1, 0]))
    assert isinstance(batch, Batch)
    assert described(collate(batch)) == described(default_collate([dataset[1], dataset[0]]))


def test_a_dataset_of_the_script_s_own_reads_its_samples_itself() -> None:
    class Scaled(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return [2 * value for value in super().__getitem__(index)]

    assert reader(Scaled(ROW)) is None
    assert reader(Subset(Scaled(ROW), [0])) is None
    sparse = reader(TensorDataset(torch.eye(3).to_sparse()))
    assert sparse is not None
    assert sparse(np.array([0, 1])) is None
