"""Nodes that train in rounds, and die, join and leave at every point of one: each sample is used exactly once, the
ledger proves it, however it was reported, and finds what is wrong with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.ledger import Ledger, LedgerProof, proof
from pilot.protocol.run_identity import DROP_LAST, LENGTH, PER_NODE, SYNC, AcceptedChange
from pilot.train.data.deals import Range, closed, dealt

DISTURBED = 40
"""For so many turns."""


@dataclass(frozen=True)
class Held:
    """A state after a round; ``used``: how often its parameters were trained on each (epoch, sample)."""

    epoch: int = 0
    cursor: int = 0
    back: tuple[Range, ...] = ()
    step: int = 0
    rows: tuple[LedgerRange, ...] = ()
    used: tuple[tuple[int, int], ...] = ()
    changes: tuple[AcceptedChange, ...] = ()


@dataclass
class Round:
    """A node's view of a round that it opened: the deals of all nodes, which is its own, and how much it has done."""

    deals: list[list[Range]]
    cursor: int
    left: list[Range]
    own: int
    done: int = 0

    @property
    def deal(self) -> list[Range]:
        return self.deals[self.own]


@dataclass
class Node:
    held: Held
    round: Round | None = None

    def trains(self, rng: Random) -> None:
        """Do some more inner steps, perhaps none."""
        if self.round is not None:
            self.round.done = rng.randint(self.round.done, len(self.round.deal))


@dataclass(frozen=True)
class Moment:
    """The state that a leader holds, and what the coordinator was told by then."""

    held: Held
    reports: list[LedgerRange]
    began: dict[int, int]


