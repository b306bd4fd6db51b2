"""Proof of a pool's runs from its journal."""

from __future__ import annotations

from pilot.core.ids import TrainerId
from pilot.history.ledger import proof
from pilot.history.trainer_progress import ledgers
from tests.e2e.acts import replayed
from tests.pools import LIMIT_S, Pool

EPOCH_SAMPLES = 1797
DEMO_LIMIT_S = 3 * LIMIT_S
"""A demo whose trainers were too fast, as beside other work they may be, repeats itself."""


def proved(pool: Pool, trainer: str, epochs: int | None = None) -> int:
    """The journal replays, and each ledger has every sample once per epoch; returns for how many of them."""
    epochs = epochs or pool.trainer(trainer).samples // EPOCH_SAMPLES
    ledger = ledgers(replayed(pool).decisions)[TrainerId(trainer)]
    assert ledger.identity["the length of the dataset"] == str(EPOCH_SAMPLES)
    verdict = proof(ledger, epochs)
    assert verdict.proved, verdict.text
    return epochs
