"""The garbage collector sees only what a module's tests create, and not what pytest and its modules keep."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> Iterator[None]:
    """Looking for the counter of an ``enumerate`` (:mod:`pilot.train.data.batch_numbers`) goes through the whole heap,
    a million objects here and few in a script's process; tests with many changes of the group would mostly do that.
    """
    gc.freeze()
    yield
    gc.collect()
    gc.unfreeze()