@dataclass
class Run:
    """A training: nodes, generations, what the coordinator was told, and the checkpoints."""

    rng: Random
    first_batch: int
    every: int
    length: int
    drop_last: bool
    epochs: int
    batch: int = 0
    generation: int = 0
    generation_due: bool = True
    turns: int = 0
    nodes: list[Node] = field(default_factory=list)
    reports: list[LedgerRange] = field(default_factory=list)
    began: dict[int, int] = field(default_factory=dict)
    saved: list[Held] = field(default_factory=lambda: [Held()])
    formed: list[Moment] = field(default_factory=list)  # when groups did
    repeated: list[Moment] = field(default_factory=list)  # when their leaders had repeated what they know

    @property
    def size(self) -> int:
        """Samples of an epoch that are dealt."""
        return self.length // self.batch * self.batch if self.drop_last else self.length

    @property
    def is_over(self) -> bool:
        return bool(self.nodes) and self.nodes[0].held.epoch == self.epochs

    def generation_begins(self) -> None:
        """Nodes join, or all resume from a checkpoint; what they have not closed is closed, unless they break."""
        self.generation += 1
        newcomers = self.rng.randint(0 if self.nodes else 1, 2)
        newest = max((node.held for node in self.nodes), key=lambda held: held.step, default=None)
        if newest is None:
            newest = self._resumed(self.rng.choice(self.saved))
        for node in self.nodes:
            if node.held != newest:
                node.held, node.round = newest, None  # its work is in that state, or lost
        if any(node.round for node in self.nodes) and not self._close():
            return
        self.nodes += [Node(self.nodes[0].held if self.nodes else newest) for _ in range(newcomers)]
        self.began[self.generation] = self.nodes[0].held.step
        self.formed.append(self._moment())
        self.reports += self.nodes[0].held.rows  # the leader repeats them
        self.repeated.append(self._moment())

    def _moment(self) -> Moment:
        return Moment(self.nodes[0].held, list(self.reports), dict(self.began))

    def _resumed(self, held: Held) -> Held:
        """A checkpoint's state, because later ones are damaged; the batch may have been changed."""
        self.saved = [one for one in self.saved if one.rows == held.rows[: len(one.rows)]]
        before = self.batch = int(held.changes[-1].now) if held.changes else self.first_batch
        if self.drop_last or self.rng.random() < 0.7:
            return held
        self.batch = self.rng.randint(1, 4)
        change = AcceptedChange(held.step, PER_NODE, str(before), str(self.batch))
        return replace(held, changes=(*held.changes, change))

    def round(self) -> None:
        """Open a round, train and close it; nodes may die at any point of it."""
        if self.happens(0.1) and len(self.nodes) > 1:
            del self.nodes[self.rng.randrange(len(self.nodes))]  # it leaves after a round
        held = self.nodes[0].held
        assert all(node.held == held for node in self.nodes)
        deals, cursor, left = dealt(held.cursor, list(held.back), self.size, self.batch, len(self.nodes), self.every)
        for own, node in enumerate(self.nodes):
            node.round = Round(deals, cursor, left, own)
            node.trains(self.rng)
        if self.happens(0.2):
            self._break()
        else:
            self._close()

    def _close(self) -> bool:
        """GATHER, SUM and HELD of the nodes that have opened the same round; False: the group broke before all held."""
        opened = [node for node in self.nodes if node.round is not None]
        one = opened[0].round
        assert one is not None
        done = [0] * len(one.deals)
        for node in opened:
            assert node.round is not None and node.round.deals == one.deals
            done[node.round.own] = node.round.done
        breaks = self.happens(0.2)  # before anyone holds, after one does, or after all do
        after = self.rng.choice((0, 1, len(self.nodes))) if breaks else len(self.nodes)
        held = self._held(opened[0].held, one, done)
        by_leader_first = self.nodes if self.rng.random() < 0.5 else self.nodes[::-1]
        for node in by_leader_first[:after]:
            node.held, node.round = held, None
        if after and by_leader_first[0] is self.nodes[0] and self.rng.random() < 0.7:
            self.reports += held.rows
        if self.rng.random() < 0.3 and after == len(self.nodes):
            self.saved.append(held)
        if breaks:
            self._break()
        return not breaks

    def _held(self, before: Held, one: Round, done: list[int]) -> Held:
        """The outer step: what the parameters are trained on then, and what the ledger says."""
        if not any(done):
            return before  # nobody has done a step
        committed, back = closed(one.deals, done, one.left)
        used = [
            (before.epoch, sample)
            for deal, count in zip(one.deals, done, strict=True)
            for start, stop in deal[:count]
            for sample in range(start, stop)
        ]
        step = before.step + max(done)
        of = Generation(self.generation), before.epoch, before.step, step
        held = replace(
            before,
            cursor=one.cursor,
            back=tuple(back),
            step=step,
            rows=before.rows + tuple(LedgerRange(*of, start, stop) for start, stop in committed),
            used=before.used + tuple(used),
        )
        if held.cursor == self.size and not held.back:
            held = replace(held, epoch=held.epoch + 1, cursor=0)
        return held

    def _break(self) -> None:
        """Some nodes die, perhaps all; the others may go on with their deals."""
        dead = self.rng.sample(range(len(self.nodes)), self.rng.randint(1, len(self.nodes)))
        self.nodes = [node for at, node in enumerate(self.nodes) if at not in dead]
        for node in self.nodes:
            node.trains(self.rng)
        self.generation_due = True

    def trains(self) -> Held:
        """Train until the end. After some turns nothing happens to nodes any more, so that they come there."""
        self.batch = self.first_batch
        while not self.is_over or self.generation_due:
            self.turns += 1
            if self.generation_due:
                self.generation_due = False
                self.generation_begins()
            else:
                self.round()
                self.generation_due |= self.happens(0.1)
        return self.nodes[0].held

    def happens(self, likelihood: float) -> bool:
        return self.turns < DISTURBED and self.rng.random() < likelihood

    def judged(self, moment: Moment, epochs: int | None = None) -> LedgerProof:
        """The proof of what was reported by then, some of it repeatedly and in any order."""
        words = {LENGTH: str(self.length), PER_NODE: str(self.batch), DROP_LAST: str(self.drop_last), SYNC: "diloco"}
        ledger = Ledger(words, moment.held.changes)
        reports = moment.reports + self.rng.sample(moment.reports, min(3, len(moment.reports)))
        self.rng.shuffle(reports)
        for report in reports:
            ledger.add([report])
        for generation, step in moment.began.items():
            ledger.began(Generation(generation), step)
        return proof(ledger, epochs)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Run, Moment]:
    """A training, and its end."""
    batch = draw(st.integers(1, 4))
    run = Run(
        Random(draw(st.integers(0, 2**32))),
        batch,
        every=draw(st.integers(1, 4)),
        length=draw(st.integers(batch, 60)),
        drop_last=draw(st.booleans()),
        epochs=draw(st.integers(1, 3)),
    )
    held = run.trains()
    return run, Moment(held, [*run.reports, *held.rows], run.began)


