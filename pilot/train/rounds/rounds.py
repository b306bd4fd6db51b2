"""The rounds of a session with ``sync=``, between its steps and its group.

=======  ==============================================================================================================
open     all nodes hold the same shared values, and know which samples each was dealt (:mod:`pilot.train.data.deals`);
         each does *inner* steps by itself, as a group of one node
closing  a node has used its deal, or is asked to switch, to pause or to save, or its script evaluates or stops: it
         gathers, and its rank process tells the other nodes, which gather after their current inner step
gather   all know how many batches each has used
sum      the changes of the shared values are added up (:mod:`pilot.train.rounds.exchange`)
held     the outer optimizer has stepped; the samples that were used are committed, and the others go back
=======  ==============================================================================================================

If the group breaks before a round is held, a node keeps its work, and goes on with its deal until the next generation
starts. Its ranks first compare which round each has held. Those that are behind lose their work: it was in the sum of
the round that others have held, or they trained without the others, and then its samples were put back. The most
advanced ones close the round together; what nodes that are gone were dealt goes back. Only then do newcomers get the
state, which is always that of a held round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from statistics import median

from pilot.comm.channel import PeerGone
from pilot.core.errors import PilotError
from pilot.submission.seldom import EXCHANGE_S, INNER_STEP_S, ROUND
from pilot.train.data import deals
from pilot.train.data.deals import Range
from pilot.train.data.loader import DatasetBatches
from pilot.train.data.sampler import StepShare, mix
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership, Seat
from pilot.train.node.node_ties import NodeTies
from pilot.train.ranks.group import RankGroup
from pilot.train.ranks.reporter import HeldRound, Metrics
from pilot.train.rounds.exchange import OuterExchange
from pilot.train.script import refusal
from pilot.train.state.outer import Outer
from pilot.train.state.progress import LineageRow, Position
from pilot.train.state.state_transfer import NOTHING, Holding
from pilot.train.state.training import Training
from pilot.train.steps.alarm import Alarm

_ROW = 4
_ADVISED_AFTER, _ADVISED_PART = 3, 0.05
"""After so many rounds the log recommends an ``every`` with which exchanges take this part of the time."""


@dataclass(slots=True)
class Round:
    """An open round: of which nodes each has which batches, and what this node has done since it began."""

    held: Holding  #: this rank's, when the round began
    position: Position  #: likewise
    deals: list[list[Range]]  #: the batches of each node
    back: list[Range]  #: what was put back before and is not dealt
    cursor: int  #: of the epoch, after the deals
    node: int  #: this node
    opened_s: float
    used: int = 0  #: batches, which are as many inner steps
    loss: float = 0.0  #: the sum of their mean losses times samples

    @property
    def own(self) -> list[Range]:
        """This node's batches."""
        return self.deals[self.node]

    @property
    def samples(self) -> int:
        """How many samples this node has used."""
        return sum(stop - start for start, stop in self.own[: self.used])

    def row(self) -> list[int]:
        """Return what other ranks must know to close it: nodes, this node, its batches and samples so far."""
        return [len(self.deals), self.node, self.used, self.samples]


