"""``session.loader(..., num_workers="auto")``: uses as many loader processes as the training needs.

The count changes between two steps. The new processes reload what the old ones had loaded in advance; the order of
samples depends only on the session, so the training is not affected.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from pilot.io.system import usable_cores
from pilot.train.data.loader_count import LoaderCount

AUTO = "auto"

OF_PROCESSES = ("timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor", "persistent_workers")
"""Options for loader processes: if one is given, there is at least one process."""


class AutoLoading:
    """Iterate over it like over a ``DataLoader``.

    Parameters
    ----------
    make : creates a ``DataLoader`` with a number of processes
    options : for it
    ranks : number of training processes on the node, which share its cores
    size : the group's
    in_step : whether the current step has more batches for this rank
    """

    def __init__(
        self,
        make: Callable[[int], DataLoader[Any]],
        options: Mapping[str, Any],
        ranks: int,
        size: Callable[[], int],
        in_step: Callable[[], bool],
    ) -> None:
        first = int(any(options.get(name) is not None for name in OF_PROCESSES))
        self._count = LoaderCount(first, most=max(1, usable_cores() // ranks))
        self._make = make
        self._size = size
        self._in_step = in_step
        self._sized: int | None = None
        self._loader, self._made_for = make(first), first

    def __iter__(self) -> Iterator[Any]:
        if self._sized != (size := self._size()):
            if self._sized is not None:
                self._count.resized()
            self._sized = size
        while (yield from self._until_another_count()):
            pass

    def _until_another_count(self) -> Generator[Any, None, bool]:
        """Yields batches; returns whether the count has changed."""
        count = self._count
        if self._made_for != count.now:
            self._loader, self._made_for = self._make(count.now), count.now
        count.begins()
        batches: Iterator[Any] | None = None
        while self._made_for == count.now or self._in_step():
            asked_s = time.monotonic()
            try:
                batches = batches or iter(self._loader)
                batch = next(batches)
            except StopIteration:
                return False
            except Exception as error:
                if self._in_step() or not (found := count.failed(_last_line(error))):
                    raise
                _say(found)
                return True
            came_s = time.monotonic()
            yield batch
            if found := count.took(came_s - asked_s, time.monotonic() - came_s):
                _say(found)
        return True


def _say(found: str) -> None:
    print(f'pilot: session.loader(num_workers="{AUTO}"): {found}', file=sys.stderr, flush=True)


def _last_line(error: Exception) -> str:
    """That of a process's traceback names its error."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
