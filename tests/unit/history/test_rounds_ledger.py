"""The ledger of nodes that train in rounds: what its proof says, and what it finds."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable, Sequence

import pytest

from pilot.core.events import Event, GroupFormed, LedgerRange, Progress, TrainerFinished, TrainerSubmitted
from pilot.core.ids import Generation, TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.history.ledger import Ledger, proof
from pilot.history.trainer_progress import ledgers
from pilot.protocol.run_identity import DROP_LAST, LENGTH, MISSING, ORDER, PER_NODE, SYNC, AcceptedChange
from pilot.rundir.entries import Decision

RUN = {LENGTH: "40", PER_NODE: "5", DROP_LAST: "False", SYNC: "diloco:every=2"}
Row = tuple[int, int, int, int, int, int]

EPOCH: list[Row] = [(1, 0, 0, 2, 0, 15), (1, 0, 2, 4, 20, 35), (2, 0, 4, 6, 15, 20), (2, 0, 4, 6, 35, 40)]
"""Two nodes; one did a step less in each round, and what it was dealt for that came last."""


def records(rows: Iterable[Row]) -> list[LedgerRange]:
    return [LedgerRange(Generation(generation), *row) for generation, *row in rows]


def ledger_of(rows: Iterable[Row], *changes: AcceptedChange, **words: str) -> Ledger:
    made = Ledger(RUN | {name.replace("_", " "): value for name, value in words.items()}, changes)
    made.add(records(rows))
    return made


PROVED: list[tuple[Sequence[Row], str]] = [
    (
        EPOCH,
        "3 rounds of 2 generations cover 1 epoch, 40 samples, in 6 steps: disjoint, each sample once per epoch",
    ),
    (EPOCH[::-1] * 2, "3 rounds of 2 generations cover 1 epoch, 40 samples, in 6 steps"),
    (EPOCH[:2], "2 rounds of 1 generation cover 0 epochs and 30 samples of the next, 30 samples, in 4 steps"),
    (
        [EPOCH[0], (1, 0, 2, 3, 35, 40)],
        "2 rounds of 1 generation cover 0 epochs and 20 samples of the next, 20 samples",
    ),
    ([*EPOCH, (2, 1, 6, 8, 5, 15)], "4 rounds of 2 generations cover 1 epoch and 10 samples of the next, 50 samples"),
    # The leader of generation 1 held its third round, and died: the others closed it otherwise.
    ([*EPOCH, (1, 0, 4, 6, 15, 20), (1, 0, 6, 7, 35, 40)], "40 samples, in 6 steps: disjoint, each sample once"),
    ([*EPOCH, (1, 0, 4, 6, 15, 20), (1, 0, 6, 7, 35, 40)], "3 recorded steps voided"),
]
FOUND: list[tuple[Sequence[Row], str]] = [
    (EPOCH[:1] + EPOCH[2:], "generation 2, steps 4 to 5, epoch 0, samples 15 to 19: after generation 1, steps 0 to 1"),
    (EPOCH[1:], "generation 1, steps 2 to 3, epoch 0, samples 20 to 34: step 0 was next"),
    ([*EPOCH[:3], (2, 1, 6, 8, 0, 10)], "epoch 0: no round committed samples 35 to 39 of its 40"),
    ([*EPOCH, (2, 2, 6, 8, 0, 10)], "generation 2, steps 6 to 7, epoch 2, samples 0 to 9: after generation 2"),
    ([*EPOCH[:2], (2, 0, 4, 6, 14, 20)], "samples 0 to 14: some of them also in generation 2, steps 4 to 5, epoch 0"),
    ([*EPOCH, (2, 0, 6, 7, 40, 45)], "samples 40 to 44: beyond the epoch's 40"),
    ([*EPOCH[:2], (2, 0, 3, 5, 15, 20)], "steps 2 to 3, epoch 0, samples 20 to 34: a later generation began within"),
    ([*EPOCH, (2, 0, 4, 5, 15, 20)], "steps 4 to 5, epoch 0, samples 15 to 19: after generation 2, steps 4 to 4"),
    ([(1, 0, 0, 0, 0, 15)], "generation 1, steps 0 to -1, epoch 0, samples 0 to 14: no steps, or no samples"),
    ([(1, 0, 0, 2, 15, 15)], "no steps, or no samples"),
    ([(1, 1, 0, 2, 0, 15)], "epoch 0: no round committed samples 0 to 39 of its 40"),
]


@pytest.mark.parametrize(("rows", "text"), [*PROVED, *FOUND])
def test_what_is_proved_and_what_is_found(rows: Sequence[Row], text: str) -> None:
    verdict = proof(ledger_of(rows))
    assert text in verdict.text
    assert verdict.proved is ((rows, text) in PROVED)


def test_a_ledger_must_cover_all_epochs_that_are_asked_for() -> None:
    assert proof(ledger_of(EPOCH), 1).proved
    assert "epoch 0: no round committed samples 15 to 19" in proof(ledger_of(EPOCH[:2]), 1).text
    assert "epoch 1: no round committed samples 0 to 39" in proof(ledger_of(EPOCH), 2).text
    assert "beyond the epoch's 0" in proof(ledger_of([*EPOCH, (2, 1, 6, 8, 0, 10)]), 1).text


def test_a_ledger_ends_where_its_trainer_finished() -> None:
    made = ledger_of(EPOCH[:2])
    made.finished_step = 6
    assert proof(made).text == "it finished at step 6, and its records end at step 4"
    made.add(records(EPOCH[2:]))
    assert proof(made).proved


def test_a_round_that_its_leader_held_is_void_as_soon_as_others_have_closed_it_otherwise() -> None:
    """The leader died; the next one did fewer steps in that round, and has not reported it yet."""
    made = ledger_of([*EPOCH[:2], (1, 0, 4, 7, 15, 20)])
    made.began(Generation(2), 6)
    verdict = proof(made)
    assert (verdict.proved, verdict.steps, verdict.voided_steps) == (True, 4, 3), verdict.text


def test_a_generation_voids_rounds_although_none_of_its_own_was_reported() -> None:
    made = ledger_of(EPOCH)
    made.began(Generation(3), 4)
    verdict = proof(made)
    assert (verdict.proved, verdict.rounds, verdict.steps, verdict.voided_steps) == (True, 2, 4, 2)


@pytest.mark.parametrize(("end", "proved"), [(40, True), (42, False), (43, False), (35, False)])
def test_an_epoch_without_its_rest_ends_with_the_last_full_batch(end: int, proved: bool) -> None:
    made = ledger_of([*EPOCH[:3], (2, 0, 4, 6, 35, end)] if end > 35 else EPOCH[:3])
    made.identity = {**made.identity, LENGTH: "43", DROP_LAST: "True"}
    assert proof(made, 1).proved is proved


@pytest.mark.parametrize("length", ["39", "42"])
def test_the_batch_may_change_in_the_middle_of_an_epoch(length: str) -> None:
    """What was put back is then cut otherwise; without a rest, less than a batch is left."""
    change = AcceptedChange(2, PER_NODE, "5", "4")
    rows: list[Row] = [EPOCH[0], (2, 0, 2, 4, 15, 23), (2, 0, 4, 9, 23, 39)]
    made = ledger_of(rows, change)
    made.identity = {**made.identity, LENGTH: length, PER_NODE: "4", DROP_LAST: "True"}
    assert proof(made, 1).proved, proof(made, 1).text


def test_less_than_a_batch_may_be_put_back_at_the_end_of_an_epoch_without_its_rest() -> None:
    change = AcceptedChange(2, PER_NODE, "5", "4")
    made = ledger_of([EPOCH[0], (2, 0, 2, 9, 18, 42)], change)
    made.identity = {**made.identity, LENGTH: "43", PER_NODE: "4", DROP_LAST: "True"}
    verdict = proof(made)
    assert (verdict.proved, verdict.epochs, verdict.samples) == (True, 0, 39), verdict.text
    assert not proof(made, 1).proved


@pytest.mark.parametrize(("step", "proved"), [(0, True), (2, False), (4, False), (6, True), (8, False), (99, True)])
def test_another_order_may_begin_with_an_epoch_only(step: int, proved: bool) -> None:
    rows: list[Row] = [*EPOCH, (2, 1, 6, 8, 0, 10), (2, 1, 8, 10, 10, 20)]
    verdict = proof(ledger_of(rows, AcceptedChange(step, ORDER, "a", "b")))
    assert verdict.proved is proved, verdict.text
    assert proved or "in the middle of epoch" in verdict.text
    assert proof(ledger_of(EPOCH, AcceptedChange(0, ORDER, "a", "b"))).proved


def test_a_run_may_begin_and_end_to_train_in_rounds() -> None:
    """Steps, of which some were lost, then rounds from the newest checkpoint on, and from the next epoch on steps."""
    begins, ends = AcceptedChange(4, SYNC, MISSING, RUN[SYNC]), AcceptedChange(7, SYNC, RUN[SYNC], MISSING)
    words = {name: value for name, value in RUN.items() if name != SYNC}
    made = Ledger(words)
    made.add(records([(1, 0, 0, 6, 0, 30)]))
    made.identity, made.accepted = RUN, (begins,)
    made.began(Generation(2), 4)
    assert proof(made).proved, "the steps from the checkpoint on are void"
    made.add(records([(1, 0, 0, 4, 0, 20), (2, 0, 4, 6, 25, 35), (2, 0, 6, 7, 20, 25), (2, 0, 6, 7, 35, 40)]))
    made.identity, made.accepted = words, (begins, ends)
    made.began(Generation(3), 7)
    made.add(records([(1, 0, 0, 4, 0, 20), (2, 0, 6, 7, 20, 25), (3, 1, 7, 15, 0, 40)]))
    verdict = proof(made, 2)
    assert verdict.proved, verdict.text
    assert (verdict.samples, verdict.steps, verdict.voided_steps) == (80, 15, 2)


def test_a_journal_has_the_ledger_of_a_trainer_in_rounds() -> None:
    """Two coordinators wrote it; reports of the first generation come late, split and twice."""
    vit, first, second = TrainerId("vit"), Generation(1), Generation(2)
    words = tuple(sorted(RUN.items()))
    happened: list[Event] = [
        TrainerSubmitted(TrainerSpec(vit)),
        GroupFormed(vit, first, 0, 0, words),
        Progress(vit, first, 2, 0, 15, ledger=tuple(records(EPOCH[:1]))),
        GroupFormed(vit, second, 4, None, words),
        Progress(vit, second, 6, 0, 40, ledger=tuple(records([*EPOCH[:1], EPOCH[3]]))),
        Progress(vit, first, 4, 0, 30, ledger=tuple(records(EPOCH[1:2]))),
        Progress(vit, second, 6, 0, 40, ledger=tuple(records(EPOCH[1:3]))),
        TrainerFinished(vit, second, 6, 40),
    ]
    made = ledgers(Decision(0, 1.0, event, ()) for event in happened)[vit]
    assert proof(made, 1).proved, proof(made, 1).text


def test_a_hundred_thousand_rounds_are_proved_within_seconds_and_eighty_megabytes() -> None:
    """Of four intervals each: 400,000 records, of which 19 MB are kept."""
    rounds, size = 100_000, 10_000
    made = ledger_of([], the_length_of_the_dataset=str(1600 * size // 4), batch_size="100")
    for number in range(rounds):
        epoch, at = divmod(number, size)
        begin = 1600 * (at // 4) + 100 * (at % 4)
        steps = 10 * number, 10 * number + 10
        made.add(records((1 + number // 1000, epoch, *steps, begin + i, begin + i + 100) for i in range(0, 1600, 400)))
    tracemalloc.start()
    began_s = time.process_time()
    verdict = proof(made, rounds // size)
    took_s, (_, most) = time.process_time() - began_s, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert verdict.proved, verdict.text
    assert verdict.rounds == rounds
    assert took_s < 5  # 0.4 s if it is quiet
    assert most < 80e6
