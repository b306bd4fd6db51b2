"""The proof that each sample was used once per epoch, and the violations that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.ledger import Ledger


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


def test_a_past_told_anew_by_who_resumed_from_a_checkpoint_is_no_gap() -> None:
    """Generation 2 lost all its nodes after step 12; generation 3 continued from the checkpoint at step 6."""
    made = ledger(row(2, 0, 0, 1, 0, 10), row(2, 0, 1, 12, 10, 120), row(2, 0, 0, 6, 0, 60), row(3, 0, 6, 10, 60, 100))
    assert made.lineage() == [row(2, 0, 0, 6, 0, 60), row(3, 0, 6, 10, 60, 100)]
    assert made.voided_steps() == 6
    verdict = made.exactly_once({0: 100})
    assert verdict.proved, verdict.text


def test_steps_that_are_told_twice_are_void_once() -> None:
    made = ledger(row(1, 0, 0, 8, 0, 80), row(1, 1, 5, 6, 0, 10), row(2, 0, 4, 10, 40, 100))
    assert made.voided_steps() == 4


def test_two_tales_of_the_same_steps_are_found() -> None:
    for first, second in ((0, 1), (1, 0)):
        tales = (row(1, 0, 0, 4, 0, 40), row(1, 0, 0, 6, 4, 64))
        made = ledger(tales[first], tales[second], row(1, 0, 4, 10, 40, 100))
        assert "reported with other samples as well" in made.exactly_once({0: 100}).text
        made.began(Generation(2), 0)
        made.add([row(2, 0, 0, 10, 0, 100)])
        assert made.exactly_once({0: 100}).proved, "what is void need not be true"


def test_a_record_without_steps_is_found() -> None:
    made = ledger(row(1, 0, 0, 4, 0, 40), row(1, 0, 3, 3, 30, 30))
    assert "steps 3 to 2, epoch 0: reported with other samples" in made.exactly_once({0: 40}).text
    assert not ledger(row(1, 0, 3, 3, 30, 30)).exactly_once({0: 40}).proved


def test_a_step_of_another_size_than_the_others_of_its_generation_is_found() -> None:
    made = ledger(row(1, 0, 0, 2, 0, 20), row(1, 0, 2, 4, 20, 36), row(1, 0, 4, 6, 36, 56))
    assert "16 samples in 2 steps are uneven, 10 per step" in made.exactly_once({0: 56}).text
    assert ledger(row(1, 0, 0, 2, 0, 20), row(2, 0, 2, 4, 20, 36)).exactly_once({0: 36}).proved


def test_a_run_of_weeks_is_one_range_per_generation_and_epoch() -> None:
    made = Ledger()
    for step in range(20_000):
        begin = max(step - 3, step // 5000 * 5000)
        made.add([row(1 + step // 5000, 0, begin, step + 1, 10 * begin, 10 * step + 10)])
    assert made.lineage() == [row(g, 0, 5000 * (g - 1), 5000 * g, 50_000 * (g - 1), 50_000 * g) for g in range(1, 5)]


def test_only_a_generations_first_step_may_take_fewer_samples_than_others() -> None:
    """Nodes may rehearse in it."""
    made = ledger(row(1, 0, 0, 2, 0, 20), row(2, 0, 2, 3, 20, 30), row(2, 0, 3, 6, 30, 90))
    assert made.exactly_once({0: 90}).proved
    assert len(made.lineage()) == 3
    more = ledger(row(1, 0, 0, 2, 0, 20), row(2, 0, 2, 3, 20, 40), row(2, 0, 3, 6, 40, 70))
    assert "30 samples in 3 steps are uneven, 20 per step" in more.exactly_once({0: 70}).text
    two = ledger(row(1, 0, 0, 2, 0, 20), row(2, 0, 2, 4, 20, 40), row(2, 0, 4, 6, 40, 80))
    assert "40 samples in 2 steps are uneven, 10 per step" in two.exactly_once({0: 80}).text
    later = ledger(row(1, 0, 0, 2, 0, 40), row(1, 0, 2, 3, 40, 50), row(1, 0, 3, 4, 50, 70))
    assert "10 samples in 1 steps are uneven, 20 per step" in later.exactly_once({0: 70}).text


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
    assert Ledger().exactly_once({}).proved, "no epochs, and no samples"


def test_more_samples_than_the_epoch_has_are_found() -> None:
    assert "beyond the epoch's 90" in ledger(*WHOLE).exactly_once({0: 90, 1: 90}).text
    one_more = ledger(row(1, 0, 0, 4, 0, 40), row(1, 1, 4, 5, 0, 1))
    assert "epoch 1: sample 1 is beyond the epoch's 0" in one_more.exactly_once({0: 40}).text


def test_a_step_without_samples_is_found() -> None:
    assert "do not fill" in ledger(row(1, 0, 0, 4, 0, 3)).exactly_once({0: 3}).text


def test_the_last_step_of_an_epoch_may_be_smaller() -> None:
    assert ledger(row(1, 0, 0, 4, 0, 95)).exactly_once({0: 95}).proved is True
    assert ledger(row(1, 0, 0, 4, 0, 72)).exactly_once({0: 100}).proved is False
    empty = ledger(row(1, 0, 0, 2, 0, 20), row(1, 0, 2, 4, 20, 30))
    assert "10 samples in 2 steps are uneven, 10 per step" in empty.exactly_once({0: 30}).text


@dataclass(frozen=True)
class Run:
    """A trainer's history: a row per step of each generation, where each began, and the contents of an epoch."""

    rows: list[LedgerRange]
    began: dict[int, int]
    epochs: int
    size: int

    @property
    def sizes(self) -> dict[int, int]:
        return dict.fromkeys(range(self.epochs), self.size)

    def counts(self, record: LedgerRange) -> bool:
        """Whether no later generation repeated this step."""
        return all(record.step < step for number, step in self.began.items() if number > record.generation)

    def judge(self, reports: Sequence[LedgerRange]) -> Ledger:
        made = ledger(*reports)
        for number, step in self.began.items():
            made.began(Generation(number), step)
        return made


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Batches change at every regroup, which goes back a few steps that are then repeated."""
    size, epochs = draw(st.integers(1, 60)), draw(st.integers(1, 3))
    rows: list[LedgerRange] = []
    state, history = (0, 0, 0), [(0, 0, 0)]
    generation, began = 1, {1: 0}
    while state[1] < epochs:
        batch = draw(st.integers(1, 12))
        for _ in range(draw(st.integers(1, 12))):
            step, epoch, cursor = state
            end = min(size, cursor + batch)
            rows.append(row(generation, epoch, step, step + 1, cursor, end))
            state = (step + 1, epoch, end) if end < size else (step + 1, epoch + 1, 0)
            history.append(state)
            if state[1] == epochs:
                break
        if state[1] < epochs:
            del history[max(1, len(history) - draw(st.integers(0, 3))) :]
            state, generation = history[-1], generation + 1
            began[generation] = state[0]
    return Run(rows, began, epochs, size)


@st.composite
def tellings(draw: st.DrawFn, run: Run) -> list[LedgerRange]:
    """All of a run as it may be reported: in pieces cut anywhere, some repeated with different cuts, in any order."""
    tracks: dict[tuple[int, int], list[LedgerRange]] = {}
    for record in run.rows:
        tracks.setdefault((record.generation, record.epoch), []).append(record)
    reports: list[LedgerRange] = []
    for track in tracks.values():
        spans = [(i, i + 1) for i in range(len(track))]
        for _ in range(draw(st.integers(0, 3))):
            begin = draw(st.integers(0, len(track) - 1))
            spans.append((begin, draw(st.integers(begin + 1, len(track)))))
        wide = [(a, b) for a, b in spans if b - a > 1]
        told = [s for s in spans if s in wide or draw(st.booleans()) or not any(a <= s[0] < b for a, b in wide)]
        reports += [
            replace(track[a], step_end=track[b - 1].step_end, cursor_end=track[b - 1].cursor_end) for a, b in told
        ]
    return draw(st.permutations(reports))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_run_with_random_regroups_is_proved_however_it_is_told(data: st.DataObject) -> None:
    run = data.draw(runs())
    made = run.judge(data.draw(tellings(run)))
    verdict = made.exactly_once(run.sizes)
    assert verdict.proved, verdict.text
    used = [(r.epoch, s) for r in made.lineage() for s in range(r.cursor, r.cursor_end)]
    assert used == [(e, s) for e in range(run.epochs) for s in range(run.size)]
    done = {(r.generation, r.step) for r in run.rows}
    assert made.voided_steps() == len(done) - len([r for r in run.rows if run.counts(r)])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_step_that_nobody_reported_is_found(data: st.DataObject) -> None:
    run = data.draw(runs())
    lost = data.draw(st.sampled_from([r for r in run.rows if run.counts(r)]))
    reports = data.draw(st.permutations([r for r in run.rows if r != lost]))
    assert not run.judge(reports).exactly_once(run.sizes).proved


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_a_false_report_among_true_ones_is_found_in_any_order(data: st.DataObject) -> None:
    run = data.draw(runs())
    counting = [r for r in run.rows if run.counts(r)]
    true = data.draw(st.sampled_from(counting))
    last = data.draw(
        st.sampled_from(
            [r for r in counting if (r.generation, r.epoch) == (true.generation, true.epoch) and r.step >= true.step]
        )
    )
    false = replace(true, step_end=last.step_end, cursor_end=last.cursor_end)
    wrong = data.draw(st.integers(-30, 30).filter(bool))
    end = data.draw(st.sampled_from(("cursor", "cursor_end", "epoch")))
    false = replace(false, **{end: getattr(false, end) + wrong})
    verdict = run.judge(data.draw(st.permutations([*run.rows, false]))).exactly_once(run.sizes)
    assert not verdict.proved, f"{false} was believed"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_known_does_not_depend_on_the_order_of_reports(data: st.DataObject) -> None:
    run = data.draw(runs())
    reports = data.draw(tellings(run))
    assert run.judge(reports).lineage() == run.judge(data.draw(st.permutations(reports))).lineage()
