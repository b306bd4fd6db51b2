"""Agreements of the ranks of a group between two steps: sums of an evaluation, or the end of an epoch.

All ranks run the same script, so they reach each agreement by themselves, with two exceptions. A rank whose group broke
at the very end of an agreement may have missed its outcome; and a newcomer begins at ``session.epochs``, while the
others are anywhere between two steps. Hence:

* The outcome is part of the state (:class:`~pilot.train.state.progress.AgreementLog`). A rank with more agreements is
  more advanced, and gives its state to the others when a generation starts. A rank that then reaches an agreement that
  its state has passed reads the outcome there.
* A rank begins each generation by reporting its position. The ranks furthest behind (an evaluation comes before the end
  of the epoch, and that before training) reach their agreement; the others take part and contribute nothing. These have
  not run the script's code around it, so they take over the state of a rank that has, when that is about to train or
  the epoch has ended. Once all are at the same position, the group is *aligned*, and steps need no further exchange.
* After the loop's last turn there is a last agreement. A newcomer that joins after the last step has no turn, and would
  otherwise miss the agreements after that step.
"""

from __future__ import annotations

from collections.abc import Callable

from pilot.comm.channel import PeerGone
from pilot.train.ranks.group import RankGroup
from pilot.train.script import refusal
from pilot.train.state.block import gather_values
from pilot.train.state.identity import compare, fingerprint
from pilot.train.state.progress import END_OF_EPOCH, END_OF_LOOP, TRAINING, Place, Sums, total
from pilot.train.state.training import Training

Contribute = Callable[[int, int], Sums]
"""Returns a rank's contribution as number i (from 0) of the k ranks that have reached the agreement."""


class Collectives:
    """The agreements of one rank. Their outcomes become part of the state of ``training``."""

    def __init__(self, group: RankGroup, training: Training) -> None:
        self._group = group
        self._training = training
        self._place: Place = training.place
        self._held: dict[int, int] = {}
        self._aligned: int | None = None

    def arrive(self) -> None:
        """Note that the script has reached the state's position: its contributions count from now on."""
        if self._place != self._training.place:
            self._place, self._held = self._training.place, {}

    def reached_end(self) -> None:
        """Note that the script has reached the epoch's end, perhaps with a state that has passed more agreements."""
        position = self._training.position
        self._held = dict(self._training.agreements.topics(self._place, position.met))

    def scatter(self) -> None:
        """Require that all ranks align before their next batch: the script may choose other parameters to train."""
        self._aligned = None

    def align(self) -> None:
        """Wait until all ranks are about to do the next step, with the same state, or wait at the end of the loop."""
        self._group.enter()
        while self._aligned != self._group.revision and not self._training.position.left:
            self._training.catch_up.takes_again()
            self._exchange(TRAINING)
            self._group.enter()
        self.arrive()
        self._training.catch_up.arrives()

    def leave(self) -> None:
        """Wait until all ranks have done their last turn of the loop, with the same state."""
        self.scatter()
        self.align()
        if not self._training.position.left:
            self.hold(END_OF_LOOP)

    def hold(self, topic: int, contribute: Contribute = lambda _number, _holders: {}) -> Sums | None:
        """Reach an agreement about ``topic``: return the sums of the ranks' contributions by name, the same on all.

        None: the script repeats code that the others ran before; they have passed this agreement, have left the loop,
        or never had it.
        """
        if self._group.is_over:
            return None
        number = self._held.get(topic, 0)
        self._held[topic] = number + 1
        self._training.catch_up.meeting = topic
        try:
            return self._outcome(topic, number, contribute)
        finally:
            self._training.catch_up.meeting = None

    def _outcome(self, topic: int, number: int, contribute: Contribute) -> Sums | None:
        sums = None
        while sums is None:
            self._group.enter()
            agreed = self._training.agreements.of(self._place, topic)
            if number < len(agreed):
                self._training.passes(topic, agreed[number])
                return agreed[number]
            if self._training.place != self._place:
                return None
            self._training.catch_up.comes_to(topic)
            if self._training.catch_up.repeats:
                return None
            sums = self._exchange(topic, contribute)
        return sums

    def _exchange(self, mine: int, contribute: Contribute = lambda _number, _holders: {}) -> Sums | None:
        """Take part in the agreement of the ranks furthest behind; return its outcome if its topic is ``mine``."""
        try:
            trained = self._training.trained.described() if mine == TRAINING else {}
            table = self._group.gather([mine, *self._progress(), fingerprint(trained)])
            topic = min(row[0] for row in table)
            holders = [rank for rank, row in enumerate(table) if row[0] == topic]
            if topic == TRAINING:
                self._level([row[1:4] for row in table])
                if len({tuple(row) for row in table}) > len({tuple(row[1:4]) for row in table}):
                    compare(self._training.trained.described(), self._group.gather)
            if len(holders) == len(table) and (topic == TRAINING or all(row[2] for row in table)):
                self._aligned = self._group.revision
            return None if topic == TRAINING else self._agree(topic, holders, mine == topic, contribute)
        except PeerGone:
            return None

    def _agree(self, topic: int, holders: list[int], ours: bool, contribute: Contribute) -> Sums | None:
        group = self._group.enter()
        own = contribute(holders.index(group.rank), len(holders)) if ours else {}
        sums = total(gather_values(own, Sums, self._group.gather))
        if ours:
            self._training.agree(topic, sums)
        if topic in (END_OF_EPOCH, END_OF_LOOP):
            self._hand_over(holders, group.size)
        return sums if ours else None

    def _progress(self) -> list[int]:
        place = self._training.place
        return [place[0], int(not self._training.catch_up.behind), self._training.agreements.count(place)]

    def _level(self, progress: list[list[int]]) -> None:
        """Give all ranks, which are about to train, the same state."""
        most = max(progress)
        is_behind = not most[1]
        missed = self._training.catch_up.made_in is not None and not self._training.position.stopped
        if is_behind and self._progress() == most and missed:
            refusal.note(
                "this run continues from within a session.evaluate between two steps, so the script's code between that"
                " and its next batch is skipped; move what must not be lost to an epoch's end, or before the evaluation"
            )
        self._hand_over([rank for rank, other in enumerate(progress) if other == most], len(progress))

    def _hand_over(self, holders: list[int], size: int) -> None:
        others = [rank for rank in range(size) if rank not in holders]
        if others:
            self._group.hand_over(holders[0], others)
