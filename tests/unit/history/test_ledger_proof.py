"""The ledger's proof is checked against the run's own identity."""

from __future__ import annotations

import pytest

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.ledger import Ledger, proof
from pilot.protocol.run_identity import AcceptedChange

RUN = {"the length of the dataset": "96", "global_batch_size": "8", "drop_last": "False", "the seed": "1"}
Rows = list[tuple[int, int, int, int, int, int]]
ONE_EPOCH: Rows = [(1, 0, 0, 12, 0, 96)]


def ledger_of(rows: Rows, words: dict[str, str], *changes: AcceptedChange) -> Ledger:
    ledger = Ledger(words, changes)
    ledger.add(LedgerRange(Generation(generation), *row) for generation, *row in rows)
    return ledger


@pytest.mark.parametrize(
    ("rows", "words", "epochs", "text"),
    [
        (ONE_EPOCH, RUN, 1, "contiguous"),
        ([(1, 0, 0, 12, 0, 96), (1, 1, 12, 24, 0, 96)], RUN, 2, "contiguous"),
        ([(1, 0, 0, 6, 0, 48), (2, 0, 6, 12, 48, 96)], RUN, 1, "contiguous"),
        (ONE_EPOCH, {}, 1, "!no group has reported what it trains on"),
        # The ranks assumed a shorter dataset: 22 samples were never used.
        ([(1, 0, 0, 10, 0, 74)], RUN, 1, "!74 samples, and the script asked for a multiple of 8"),
        ([(1, 0, 0, 24, 0, 96)], RUN, 1, "!epoch 0: 96 samples, and the script asked for a multiple of 8"),
        ([(1, 0, 0, 12, 0, 96)], RUN | {"global_batch_size": "10"}, 1, "!a multiple of 10"),
        ([(1, 0, 0, 2, 0, 6), (2, 0, 2, 14, 6, 96)], RUN, 1, "!generation 1, steps 0 to 1, epoch 0: 6 samples"),
        # The last step of an epoch is smaller.
        ([(1, 0, 0, 4, 0, 60), (2, 0, 4, 7, 60, 96)], RUN | {"global_batch_size": "15"}, 1, "contiguous"),
        # 16 samples per node, on two and on three nodes.
        ([(1, 0, 0, 3, 0, 96)], {"the length of the dataset": "96", "batch_size": "16"}, 1, "contiguous"),
        (
            [(1, 0, 0, 1, 0, 32), (2, 0, 1, 5, 32, 96)],
            {"the length of the dataset": "96", "batch_size": "16"},
            1,
            "contig",
        ),
        ([(1, 0, 0, 9, 0, 90)], RUN | {"global_batch_size": "10", "drop_last": "True"}, 1, "contiguous"),
        ([(1, 0, 0, 8, 0, 80)], RUN | {"global_batch_size": "10", "drop_last": "True"}, 1, "!ends at sample 96"),
        ([(1, 0, 0, 9, 0, 72), (1, 1, 9, 10, 0, 8)], RUN | {"the length of the dataset": "a stream"}, 2, "contiguous"),
        ([(1, 0, 0, 9, 0, 72)], RUN | {"the length of the dataset": "a stream"}, 2, "!epoch 1 ends at sample 0"),
        ([(1, 0, 0, 3, 0, 16)], RUN | {"the length of the dataset": "16"}, 1, "!16 samples, and the script asked for"),
        (ONE_EPOCH, RUN | {"the length of the dataset": "9" * 5000}, 1, "!beyond the epoch's 0"),
    ],
)
def test_a_proof(rows: Rows, words: dict[str, str], epochs: int, text: str) -> None:
    verdict = proof(ledger_of(rows, words), epochs)
    assert text.removeprefix("!") in verdict.text
    assert verdict.proved is not text.startswith("!")


@pytest.mark.parametrize(("step", "proved"), [(12, True), (15, False)])
def test_a_dataset_that_was_accepted_to_grow_counts_from_the_next_epoch_on(step: int, proved: bool) -> None:
    rows: Rows = [(1, 0, 0, 12, 0, 96)]
    rows += [(1, 1, 12, 15, 0, 24), (2, 1, 15, 25, 24, 104)] if step == 15 else [(2, 1, 12, 25, 0, 104)]
    change = AcceptedChange(step, "the length of the dataset", "96", "104")
    verdict = proof(ledger_of(rows, RUN | {"the length of the dataset": "104"}, change), 2)
    assert verdict.proved is proved, verdict.text
    assert proved or "was changed from 96 to 104 after step 15, in the middle of epoch 1" in verdict.text


def test_the_batch_may_change_in_the_middle_of_an_epoch_without_its_rest() -> None:
    words = RUN | {"the length of the dataset": "38", "global_batch_size": "6", "drop_last": "True"}
    change = AcceptedChange(2, "global_batch_size", "8", "6")
    verdict = proof(ledger_of([(1, 0, 0, 2, 0, 16), (2, 0, 2, 5, 16, 34)], words, change), 1)
    assert verdict.proved, verdict.text


@pytest.mark.parametrize(("first", "step", "proved"), [(0, 0, True), (1, 1, False), (0, 1, False), (0, 96, True)])
def test_another_order_may_begin_with_an_epoch_and_not_after_one_sample_of_it(
    first: int, step: int, proved: bool
) -> None:
    rows: Rows = [(1, 0, 0, 1, 0, 1), (2, 0, 1, 96, 1, 96)] if first else [(1, 0, 0, 96, 0, 96)]
    words = RUN | {"global_batch_size": "1", "the seed": "2"}
    verdict = proof(ledger_of(rows, words, AcceptedChange(step, "the seed", "1", "2")), 1)
    assert verdict.proved is proved, verdict.text


SO_FAR: list[tuple[Rows, int | None, str, tuple[int, int, int, int]]] = [
    ([], None, "0 records of 0 generations cover 0 epochs, 0 samples, in 0 steps", (0, 0, 0, 0)),
    (ONE_EPOCH, 12, "cover 1 epoch, 96 samples, in 12 steps", (1, 96, 12, 0)),
    ([*ONE_EPOCH, (1, 1, 12, 13, 0, 8)], None, "cover 1 epoch and 8 samples of the next, 104 samples", (1, 104, 13, 0)),
    ([(1, 0, 0, 4, 0, 32), (2, 0, 3, 5, 24, 40)], None, "0 epochs and 40 samples of the next", (0, 40, 5, 1)),
    ([(1, 0, 0, 4, 0, 32)], 5, "!it finished at step 5, and its records end at step 4", (0, 32, 4, 0)),
    ([], 5, "!it finished at step 5, and its records end at step 0", (0, 0, 0, 0)),
    ([(1, 0, 0, 4, 0, 32), (2, 0, 4, 5, 40, 48)], None, "!step 4, epoch 0, sample 32 was next", (0, 40, 5, 0)),
]


@pytest.mark.parametrize(("rows", "finished", "text", "counts"), SO_FAR)
def test_a_proof_as_far_as_the_trainer_got(
    rows: Rows, finished: int | None, text: str, counts: tuple[int, int, int, int]
) -> None:
    ledger = ledger_of(rows, RUN)
    ledger.finished_step = finished
    verdict = proof(ledger)
    assert text.removeprefix("!") in verdict.text
    assert verdict.proved is not text.startswith("!")
    assert (verdict.epochs, verdict.samples, verdict.steps, verdict.voided_steps) == counts
