"""A rank's reports to its agent; a group's leader reports progress about once a second, and the complete ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple

import psutil

from pilot.protocol import wire
from pilot.protocol.allowance import Allowance
from pilot.rundir import log_marks
from pilot.submission import loaded_code
from pilot.train.data.sampler import StepShare
from pilot.train.node.membership import Membership
from pilot.train.ranks import script_end
from pilot.train.ranks.meters import StallTimer, StepMeter
from pilot.train.script import imported
from pilot.train.state import identity
from pilot.train.state.progress import Lineage, LineageRow
from pilot.train.state.training import Training

PERIOD_S = 1.0
REPEATED_ROWS = 256
"""A new leader repeats this many of the newest rows, because its predecessor may not have reported its last second."""

REPEATED_REPORTS = 32
"""How many of the newest reports of a study's metric each message repeats: the last message may be lost."""

REPORTS_PER_S, REPORTS_AT_ONCE = 5.0, 50
"""How often progress is sent at once because a study's metric was reported. More reports share messages, because the
coordinator takes a limited number (``FACTS_PER_S`` in ``pilot.service.agents.intake``).
"""

ROWS_PER_FRAME = 10_000

Metrics = Callable[[], dict[str, float]]


class Reporter:
    """The reports of one rank, to the agent by ``send``. Each rank reports its own state; only the leader, rank 0,
    reports progress. Any rank may become the leader.
    """

    def __init__(self, trainer: str, training: Training, send: Callable[[wire.Message], None]) -> None:
        self._trainer = trainer
        self._training = training
        self._send = send
        self.meter = StepMeter()
        self._unreported = Lineage()
        self._due_s = 0.0
        self._reporting = Allowance(REPORTS_PER_S, REPORTS_AT_ONCE, time.monotonic())
        self._size = 0
        self._resized = False
        self._stall_reported = True
        self._reports_sent = 0
        self._is_ready = False
        self._behind: Membership | None = None
        script_end.at_failure(self.catch_up)

    def ready(self) -> None:
        """Report, once, that the worker is ready for a group, with the packages and the code that it has loaded."""
        if self._is_ready:
            return
        self._is_ready = True
        imported.record()
        self.new_code()
        self._send(wire.WorkerReady(self._trainer, time.time() - psutil.Process().create_time()))

    def new_code(self) -> None:
        """Report the files of the script that were loaded since the last call."""
        for files in loaded_code.new_versions():
            self._send(wire.CodeLoaded(self._trainer, files))

    def catch_up(self) -> None:
        """Report this leader's newest steps, unless it has; without metrics, which might have to be computed."""
        if self._behind is not None:
            self._report(self._behind, self._unreported.rows, {})
            self._behind, self._unreported = None, Lineage()

    def paused(self, generation: int) -> None:
        """Report that this rank has paused, and its step."""
        self.catch_up()
        self._send(wire.RankPaused(self._trainer, generation, self._training.position.step))

    def stalled(self, group: Membership | None, timer: StallTimer) -> None:
        """Report how long this rank has been waiting, and whether for sums."""
        generation, step = group.generation if group else 0, self._training.position.step
        self._send(wire.RankStalled(self._trainer, generation, step, timer.waited_s(), timer.summing))

    def remark(self, text: str) -> None:
        """Report ``text`` to the user."""
        self._send(wire.Remark(self._trainer, text))

    def started(self, group: Membership, resumed: int | None) -> None:
        """Report the start of a generation, in which every rank has the state."""
        log_marks.now_rank(group.rank)
        self.meter.regrouped()
        self._resized, self._size = group.size != self._size, group.size
        self._unreported, self._behind = Lineage(self._training.ledger.newest(REPEATED_ROWS)), None
        self._due_s, self._stall_reported = 0.0, False
        self._reports_sent = 0
        if group.rank == 0:
            training = self._training
            accepted = [astuple(change) for change in training.changes]
            words = identity.in_short(training.identity)
            formed = (self._trainer, group.generation, training.position.step, resumed, words, accepted)
            self._send(wire.GroupFormed(*formed))

    def stepped(self, group: Membership, epoch: int, share: StepShare, metrics: Metrics) -> None:
        """Note that a step was applied, and report it when it is time. The samples of a round's inner steps follow at
        its end.
        """
        in_rounds = self._training.outer is not None
        self.meter.stepped(time.monotonic(), 0 if in_rounds else share.total)
        if group.rank != 0:
            return
        if not in_rounds:
            step = self._training.position.step - 1
            self._unreported.add(group.generation, epoch, step, share.cursor, share.cursor_end)
        self._report_if_due(group, metrics)

    def held(self, group: Membership, rows: Sequence[LineageRow], seconds: float, metrics: Metrics) -> None:
        """Report that a round is held, see :meth:`RankGroup.held <pilot.train.ranks.group.RankGroup.held>`."""
        if not rows:
            return
        self.meter.held(sum(row.cursor_end - row.cursor for row in rows), seconds)
        if group.rank == 0:
            self._unreported.extend(rows)
            if seconds > PERIOD_S:  # shorter rounds share messages
                self._due_s = 0.0
            self._report_if_due(group, metrics)

    def _report_if_due(self, group: Membership, metrics: Metrics) -> None:
        now_s, self._behind = time.monotonic(), group
        if now_s >= self._due_s or (
            self._training.reports.count > self._reports_sent and self._reporting.allows(now_s)
        ):
            self._due_s = now_s + PERIOD_S
            self._report(group, self._unreported.rows, metrics())
            self._unreported, self._behind = Lineage(), None

    def finished(self, group: Membership, metrics: Metrics) -> None:
        """Report the end of the loop, with the complete ledger, so that the coordinator's proof is complete."""
        rows, self._behind = self._training.ledger.rows, None
        for start in range(0, max(len(rows), 1), ROWS_PER_FRAME):
            self._report(group, rows[start : start + ROWS_PER_FRAME], metrics())
        position = self._training.position
        self._send(wire.TrainerFinished(self._trainer, group.generation, position.step, position.samples, metrics()))

    def _report(self, group: Membership, rows: list[LineageRow], metrics: dict[str, float]) -> None:
        position = self._training.position
        stall_s = None if self._stall_reported else self.meter.stall_s
        self._stall_reported = True
        report = wire.Progress(
            self._trainer,
            group.generation,
            position.step,
            position.epoch,
            position.samples,
            samples_per_s=self.meter.samples_per_s(),
            stall_s=stall_s,
            rescale_s=stall_s if self._resized else None,
            ledger=list(rows),
            metrics=metrics,
            reports=self._training.reports.since(max(0, self._reports_sent - REPEATED_REPORTS)),
        )
        self._reports_sent = self._training.reports.count
        self._send(report)
