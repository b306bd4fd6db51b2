"""Tells of a dataset that keeps samples as it has augmented them at random when it first read them: other processes
draw other numbers. What keeps samples as they are before that does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice

from pilot.train.data import rng
from pilot.train.data.dataset_values import held_by, whole_of
from pilot.train.script import refusal
from pilot.train.script.harmless import Harmless

_DEPTH = 3
_MOST = 1000
"""Of lists and dicts that are looked at."""
_CACHED = type(lru_cache(len))


class KeptSamples:
    """Looks at one read. ``dataset``: before it."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._before: dict[str, int] = {}
        self._harmless = Harmless()
        self._harmless.look(lambda: self._before.update(self._sizes()))

    def look(self, samples: int, read_again: Callable[[], object]) -> None:
        """So many samples were read, with random numbers: tell if a list, dict or cache holds as many more (the script
        may have had one before), and the same draws none now.
        """
        self._harmless.look(lambda: self._look(samples, read_again))

    def _look(self, samples: int, read_again: Callable[[], object]) -> None:
        more = {name: size - self._before.get(name, 0) for name, size in self._sizes().items()}
        grown = [name for name, count in more.items() if max(1, samples - 1) <= count <= samples]
        if grown and not _draws(read_again):
            refusal.note(
                "the dataset draws random numbers when it first reads a sample, and none when it reads that again: it"
                f" keeps what it has drawn ({grown[0]}), but other nodes, one that joins, and a run that resumes draw"
                " other numbers, so that they train on other samples: keep a sample as it is before its random"
                " augmentation, or draw that from a generator which is seeded by the sample's index"
            )

    def _sizes(self) -> dict[str, int]:
        return dict(islice(_sizes_in(whole_of(self._dataset), "dataset", _DEPTH), _MOST))


def _draws(read: Callable[[], object]) -> bool:
    with rng.untouched():
        before = rng.positions()
        try:
            read()
        except Exception:
            return True  # it is told of when it is read again for training
        return rng.positions() != before


def _sizes_in(owner: object, path: str, depth: int) -> Iterator[tuple[str, int]]:
    """How many things lists and dicts in it hold, but for places without any; and what its methods' caches hold."""
    if isinstance(owner, list | dict):
        items = list(dict.values(owner)) if isinstance(owner, dict) else list.copy(owner)
        yield path, sum(one is not None for one in items)
        return
    for kind in type(owner).__mro__:
        caches = ((name, one) for name, one in vars(kind).items() if isinstance(one, _CACHED))
        yield from ((f"{path}.{name}", one.cache_info().currsize) for name, one in caches)
    for key, one in held_by(owner) if depth else ():
        yield from _sizes_in(one, f"{path}.{key}", depth - 1)
