"""A row of the table: a script, the plain loop that it was made from, and its class.

*equal*: however it runs, its result is bit for bit that of a plain loop that accumulates the same shares in the same
order with the same generators, and that of one undisturbed process up to rounding. *different*: the first holds, the
second does not, by design. *refused*: with one line, the same alone and on any number of ranks.

The rows are in :mod:`tests.equivalence.topics`; :mod:`tests.equivalence.table` has them all.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import pilot.train
from pilot.core.errors import UserError
from tests.equivalence.history import Step
from tests.unit.train.storm import End, Keep, World, group_of

SAMPLES, BATCH, EPOCHS, SEED = 22, 4, 2, 3
"""Samples per row; an epoch's last step is not full."""

DEVICE = torch.device(os.environ.get("EQUIVALENCE_DEVICE", "cpu"))
"""Where models are trained and batches are moved to; see ``make test-gpu``."""

Tensors = dict[str, torch.Tensor]
Result = dict[str, Any]


@dataclass(frozen=True)
class Ran:
    """A script's result on one rank."""

    session: pilot.train.Session
    tensors: Tensors


@dataclass(frozen=True, kw_only=True)
class Row(ABC):
    """See the module.

    Parameters
    ----------
    name : what is special about the script, in words; unique
    different : what differs, by design, from one undisturbed process, in words
    refused : a pattern for the line that refuses it; ``instead``: what to do instead, in words
    batch, per_node : samples of a full step; ``per_node``: per rank
    used : samples of an epoch that are used
    tolerance : relative and absolute, against one undisturbed process; infinite if rounding is amplified
    real : runs only on ranks that are processes: it draws random numbers, and threads share their generators
    needs : a program without which it is skipped
    between_nodes : how real ranks sum with one another; empty: through rank processes
    core : it runs in each slice, and on real ranks
    """

    name: str
    different: str = ""
    refused: str = ""
    instead: str = ""
    batch: int = BATCH
    per_node: bool = False
    used: int = SAMPLES
    tolerance: float = 1e-12
    real: bool = False
    needs: str = ""
    between_nodes: str = ""
    core: bool = False

    @property
    def kind(self) -> str:
        """Its class."""
        return "refused" if self.refused else "different" if self.different else "equal"

    @abstractmethod
    def script(self) -> Ran | None:
        """The script, on one rank; its result unless it is refused."""

    def prepare(self) -> None:
        """Before the ranks start: work that they, being threads, cannot do concurrently."""
        return

    def plain(self, _steps: Sequence[Step], _member: int) -> Tensors:
        """The plain loop's state of process ``member`` after ``steps``."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Script(Row):
    """A row that is refused; ``elastic``: its script."""

    elastic: Callable[[], Any]

    def script(self) -> Ran | None:
        """See :class:`Row`."""
        self.elastic()
        return None


@dataclass(frozen=True)
class Topic:
    """Related rows under one heading; ``place``: the topic's position in the table."""

    place: int
    title: str
    rows: Sequence[Row]


def in_world(script: Callable[[], Any], count: int, ends: Sequence[End], **options: Any) -> tuple[World, list[Any]]:
    """Run ``script`` on ranks that are threads, see :mod:`tests.unit.train.storm`; its result on each of the last
    ones.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("pilot.train.loop"), "group_of", group_of)
        world = World(script, count, ends, **options)
        return world, world.run()


def resumed(script: Callable[[], Any], keep: Keep, count: int = 1) -> tuple[Any, list[Any]]:
    """The result of ``script`` on one rank, and those of ``count`` ranks that resume from the state kept on the way."""
    world, (expected,) = in_world(script, 1, [], keep=keep)
    assert world.kept_state is not None
    return expected, in_world(script, count, [], begin=world.kept_state)[1]


def on_ranks(script: Callable[[], Any], count: int, ends: Sequence[End]) -> list[Any]:
    """The same, without the world argument."""
    return in_world(script, count, ends)[1]


def assert_refused(script: Callable[[], Any], line: str) -> None:
    """Alone, on one rank and on two, with one line."""
    for ranks in (0, 1, 2):
        with pytest.raises(UserError, match=line) as refused:
            script() if ranks == 0 else on_ranks(script, ranks, [])
        assert "\n" not in str(refused.value)


def assert_agree(ranks: Sequence[Result], expected: Result, tolerance: float = 1e-12, way: str = "") -> None:
    """These ranks agree to the last bit, and with what is expected up to rounding."""
    for rank in ranks:
        assert_close(rank, ranks[0], 0.0, f"{way}, between ranks")
        assert_close(rank, expected, tolerance, way)


def assert_close(one: Result, other: Result, tolerance: float, what: str) -> None:
    """Name by name."""
    assert one.keys() == other.keys(), what
    for name, value in one.items():
        torch.testing.assert_close(
            value,
            other[name],
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{what}, {name}: {text}",
        )