class Rounds(RankGroup):
    """The group of one node in a round, for the session's steps.

    ``of_all``: the group of all nodes; ``steps_left``: returns the most steps until the script's loop ends;
    ``is_stopping``: returns whether the script wants no more; ``on_held``: called with the step when a round is held.

    Parameters
    ----------
    training, outer, exchange : the session's state, the part of it that nodes share, and its exchange
    inner : the gradients of inner steps
    seat, ties : this process's place on its node, and the connection to its other processes
    made : returns the session's batches
    alarm : compares the shared values
    measured : gets measurements, to report with the trainer's progress
    """

    def __init__(
        self,
        training: Training,
        outer: Outer,
        exchange: OuterExchange,
        inner: Exchanges,
        seat: Seat,
        ties: NodeTies,
        made: Callable[[], DatasetBatches],
        alarm: Alarm,
        measured: dict[str, float],
    ) -> None:
        super().__init__(training, lambda _size: None)
        self._training, self._outer, self.exchange = training, outer, exchange
        self._inner, self._ties = inner, ties
        self._seat, self._made, self._alarm = seat, made, alarm
        self._measured = measured
        self.of_all: RankGroup = self
        self.steps_left: Callable[[], int | None] = lambda: None
        self.is_stopping: Callable[[], bool] = lambda: False
        self.on_held: Callable[[int], None] = lambda _step: None
        self._round: Round | None = None
        self._ends, self._asked_at = 0, -1
        self._metrics: Metrics = dict
        self._exchanges_s: list[float] = []

    # --- the group of one node, for steps ----------------------------------------------------------------------------

    @property
    def revision(self) -> int:  # type: ignore[override]  # it follows from two counts
        return self.of_all.revision + self._ends

    @property
    def is_over(self) -> bool:
        return self.of_all.is_over

    def everyone(self, member: Membership) -> Membership:  # noqa: ARG002  # a step's, which is of this node
        return self.place()

    def enter(self) -> Membership:
        """Return this process's place on its node; between two rounds, after waiting for a group of all nodes."""
        generation = self._round.held.generation if self._round is not None else self.of_all.enter().generation
        return Membership(generation, self._seat.rank, self._seat.size)

    def place(self) -> Membership:
        """Return this process's place among those of all nodes."""
        return self._place(self._round) if self._round is not None else self.of_all.enter()

    def _place(self, one: Round) -> Membership:
        place = one.node * self._seat.size + self._seat.rank, len(one.deals) * self._seat.size
        return Membership(one.held.generation, *place)

    def attach(self) -> None:
        self.exchange.renew()
        self.of_all.attach()

    def seed_of(self, position: Position, share: StepShare) -> int:
        return mix(position.epoch, share.cursor)  # nodes do the same number of steps with other samples

    def words(self, loss: float) -> Words:
        return Words.of(0, False, loss)

    def summed(self) -> bool:
        for exchange in self._inner.each:
            self._ties.sum(exchange.control)
        return True

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        one = self._round
        assert one is not None
        one.used += 1
        one.loss += words.loss * share.total
        self._metrics = metrics
        self.of_all.stepped_alone(share, metrics)

    def settle(self) -> None:
        """Close the round if it is time, or let the group of all nodes do what waits for a round's end. The script has
        done what belongs to its inner step: on all nodes that counts for the round.
        """
        one = self._round
        if one is None:
            self.of_all.settle()
        elif self._asked_at != one.used:  # once after each inner step, on all processes of the node
            self._asked_at = one.used
            if any(self._ties.exchange(int(self._is_due(one)))):
                self.end(wait=one.used == len(one.own) or self.of_all.is_lost)

    def finish(self, metrics: Metrics) -> None:
        self.of_all.finish(metrics)

    def distrust(self, step: int) -> str:
        return self.of_all.distrust(step)

    def remark(self, text: str) -> None:
        self.of_all.remark(text)

    def rested(self, seconds: float) -> None:
        self.of_all.rested(seconds)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def deal(self) -> list[Range]:
        """Return the batches that are left of this node's deal."""
        return [] if self._round is None else self._round.own[self._round.used :]

    @property
    def is_done(self) -> bool:
        """Whether the script's loop has no more steps: another node has done the last one."""
        left = self.steps_left()
        return self._round is None and left is not None and left <= 0

    @property
    def is_open(self) -> bool:
        """Whether a round is open."""
        return self._round is not None

    def epoch_is_over(self) -> bool:
        """Return whether all samples of the epoch are committed."""
        position = self._training.position
        return self._round is None and position.cursor >= self._length and not position.back

    def open(self) -> None:
        """Open a round, unless one is open or the epoch is over. All ranks call this in the same position."""
        if self._round is not None or self.epoch_is_over():
            return
        if self.of_all.is_lost:  # the others do not hold this position any more
            return
        position, group, left = self._training.position, self.of_all.enter(), self.steps_left()
        most = self._outer.settings.every
        every = most if left is None else min(left, most)
        back = [(start, stop) for start, stop in position.back]
        batch, nodes = self._made().batching.of_one_node, group.size // self._seat.size
        dealt, cursor, back = deals.dealt(position.cursor, back, self._length, batch, nodes, every)
        node, holding = group.rank // self._seat.size, self._training.holding(self.of_all.held)
        self._round = Round(holding, replace(position), dealt, back, cursor, node, time.monotonic())
        self._ends += 1
        self._asked_at = -1
        self._outer.open()
        # At an epoch's end some nodes have a batch less, or none: to use up these must not end the others' round.
        self.of_all.opened(position.round, ends=len(dealt[node]) == max(map(len, dealt)))

    def end(self, *, wait: bool = True) -> None:
        """End the open round, if there is one; if the group breaks, with the next one: ``wait`` for that, or leave the
        round open for more inner steps until it can start.
        """
        while self._round is not None:
            with suppress(PeerGone):
                self._close(self._round)
            if self._round is not None and not wait:
                return
            if self._round is not None:
                self.of_all.enter()

    def _is_due(self, one: Round) -> bool:
        return one.used == len(one.own) or self.is_stopping() or self.of_all.is_asked(one.position.round)

    def _close(self, one: Round) -> None:
        """End the round with all ranks of its group; :class:`PeerGone` if it broke, and the round stays open."""
        closing_s = time.monotonic()
        if self._ties.tied and len(set(self._ties.exchange(self._outer.in_node()))) > 1:
            raise PilotError("the processes of this node, which train together, no longer hold the same parameters")
        rows = self.of_all.rows(one.row())

        def words(loss: float) -> Words:
            checksum = self._alarm.checksum(one.position.round, self._place(one))
            own, stop = self.of_all.words(loss), float(self.is_stopping())
            return replace(own, stop=stop, checksum=checksum, checksum_squares=checksum * checksum)

        any_used = any(used for _, _, used, _ in rows)
        summed, samples = self._sum(one, rows, words) if any_used else (self._agreed(words(0.0)), 0)
        if len(one.deals) == 1:
            self._training.agreed_step = one.position.step
        if any_used and not self._alarm.compare(summed, one.position.step, self.of_all, len(rows)):
            raise PeerGone
        self._training.position.stopped |= summed.stop > 0
        committed = self._hold(one, one.held.generation, rows)
        trained_s, exchange_s = closing_s - one.opened_s, time.monotonic() - closing_s
        if one.used:
            self._measure(one, trained_s / one.used, exchange_s)
        part = max(used for _, _, used, _ in rows) / max(1, *map(len, one.deals))
        self.of_all.held_round(summed, HeldRound(committed, samples, trained_s, exchange_s, part), self._metrics)

    def _agreed(self, words: Words) -> Words:
        """Return the sums of what ranks say with their ``words`` if they have nothing to exchange."""
        said = self.of_all.rows([int(words.ready), int(words.pause), int(words.stop)])
        ready, pause, stop = zip(*said, strict=True)
        return Words(sum(ready), sum(one * one for one in ready), sum(pause), 0.0, 0.0, 0.0, stop=sum(stop))

    def regroup(self, group: Membership, held: int) -> None:
        """Before the ranks of a new ``group`` share a state: close the round that the most advanced ones have open,
        with those of its nodes that are here. ``held``: the generation in which this rank's state was last confirmed.
        """
        one = self._round
        holding = one.held if one is not None else self._training.holding(held)
        row = one.row() if one is not None else [0] * _ROW
        table = self.of_all.rows([*holding.row(), self._outer.fingerprint(), *row])
        progress = [Holding(*row[: -_ROW - 1]).progress for row in table]
        best = max(progress)
        rows = [row[-_ROW:] if its == best else [0] * _ROW for row, its in zip(table, progress, strict=True)]
        if best[0] != NOTHING and any(used for _, _, used, _ in rows):
            one = one if holding.progress == best else None
            if len({row[-_ROW - 1] for row in table}) == 1:
                self._sum(one, rows, lambda loss: Words.of(0, False, loss))
                if one is not None:
                    self._hold(one, group.generation, rows)
            elif one is not None:  # a newcomer does not train what the others do by now, and could not take part
                self._outer.swap()
                self._training.call_on_restore()
        if self._round is not None:  # its work was in a sum that others have, or is lost: its samples go back
            self._training.position = self._round.position
            self._forget()

    @contextmanager
    def as_held(self) -> Iterator[None]:
        """In the body, have the state of the last round that is held, which can be saved."""
        if (one := self._round) is None:
            yield
            return
        now, self._training.position = self._training.position, one.position
        self._outer.swap()
        try:
            yield
        finally:
            self._outer.swap()
            self._training.position = now

    def _sum(
        self, one: Round | None, rows: Sequence[Sequence[int]], words: Callable[[float], Words]
    ) -> tuple[Words, int]:
        """Exchange what ``rows``, one of each rank, have done, and return the summed words and all samples; ``one``:
        this rank's part of it.
        """
        total = sum(samples for _, _, _, samples in rows[:: self._seat.size])
        samples, loss = (one.samples, one.loss) if one is not None else (0, 0.0)
        counted = 0 if self._seat.rank else samples  # once for each node

        def own() -> Words:
            return replace(words(loss / total if counted else 0.0), samples=counted)

        weight = samples / total / self._seat.size if samples else 0.0
        summed = self.exchange.sum(self.of_all, len(rows), weight, own)
        if summed.samples != total:
            raise PilotError(f"the ranks exchanged {summed.samples:.0f} samples in a round of {total}")
        return summed, total

    def _hold(self, one: Round, generation: int, rows: Sequence[Sequence[int]]) -> list[LineageRow]:
        """Step the outer optimizer, advance the position, and return what is committed. A round without inner steps
        changes nothing.
        """
        used = [0] * len(one.deals)
        for nodes, node, count, _ in rows:
            if nodes:
                used[node] = count
        committed, back = deals.closed(one.deals, used, one.back)
        self._training.position.round += 1
        if not committed:
            self._forget()
            return []
        self._outer.step()
        position, before, most = self._training.position, one.position, max(used)
        self._training.skip_steps(most - one.used)
        position.step, position.epoch_steps = before.step + most, before.epoch_steps + most
        position.samples = before.samples + sum(stop - start for start, stop in committed)
        position.cursor, position.back = one.cursor, [list(its) for its in back]
        ledger = [LineageRow(generation, position.epoch, before.step, position.step, *its) for its in committed]
        for row in ledger:
            self._training.ledger.append(row)
        self.on_held(position.step)
        self._forget()
        return ledger

    def _forget(self) -> None:
        self._round = None
        self._ends += 1

    @property
    def _length(self) -> int:
        """The number of samples of an epoch that are dealt."""
        batches = self._made()
        return batches.length - (batches.length % batches.batching.of_one_node if batches.batching.drop_last else 0)

    def _measure(self, one: Round, step_s: float, exchange_s: float) -> None:
        """Measure what the round took, and recommend an ``every`` after the first ones."""
        self._measured |= {ROUND: float(one.position.round + 1), EXCHANGE_S: exchange_s, INNER_STEP_S: step_s}
        if len(one.deals) == 1 or len(self._exchanges_s) == _ADVISED_AFTER:
            return
        self._exchanges_s.append(exchange_s)
        if len(self._exchanges_s) == _ADVISED_AFTER and self._place(one).rank == 0:
            x_s, every = median(self._exchanges_s), self._outer.settings.every
            part, advised = x_s / (x_s + step_s * every), math.ceil(x_s / (step_s * _ADVISED_PART))
            if 0.8 < advised / every < 1.25:
                return
            refusal.note(
                f"an exchange takes {x_s:.2g} s and an inner step {step_s:.2g} s: with every={every} exchanges take"
                f" {part:.0%} of the time, and with every={advised} they would take {_ADVISED_PART:.0%}"
                + (", and the loss may be lower" if advised < every else "")
            )