@settings(max_examples=200, deadline=None)
@given(runs())
def test_each_sample_is_used_exactly_once_and_the_ledger_proves_it(trained: tuple[Run, Moment]) -> None:
    run, end = trained
    verdict, counts = run.judged(end, run.epochs), Counter(end.held.used)
    assert verdict.proved, verdict.text
    assert set(counts.values()) == {1}
    assert counts.keys() == {(epoch, at) for epoch in range(run.epochs) for at in range(run.size)}
    recorded = [(row.epoch, at) for row in end.held.rows for at in range(row.cursor, row.cursor_end)]
    assert Counter(recorded) == counts
    assert (verdict.samples, verdict.steps, verdict.epochs) == (len(end.held.used), end.held.step, run.epochs)
    assert verdict.rounds == len({row.step for row in end.held.rows})


@settings(max_examples=200, deadline=None)
@given(runs())
def test_no_sample_was_used_twice_whenever_a_group_forms(trained: tuple[Run, Moment]) -> None:
    run, _ = trained
    formed, moment = run.judged(run.rng.choice(run.formed)), run.rng.choice(run.repeated)
    assert formed.proved, formed.text
    verdict = run.judged(moment)
    assert verdict.proved, verdict.text
    assert (verdict.samples, verdict.steps) == (len(set(moment.held.used)), moment.held.step)


def mutated(rows: list[LedgerRange], kind: str, rng: Random) -> tuple[LedgerRange, list[LedgerRange]] | None:
    """A row, and what was reported in its place; None: no row can be changed so."""
    row = rng.choice(rows)
    if kind == "lost":
        return row, []
    if kind == "shifted":
        by = rng.choice([by for by in (-3, -2, -1, 1, 2, 3) if row.cursor + by >= 0])
        return row, [replace(row, cursor=row.cursor + by, cursor_end=row.cursor_end + by)]
    if kind == "longer":
        return row, [replace(row, cursor_end=row.cursor_end + rng.randint(1, 3))]
    if kind == "shorter":
        return row, [replace(row, cursor_end=row.cursor_end - 1)]
    if kind == "contradicted":
        return row, [row, replace(row, step_end=row.step_end + 1)]
    others = [one for one in rows if one.epoch == row.epoch and one.step != row.step]
    return (row, [row, replace(rng.choice(others), cursor=row.cursor, cursor_end=row.cursor_end)]) if others else None


@settings(max_examples=200, deadline=None)
@given(runs(), st.sampled_from(("lost", "shifted", "longer", "shorter", "contradicted", "twice")))
def test_what_is_wrong_with_a_row_is_found(trained: tuple[Run, Moment], kind: str) -> None:
    run, end = trained
    if (found := mutated(list(end.held.rows), kind, run.rng)) is None:
        return
    row, instead = found
    reports = [one for one in end.reports if one != row] + instead
    assert not run.judged(replace(end, reports=reports), run.epochs).proved, f"{row} was reported as {instead}"
