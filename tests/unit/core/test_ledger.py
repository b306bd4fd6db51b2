"""The proof that each sample was used once per epoch, and what it finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.core.ledger import Ledger


def row(generation: int, epoch: int, step: int, step_end: int, cursor: int, cursor_end: int) -> LedgerRange:
    return LedgerRange(Generation(generation), epoch, step, step_end, cursor, cursor_end)


def ledger(*rows: LedgerRange) -> Ledger:
    made = Ledger()
    made.add(rows)
    return made


WHOLE = (row(1, 0, 0, 4, 0, 40), row(2, 0, 4, 7, 40, 100), row(2, 1, 7, 12, 0, 100))


def test_an_undisturbed_run_is_proved() -> None:
    verdict = ledger(*WHOLE).exactly_once({0: 100, 1: 100})
    assert verdict.proved, verdict.text
    assert "cover 2 epochs, 200 samples, in 12 steps" in verdict.text


def test_records_may_come_late_twice_and_growing() -> None:
    made = ledger(WHOLE[2], WHOLE[0], row(2, 0, 4, 5, 40, 60), WHOLE[1], WHOLE[0])
    assert made.lineage() == list(WHOLE)
    assert made.voided_steps() == 0


def test_a_later_generation_voids_steps_at_and_beyond_its_first() -> None:
    made = ledger(row(1, 0, 0, 9, 0, 90), row(2, 0, 6, 8, 60, 100))
    assert made.lineage() == [row(1, 0, 0, 6, 0, 60), row(2, 0, 6, 8, 60, 100)]
    assert made.voided_steps() == 3
    assert made.exactly_once({0: 100}).proved


def test_a_cut_that_does_not_fit_the_steps_before_it_is_found() -> None:
    made = ledger(row(1, 0, 0, 9, 0, 90), row(2, 0, 6, 8, 65, 100))
    verdict = made.exactly_once({0: 100})
    assert not verdict.proved
    assert "65 samples in 6 steps are uneven" in verdict.text


def test_a_gap_is_found_and_named() -> None:
    verdict = ledger(WHOLE[0], row(2, 0, 4, 7, 50, 100)).exactly_once({0: 100})
    assert (verdict.proved, "sample 50, but step 4, epoch 0, sample 40 was next" in verdict.text) == (False, True)


def test_a_sample_used_twice_is_found() -> None:
    assert not ledger(WHOLE[0], row(2, 0, 4, 7, 30, 100)).exactly_once({0: 100}).proved


def test_a_missing_end_is_found() -> None:
    verdict = ledger(*WHOLE[:2]).exactly_once({0: 100, 1: 100})
    assert verdict.text == "it ends at epoch 0, sample 100; epoch 1 ends at sample 100"
    assert not Ledger().exactly_once({0: 100}).proved


def test_more_samples_than_the_epoch_has_are_found() -> None:
    assert "beyond the epoch's 90" in ledger(*WHOLE).exactly_once({0: 90, 1: 90}).text


def test_a_step_without_samples_is_found() -> None:
    assert "do not fill" in ledger(row(1, 0, 0, 4, 0, 3)).exactly_once({0: 3}).text


def test_the_last_step_of_an_epoch_may_be_smaller() -> None:
    assert ledger(row(1, 0, 0, 4, 0, 95)).exactly_once({0: 95}).proved is True
    assert ledger(row(1, 0, 0, 4, 0, 72)).exactly_once({0: 100}).proved is False


@given(st.data())
def test_a_run_with_random_regroups_is_proved_and_any_lost_record_is_found(data: st.DataObject) -> None:
    """Plays a trainer: batches change at every regroup, which goes back by some steps that are done again."""
    size, epochs = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 3))
    rows: list[LedgerRange] = []
    state, history = (0, 0, 0), [(0, 0, 0)]
    generation, began = 1, {1: 0}
    while state[1] < epochs:
        batch = data.draw(st.integers(1, 12))
        for _ in range(data.draw(st.integers(1, 12))):
            step, epoch, cursor = state
            end = min(size, cursor + batch)
            rows.append(row(generation, epoch, step, step + 1, cursor, end))
            state = (step + 1, epoch, end) if end < size else (step + 1, epoch + 1, 0)
            history.append(state)
            if state[1] == epochs:
                break
        if state[1] < epochs:
            del history[max(1, len(history) - data.draw(st.integers(0, 3))) :]
            state, generation = history[-1], generation + 1
            began[generation] = state[0]
    made = ledger(*data.draw(st.permutations(rows)))
    verdict = made.exactly_once(dict.fromkeys(range(epochs), size))
    assert verdict.proved, verdict.text
    used = [(r.epoch, s) for r in made.lineage() for s in range(r.cursor, r.cursor_end)]
    assert used == [(e, s) for e in range(epochs) for s in range(size)]
    lost = data.draw(st.sampled_from(made.lineage()))
    rest = ledger(*(r for r in rows if r != lost))
    for number, step in began.items():
        rest.began(Generation(number), step)
    assert not rest.exactly_once(dict.fromkeys(range(epochs), size)).proved
