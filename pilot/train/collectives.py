"""Meetings: what the ranks of a group tell each other between two steps (an evaluation's sums, the end of an epoch).

A script runs alike on all ranks, so they come to each meeting by themselves, with two exceptions. A rank whose group
broke at the very end of a meeting may have missed its outcome; and a newcomer begins at ``session.epochs``, while the
others are anywhere between two steps. Hence:

* The outcome is part of the state (:mod:`pilot.train.agreement_log`). Who has agreed on more is more advanced, and
  gives its state to the others when a generation starts. Who then comes to a meeting that its state is past reads the
  outcome there.
* The first thing that a rank does in a generation is to say where it is. Those who are furthest behind (an evaluation
  comes before the end of the epoch, and that before training) hold their meeting; the others attend it and bring
  nothing. They did not do what the script does around it, so they take over the state of one that did, when it is
  about to train or the epoch has ended. Once all are in one place the group is *aligned*: a step then needs no such
  words before it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pilot.comm.channel import Gone
from pilot.train.agreement_log import END_OF_EPOCH, TRAINING, Place, Sums, total
from pilot.train.blocks import gather_blocks
from pilot.train.group import RankGroup
from pilot.train.identity import expect_same, fingerprint, tell
from pilot.train.training import Training

Bring = Callable[[int, int], Sums]
"""What a rank brings as number i (from 0) of the k that hold the meeting."""

_decoder = msgspec.msgpack.Decoder(Sums)


class Collectives:
    """Of one rank.

    Parameters
    ----------
    group : that meets
    training : whose state the outcome becomes a part of
    """

    def __init__(self, group: RankGroup, training: Training) -> None:
        self._group = group
        self._training = training
        self._place: Place = training.place
        self._held: dict[int, int] = {}
        self._aligned: int | None = None

    def arrive(self) -> None:
        """The script has come to where the state is, in its meetings: what it brings to one counts there."""
        if self._place != self._training.place:
            self._place, self._held = self._training.place, {}

    def here(self) -> None:
        """It has done what it does there: it continues to train, or the epoch ends."""
        self.arrive()
        self._training.caught_up()

    def scatter(self) -> None:
        """The script may do what concerns all (choose what is trained) before it comes for a batch: so all meet again
        before that.
        """
        self._aligned = None

    def align(self) -> None:
        """Before a step; returns when all ranks are about to do it, with the same state."""
        self._group.enter()
        while self._aligned != self._group.revision:
            self._training.put_back()
            self._meet(TRAINING, _nothing)
            self._group.enter()
        self.here()

    def hold(self, topic: int, bring: Bring) -> Sums | None:
        """Meet about ``topic``; the sums by name of what the ranks brought, the same on all.

        None: the others are long past it.
        """
        number = self._held.get(topic, 0)
        self._held[topic] = number + 1
        self._training.in_meeting = True
        try:
            return self._outcome(topic, number, bring)
        finally:
            self._training.in_meeting = False

    def _outcome(self, topic: int, number: int, bring: Bring) -> Sums | None:
        sums = None
        while sums is None:
            self._group.enter()
            agreed = self._training.agreements.of(self._place, topic)
            if number < len(agreed):
                return agreed[number]
            if self._training.place != self._place:
                return None
            self._training.meets()
            sums = self._meet(topic, bring)
        return sums

    def _meet(self, mine: int, bring: Bring) -> Sums | None:
        """One meeting of those who are furthest behind; its outcome, where it was about ours."""
        try:
            trained = self._training.trained.described() if mine == TRAINING else {}
            table = self._group.gather([mine, *self._progress(), fingerprint(trained)])
            topic = min(row[0] for row in table)
            holders = [rank for rank, row in enumerate(table) if row[0] == topic]
            if topic == TRAINING:
                self._level([row[1:4] for row in table])
                if len({tuple(row) for row in table}) > len({tuple(row[1:4]) for row in table}):
                    expect_same(tell(self._training.trained.described(), self._group.gather))
            if len(holders) == len(table) and (topic == TRAINING or all(row[3] for row in table)):
                self._aligned = self._group.revision
            return None if topic == TRAINING else self._confer(topic, holders, mine == topic, bring)
        except Gone:
            return None

    def _confer(self, topic: int, holders: list[int], ours: bool, bring: Bring) -> Sums | None:
        group = self._group.enter()
        sums = total(self._tell(bring(holders.index(group.rank), len(holders)) if ours else {}))
        if ours:
            self._training.agree(topic, sums)
        if topic == END_OF_EPOCH:
            self._hand_over(holders, group.size)
        return sums if ours else None

    def _progress(self) -> list[int]:
        place = self._training.place
        return [place[0], self._training.agreements.count(place), int(not self._training.behind)]

    def _level(self, progress: list[list[int]]) -> None:
        """All are about to train: from there on they have the same state."""
        most = max(progress)
        self._hand_over([rank for rank, other in enumerate(progress) if other == most], len(progress))

    def _hand_over(self, holders: list[int], size: int) -> None:
        others = [rank for rank in range(size) if rank not in holders]
        if others:
            self._group.hand_over(holders[0], others)

    def _tell(self, brought: Sums) -> list[Sums]:
        """What all ranks brought, by rank."""
        return [_decoder.decode(block) for block in gather_blocks(msgspec.msgpack.encode(brought), self._group.gather)]


def _nothing(_number: int, _holders: int) -> Sums:
    return {}
