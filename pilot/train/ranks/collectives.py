"""Meetings: what the ranks of a group exchange between two steps (an evaluation's sums, the end of an epoch).

All ranks run the same script, so they arrive at each meeting by themselves, with two exceptions. A rank whose group
broke at the very end of a meeting may have missed its outcome; and a newcomer begins at ``session.epochs``, while the
others are anywhere between two steps. Hence:

* The outcome is part of the state (:class:`~pilot.train.state.progress.AgreementLog`). A rank with more agreements is
  more advanced, and gives its state to the others when a generation starts. A rank that then arrives at a meeting that
  its state has passed reads the outcome there.
* The first thing that a rank does in a generation is to report its position. Those furthest behind (an evaluation comes
  before the end of the epoch, and that before training) hold their meeting; the others attend it and contribute
  nothing. They have not run the script's code around it, so they take over the state of a rank that has, when that is
  about to train or the epoch has ended. Once all are at the same position, the group is *aligned*, and steps need no
  further exchange.
* After the loop's last turn they meet for the last time. A newcomer that comes after the last step has no turn, and
  would else not attend what the others do after that step.
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

Bring = Callable[[int, int], Sums]
"""What a rank contributes as number i (from 0) of the k ranks that hold the meeting."""


class Collectives:
    """The meetings of one rank. The state of ``training`` will include the outcomes."""

    def __init__(self, group: RankGroup, training: Training) -> None:
        self._group = group
        self._training = training
        self._place: Place = training.place
        self._held: dict[int, int] = {}
        self._aligned: int | None = None

    def arrive(self) -> None:
        """The script has reached the state's position in its meetings: what it contributes counts from now on."""
        if self._place != self._training.place:
            self._place, self._held = self._training.place, {}

    def reached_end(self) -> None:
        """The script has reached the epoch's end, perhaps with a state of others that had met on the way, as it has
        not.
        """
        position = self._training.position
        self._held = dict(self._training.agreements.topics(self._place, position.met))

    def here(self) -> None:
        """The script has done what it does there: it continues to train, or the epoch ends."""
        self.arrive()
        self._training.catch_up.arrives()

    def scatter(self) -> None:
        """The script may do something that concerns all (such as choosing what is trained) before its next batch, so
        all ranks meet again before that.
        """
        self._aligned = None

    def align(self) -> None:
        """Before a step: returns when all ranks are about to do it, with the same state; or if the others have left the
        loop, and wait at its end.
        """
        self._group.enter()
        while self._aligned != self._group.revision and not self._training.position.left:
            self._training.catch_up.takes_again()
            self._meet(TRAINING)
            self._group.enter()
        self.here()

    def leave(self) -> None:
        """After the loop's last turn: returns when all ranks have done theirs, with the same state."""
        self.scatter()
        self.align()
        if not self._training.position.left:
            self.hold(END_OF_LOOP)

    def hold(self, topic: int, bring: Bring = lambda _number, _holders: {}) -> Sums | None:
        """Meet about ``topic``; returns the sums by name of the ranks' contributions, the same on all.

        None: the others passed this meeting long ago, have ended with the loop, or have no such one: the script runs
        what was done before.
        """
        if self._group.is_over:
            return None
        number = self._held.get(topic, 0)
        self._held[topic] = number + 1
        self._training.catch_up.meeting = topic
        try:
            return self._outcome(topic, number, bring)
        finally:
            self._training.catch_up.meeting = None

    def _outcome(self, topic: int, number: int, bring: Bring) -> Sums | None:
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
            sums = self._meet(topic, bring)
        return sums

    def _meet(self, mine: int, bring: Bring = lambda _number, _holders: {}) -> Sums | None:
        """One meeting of those furthest behind; returns its outcome if it was about our topic."""
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
            return None if topic == TRAINING else self._confer(topic, holders, mine == topic, bring)
        except PeerGone:
            return None

    def _confer(self, topic: int, holders: list[int], ours: bool, bring: Bring) -> Sums | None:
        group = self._group.enter()
        own = bring(holders.index(group.rank), len(holders)) if ours else {}
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
        """All are about to train: give them the same state."""
        most = max(progress)
        is_behind = not most[1]
        missed = self._training.catch_up.made_in is not None and not self._training.position.stopped
        if is_behind and self._progress() == most and missed:
            refusal.note(
                "the run was saved, or its other processes ended, while these were in session.evaluate between two"
                " steps; what the script does after that, until its next batch, is not done now: what must not be"
                " lost belongs at an epoch's end, or before the evaluation"
            )
        self._hand_over([rank for rank, other in enumerate(progress) if other == most], len(progress))

    def _hand_over(self, holders: list[int], size: int) -> None:
        others = [rank for rank in range(size) if rank not in holders]
        if others:
            self._group.hand_over(holders[0], others)
