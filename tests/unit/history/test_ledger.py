"""The proof that each sample was used once per epoch, and the violations that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.ledger import Ledger, StepRanges

Rows = list[tuple[int, int, int, int, int, int]]


def row(generation: int, epoch: int, step: int, step_end: int, cursor: int, cursor_end: int) -> LedgerRange:
    return LedgerRange(Generation(generation), epoch, step, step_end, cursor, cursor_end)


def ledger(*rows: tuple[int, int, int, int, int, int]) -> Ledger:
    made = Ledger()
    made.add(row(*each) for each in rows)
    return made


WHOLE: Rows = [(1, 0, 0, 4, 0, 40), (2, 0, 4, 7, 40, 100), (2, 1, 7, 12, 0, 100)]


PAST: Rows = [(2, 0, 0, 1, 0, 10), (2, 0, 1, 12, 10, 120), (2, 0, 0, 6, 0, 60), (3, 0, 6, 10, 60, 100)]
"""Generation 2 lost all its nodes after step 12; generation 3 continued from the checkpoint at step 6."""

PROVED: list[tuple[Rows, list[int], str]] = [
    (WHOLE, [100, 100], "cover 2 epochs, 200 samples, in 12 steps"),
    (PAST, [100], "6 recorded steps voided"),
    ([], [], "cover 0 epochs"),
    ([(1, 0, 0, 9, 0, 90), (2, 0, 6, 8, 60, 100)], [100], "3 recorded steps voided"),
    ([(1, 0, 0, 2, 0, 20), (2, 0, 2, 4, 20, 36)], [36], "1 epoch"),  # other batches after a regroup
    # A generation's first step may take fewer samples: nodes may rehearse in it.
    ([(1, 0, 0, 2, 0, 20), (2, 0, 2, 3, 20, 30), (2, 0, 3, 6, 30, 90)], [90], "3 records"),
    ([(1, 0, 0, 4, 0, 95)], [95], "1 epoch"),  # a smaller last step
]
REFUSED: list[tuple[Rows, list[int], str]] = [
    ([(1, 0, 0, 4, 0, 40), (1, 0, 3, 3, 30, 30)], [40], "steps 3 to 2, epoch 0: reported with other samples"),
    ([(1, 0, 3, 3, 30, 30)], [40], "steps 3 to 2, epoch 0: reported with other samples"),
    ([(1, 0, 0, 2, 0, 20), (1, 0, 2, 4, 20, 36), (1, 0, 4, 6, 36, 56)], [56], "16 samples in 2 steps are uneven, 10"),
    ([(1, 0, 0, 2, 0, 20), (2, 0, 2, 3, 20, 40), (2, 0, 3, 6, 40, 70)], [70], "30 samples in 3 steps are uneven, 20"),
    ([(1, 0, 0, 2, 0, 20), (2, 0, 2, 4, 20, 40), (2, 0, 4, 6, 40, 80)], [80], "40 samples in 2 steps are uneven, 10"),
    ([(1, 0, 0, 2, 0, 40), (1, 0, 2, 3, 40, 50), (1, 0, 3, 4, 50, 70)], [70], "10 samples in 1 steps are uneven, 20"),
    ([(1, 0, 0, 9, 0, 90), (2, 0, 6, 8, 65, 100)], [100], "65 samples in 6 steps are uneven"),  # cut at another sample
    ([WHOLE[0], (2, 0, 4, 7, 50, 100)], [100], "sample 50, but step 4, epoch 0, sample 40 was next"),
    ([WHOLE[0], (2, 0, 4, 7, 30, 100)], [100], "sample 30, but step 4, epoch 0, sample 40 was next"),
    (WHOLE[:2], [100, 100], "it ends at epoch 0, sample 100; epoch 1 ends at sample 100"),
    ([], [100], "it ends at epoch 0, sample 0"),
    (WHOLE, [90, 90], "beyond the epoch's 90"),
    ([(1, 0, 0, 4, 0, 40), (1, 1, 4, 5, 0, 1)], [40], "epoch 1: sample 1 is beyond the epoch's 0"),
    ([(1, 0, 0, 4, 0, 3)], [3], "do not fill"),
    ([(1, 0, 0, 4, 0, 72)], [100], "it ends at epoch 0, sample 72"),
    ([(1, 0, 0, 2, 0, 20), (1, 0, 2, 4, 20, 30)], [30], "10 samples in 2 steps are uneven, 10"),  # an empty last step
]


@pytest.mark.parametrize(("rows", "sizes", "text"), [*PROVED, *REFUSED])
def test_what_is_proved_and_what_is_found(rows: Rows, sizes: list[int], text: str) -> None:
    verdict = ledger(*rows).exactly_once(dict(enumerate(sizes)))
    assert text in verdict.text
    assert verdict.proved == ((rows, sizes, text) in PROVED)


def test_records_may_come_late_twice_and_growing() -> None:
    made = ledger(WHOLE[2], WHOLE[0], (2, 0, 4, 5, 40, 60), WHOLE[1], WHOLE[0])
    assert made.lineage() == [row(*each) for each in WHOLE]
    assert made.voided_steps() == 0
    assert ledger(*PAST).lineage() == [row(*each) for each in PAST[2:]]
    twice = ledger((1, 0, 0, 8, 0, 80), (1, 1, 5, 6, 0, 10), (2, 0, 4, 10, 40, 100))
    assert twice.voided_steps() == 4, "steps that are reported twice are void once"


@pytest.mark.parametrize("order", [1, -1])
def test_two_reports_that_contradict_each_other_are_found(order: int) -> None:
    made = ledger(*((1, 0, 0, 4, 0, 40), (1, 0, 0, 6, 4, 64))[::order], (1, 0, 4, 10, 40, 100))
    assert "reported with other samples as well" in made.exactly_once({0: 100}).text
    made.began(Generation(2), 0)
    made.add([row(2, 0, 0, 10, 0, 100)])
    assert made.exactly_once({0: 100}).proved, "a void report need not be true"


def test_a_run_of_weeks_is_one_range_per_generation_and_epoch() -> None:
    made = Ledger()
    for step in range(20_000):
        begin = max(step - 3, step // 5000 * 5000)
        made.add([row(1 + step // 5000, 0, begin, step + 1, 10 * begin, 10 * step + 10)])
    assert made.lineage() == [row(g, 0, 5000 * (g - 1), 5000 * g, 50_000 * (g - 1), 50_000 * g) for g in range(1, 5)]


def ranges(*rows: tuple[int, int, int, int]) -> StepRanges:
    """One generation's reports in one epoch: steps from, to; samples from, to."""
    made = StepRanges()
    for each in rows:
        made.add(row(1, 0, *each))
    return made


