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
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.metric_log import MetricLog
from pilot.train.node.membership import Membership, Seat
from pilot.train.node.node_ties import NodeTies
from pilot.train.ranks.group import RankGroup
from pilot.train.ranks.reporter import Metrics
from pilot.train.rounds.exchange import OuterExchange
from pilot.train.script import refusal
from pilot.train.state.progress import LineageRow, Position
from pilot.train.state.state_transfer import NOTHING, Holding
from pilot.train.state.training import Training
from pilot.train.steps.alarm import Alarm

_NO_WORK = [0, 0, 0]
"""Instead of :meth:`Round.row`."""
_ADVISED_AFTER, _ADVISED_PART = 3, 0.05
"""After so many rounds the log recommends an ``every`` with which exchanges take this part of the time."""


@dataclass(slots=True)
class Round:
    """An open round: of which nodes each has which batches, and what this node has done since it began."""

    place: Membership  #: this process's among those of all nodes
    held: Holding  #: this rank's, when the round began
    position: Position  #: likewise
    deals: list[list[Range]]  #: the batches of each node
    back: list[Range]  #: what was put back before and is not dealt
    cursor: int  #: of the epoch, after the deals
    node: int  #: this node
    opened_s: float
    used: int = 0  #: batches, which are as many inner steps
    asked_at: int = -1  #: after so many of them it was last asked whether the round is to end

    @property
    def own(self) -> list[Range]:
        """This node's batches."""
        return self.deals[self.node]

    @property
    def samples(self) -> int:
        """How many samples this node has used."""
        return sum(stop - start for start, stop in self.own[: self.used])

    def row(self) -> list[int]:
        """Return what other ranks must know to close it: this node, its batches and samples so far."""
        return [self.node, self.used, self.samples]


