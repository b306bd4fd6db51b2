"""Runs of a script on nodes that come and go, compared with what the script computes alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pilot.core.events import LedgerRange
from pilot.history.ledger import Ledger
from pilot.protocol import wire
from tests.integration.plane import Plane, plane, run_alone

SAMPLES = 500
"""Of each script's training data; an epoch has all of them."""
BATCH = ("--global-batch-size", "32")
STEPS_PER_EPOCH = -(-SAMPLES // 32)


def assert_exactly_once(reports: Sequence[wire.Progress], epochs: int, samples: int = SAMPLES) -> Ledger:
    """Check that the reports prove that each sample counted once per epoch; returns their ledger."""
    ledger = Ledger()
    for report in reports:
        ledger.add(LedgerRange(*row) for row in report.ledger)
    verdict = ledger.exactly_once(dict.fromkeys(range(epochs), samples))
    assert verdict.proved, verdict.text
    return ledger


def alone(folder: Path, script: Path, *arguments: str) -> dict[str, Any]:
    """The result of the script in one plain process."""
    (folder / "alone").mkdir()
    run_alone(folder, script, *arguments, "--save", str(folder / "alone" / "saved"))
    result: dict[str, Any] = torch.load(folder / "alone" / "saved.0")
    return result


class Run:
    """A script on nodes that come and go. ``finished`` and ``ledger`` are there after its end."""

    finished: wire.TrainerFinished
    ledger: Ledger

    def __init__(self, folder: Path, cluster: Plane) -> None:
        self.folder, self.cluster = folder, cluster

    def finish(self) -> None:
        """Let the script run to its end without pauses."""
        (self.folder / "gate").touch()
        self.finished = self.cluster.wait_finished()
        self.cluster.stop()

    def results(self) -> list[dict[str, Any]]:
        """The results that the ranks of the last group have saved."""
        return [torch.load(self.folder / f"saved.{rank}") for rank in range(len(self.cluster.training))]


@contextmanager
def run(
    folder: Path,
    script: Path,
    *arguments: str,
    epochs: int | None = None,
    trained: int | None = None,
    paces: Sequence[str] = (),
    **options: Any,
) -> Iterator[Run]:
    """A run that finishes after the block, in which each sample must have counted once in each of the epochs that were
    ``trained`` (None: all; there may be none). ``paces``: further arguments, which do not change the result.
    """
    files = ("--save", str(folder / "saved"), "--gate", str(folder / "gate"))
    with plane(folder, script, *arguments, *_epochs(epochs), *paces, *files, **options) as cluster:
        made = Run(folder, cluster)
        yield made
        made.finish()
    if epochs is not None:
        made.ledger = assert_exactly_once(cluster.reports(), epochs if trained is None else trained)


@contextmanager
def same_as_alone(
    folder: Path,
    script: Path,
    *arguments: str,
    epochs: int | None = None,
    paces: Sequence[str] = ("--step-s", "0.05"),
    rtol: float = 1e-12,
    **options: Any,
) -> Iterator[Run]:
    """A run whose ranks must save the same bits in the end, and the same as the script alone, up to rounding."""
    with run(folder, script, *arguments, epochs=epochs, paces=paces, **options) as made:
        yield made
    first, *others = made.results()
    for other in others:
        torch.testing.assert_close(other, first, rtol=0.0, atol=0.0)
    expected = alone(folder, script, *arguments, *_epochs(epochs))
    torch.testing.assert_close(first, expected, rtol=rtol, atol=1e-3 * rtol)


def _epochs(count: int | None) -> tuple[str, ...]:
    return () if count is None else ("--epochs", str(count))