@pytest.mark.parametrize(
    ("before", "last"),
    [
        (((0, 4, 0, 35), (0, 3, 0, 30)), (0, 1, 0, 12)),  # its first steps: others continue from them
        (((0, 1, 0, 10), (1, 2, 10, 20), (2, 3, 20, 30), (3, 4, 30, 40), (1, 4, 10, 40)), (0, 2, 0, 25)),  # repeated
        (((0, 2, 0, 20), (0, 1, 0, 10)), (0, 1, 0, 12)),  # one step is left
    ],
)
def test_a_point_between_steps_that_are_known_to_take_the_same_is_on_their_line(
    before: tuple[tuple[int, int, int, int], ...], last: tuple[int, int, int, int]
) -> None:
    assert ranges(*before).disputed is None
    assert ranges(*before, last).disputed == row(1, 0, *last)


def test_the_last_step_of_a_report_may_be_smaller_until_more_is_known() -> None:
    made = ranges((0, 4, 0, 40), (0, 1, 0, 12))
    assert made.disputed is None
    assert made.ranges == [row(1, 0, 0, 1, 0, 12), row(1, 0, 1, 4, 12, 40)]


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
        made = Ledger()
        made.add(reports)
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
def reports_of(draw: st.DrawFn, run: Run) -> list[LedgerRange]:
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
        kept = [s for s in spans if s in wide or draw(st.booleans()) or not any(a <= s[0] < b for a, b in wide)]
        reports += [
            replace(track[a], step_end=track[b - 1].step_end, cursor_end=track[b - 1].cursor_end) for a, b in kept
        ]
    return draw(st.permutations(reports))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_run_with_random_regroups_is_proved_however_it_is_reported(data: st.DataObject) -> None:
    run = data.draw(runs())
    made = run.judge(data.draw(reports_of(run)))
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
    reports = data.draw(reports_of(run))
    assert run.judge(reports).lineage() == run.judge(data.draw(st.permutations(reports))).lineage()