class Rounds(RankGroup):
    """The group of one node in a round, for the session's steps.

    ``steps_left``: returns the most steps until the script's loop ends; ``is_stopping``: returns whether the script
    wants no more; ``logs``: continue after a round with the step of the node that has done the most.

    Parameters
    ----------
    of_all : the group of all nodes
    training, exchange : the session's state, and the exchange of the part of it that nodes share
    inner : the gradients of inner steps
    seat, ties : this process's place on its node, and the connection to its other processes
    made : returns the session's batches
    measured : gets measurements, to report with the trainer's progress
    """

    def __init__(
        self,
        of_all: RankGroup,
        training: Training,
        exchange: OuterExchange,
        inner: Exchanges,
        seat: Seat,
        ties: NodeTies,
        made: Callable[[], DatasetBatches],
        measured: dict[str, float],
    ) -> None:
        super().__init__(training, lambda _size: None)
        self._of_all, self._training, self._outer, self.exchange = of_all, training, exchange.outer, exchange
        self._inner, self._seat, self._ties, self._made = inner, seat, ties, made
        self._alarm = Alarm(training, ties)
        self._measured = measured
        of_all.regroup, of_all.as_held = self._regroup, self._as_held
        self.steps_left: Callable[[], int] = lambda: exchange.outer.settings.every
        self.is_stopping: Callable[[], bool] = lambda: False
        self.logs: list[MetricLog] = []
        self._round: Round | None = None
        self._ends = 0
        self._exchanges_s: list[float] = []

    # --- the group of one node, for steps ----------------------------------------------------------------------------

    @property
    def revision(self) -> int:  # type: ignore[override]  # it follows from two counts
        return self._of_all.revision + self._ends

    def everyone(self, member: Membership) -> Membership:  # noqa: ARG002  # a step's, which is of this node
        return self.place()

    def enter(self) -> Membership:
        """Return this process's place on its node; between two rounds, after waiting for a group of all nodes."""
        return Membership(self.place().generation, self._seat.rank, self._seat.size)

    def place(self) -> Membership:
        """Return this process's place among those of all nodes."""
        return self._round.place if self._round is not None else self._of_all.enter()

    def attach(self) -> None:
        self.exchange.renew()
        self._of_all.attach()

    def summed(self) -> bool:
        for exchange in self._inner.each:
            self._ties.sum(exchange.control)
        return True

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        assert self._round is not None
        self._round.used += 1
        self._of_all.applied(words, share, metrics)

    def settle(self) -> None:
        """Between two rounds, let the group of all nodes do what waits for a round's end."""
        if self._round is None:
            self._of_all.settle()

    # --- rounds ------------------------------------------------------------------------------------------------------

    def deal(self) -> list[Range]:
        """Return the batches that are left of this node's deal."""
        return [] if self._round is None else self._round.own[self._round.used :]

    def open(self) -> None:
        """Open a round, unless the epoch is over. All ranks call this in the same position, between two rounds."""
        if self._of_all.is_lost:  # the others do not hold this position any more
            return
        position, batches, place = self._training.position, self._made(), self._of_all.enter()
        batch, length = batches.batching.of_one_node, batches.length
        if batches.batching.drop_last:
            length -= (length - position.cursor) % batch
        node, nodes = place.rank // self._seat.size, place.size // self._seat.size
        every = min(self._outer.settings.every, self.steps_left())
        dealt, cursor, back = deals.dealt(position.cursor, position.back, length, batch, nodes, every)
        if not any(dealt):
            return
        holding = self._training.holding(self._of_all.confirmed)
        self._round = Round(place, holding, replace(position), dealt, back, cursor, node, time.monotonic())
        self._ends += 1
        self._outer.open()
        # At an epoch's end some nodes have a batch less, or none: to use up these must not end the others' round.
        self._of_all.opened(position.round, ends=len(dealt[node]) == max(map(len, dealt)))

    def goes_on(self) -> bool:
        """End the open round if it is time. Return whether one is open. The script has done what belongs to its inner
        step: on all nodes that counts for the round.
        """
        one = self._round
        if one is not None and one.asked_at != one.used:  # once after each inner step, on all processes of the node
            one.asked_at = one.used
            is_due = one.used == len(one.own) or self.is_stopping() or self._of_all.is_asked(one.position.round)
            if any(self._ties.exchange(int(is_due))):
                self.end(wait=one.used == len(one.own) or self._of_all.is_lost)
        return self._round is not None

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
                self._of_all.enter()

    def _close(self, one: Round) -> None:
        """End the round with all ranks of its group; :class:`PeerGone` if it broke, and the round stays open."""
        closing_s = time.monotonic()
        if self._ties.tied and len(set(self._ties.exchange(self._outer.in_node()))) > 1:
            raise PilotError("the processes of this node, which train together, no longer hold the same parameters")
        rows = self._of_all.rows(one.row())
        words = replace(self._of_all.words(0.0), stop=float(self.is_stopping()))
        if any(used for _, used, _ in rows):
            checksum = self._alarm.checksum(one.position.step, one.place, is_last=True)
            words = self._sum(one, rows, replace(words, checksum=checksum, checksum_squares=checksum * checksum))
            if not self._alarm.compare(words, one.position.step, self._of_all, len(rows)):
                raise PeerGone
        else:
            words = self._agreed(words)
        self._training.position.stopped |= words.stop > 0
        committed = self._hold(one, one.place.generation, rows)
        trained_s, exchange_s = closing_s - one.opened_s, time.monotonic() - closing_s
        if one.used:
            self._measure(one, trained_s / one.used, exchange_s)
        # To end a round early, for a newcomer say, is a cost of that change, and not of the rate.
        seconds = trained_s + exchange_s * max(used for _, used, _ in rows) / max(map(len, one.deals))
        self._of_all.held(words, committed, seconds, self._measured.copy)

    def _agreed(self, words: Words) -> Words:
        """Return the sums of what ranks say with their ``words`` if they have nothing to exchange."""
        said = self._of_all.rows([int(words.ready), int(words.pause), int(words.stop)])
        ready, pause, stop = zip(*said, strict=True)
        return Words(sum(ready), sum(one * one for one in ready), sum(pause), 0.0, 0.0, 0.0, stop=sum(stop))

    def _regroup(self, group: Membership) -> None:
        """Before the ranks of a new ``group`` share a state: close the round that the most advanced ones have open,
        with those of its nodes that are here.
        """
        one = self._round
        holding = one.held if one is not None else self._training.holding(self._of_all.confirmed)
        row = one.row() if one is not None else _NO_WORK
        table = self._of_all.rows([*row, self._outer.fingerprint(), *holding.row()])
        size = len(_NO_WORK)
        progress = [Holding(*row[size + 1 :]).progress for row in table]
        best = max(progress)
        rows = [row[:size] if its == best else _NO_WORK for row, its in zip(table, progress, strict=True)]
        if best[0] != NOTHING and any(used for _, used, _ in rows):
            one = one if holding.progress == best else None
            if len({row[size] for row in table}) == 1:
                self._sum(one, rows, Words.of(0, False, 0.0))
                if one is not None:
                    self._hold(one, group.generation, rows)
            elif one is not None:  # a newcomer does not train what the others do by now, and could not take part
                self._outer.swap()
                self._training.call_on_restore()
        if self._round is not None:  # its work was in a sum that others have, or is lost: its samples go back
            self._training.position = self._round.position
            self._forget()

    @contextmanager
    def _as_held(self) -> Iterator[None]:
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

    def _sum(self, one: Round | None, rows: Sequence[Sequence[int]], words: Words) -> Words:
        """Exchange what ``rows``, one of each rank, have done, and return the summed ``words``; ``one``: this rank's
        part of it.
        """
        total = sum(samples for _, _, samples in rows[:: self._seat.size])
        samples = one.samples if one is not None else 0
        words = replace(words, samples=0 if self._seat.rank else samples)  # once for each node
        summed = self.exchange.sum(self._of_all, len(rows), samples / total / self._seat.size, words)
        if summed.samples != total:
            raise PilotError(f"the ranks exchanged {summed.samples:.0f} samples in a round of {total}")
        return summed

    def _hold(self, one: Round, generation: int, rows: Sequence[Sequence[int]]) -> list[LineageRow]:
        """Step the outer optimizer, advance the position, and return what is committed. A round without inner steps
        changes nothing.
        """
        used = [0] * len(one.deals)
        for node, count, _ in rows:
            used[node] = max(used[node], count)
        committed, back = deals.closed(one.deals, used, one.back)
        position, before, most = self._training.position, one.position, max(used)
        position.round += 1
        self._forget()
        if not committed:
            return []
        self._outer.step()
        self._training.skip_steps(most - one.used)
        position.step, position.epoch_steps = before.step + most, before.epoch_steps + most
        position.samples = before.samples + sum(stop - start for start, stop in committed)
        position.cursor, position.back = one.cursor, [list(its) for its in back]
        ledger = [LineageRow(generation, position.epoch, before.step, position.step, *its) for its in committed]
        self._training.ledger.extend(ledger)
        for log in self.logs:
            log.held(position.step)
        return ledger

    def _forget(self) -> None:
        self._round = None
        self._ends += 1

    def _measure(self, one: Round, step_s: float, exchange_s: float) -> None:
        """Measure what the round took, and recommend an ``every`` after the first ones."""
        self._measured |= {ROUND: float(one.position.round + 1), EXCHANGE_S: exchange_s, INNER_STEP_S: step_s}
        if len(one.deals) == 1 or len(self._exchanges_s) == _ADVISED_AFTER:
            return
        self._exchanges_s.append(exchange_s)
        if len(self._exchanges_s) == _ADVISED_AFTER and one.place.rank == 0:
            x_s, every = median(self._exchanges_s), self._outer.settings.every
            part, advised = x_s / (x_s + step_s * every), math.ceil(x_s / (step_s * _ADVISED_PART))
            if 0.8 < advised / every < 1.25:
                return
            refusal.note(
                f"an exchange takes {x_s:.2g} s and an inner step {step_s:.2g} s: with every={every} exchanges take"
                f" {part:.0%} of the time, and with every={advised} they would take {_ADVISED_PART:.0%}"
                + (", and the loss may be lower" if advised < every else "")
            )
