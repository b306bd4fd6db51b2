"""``pilot check``: runs a script undisturbed and in scenarios, and returns the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import msgspec

from pilot.train.check import scenarios
from pilot.train.check.compare import Undisturbed
from pilot.train.check.records import Record
from pilot.train.check.runs import RunFailed, ScenarioRun, Subject
from pilot.train.check.scenarios import DIVIDED, NOT_TRACKED, RunShape, Scenario
from pilot.train.check.settings import NODES, CheckedRun
from pilot.train.check.values import MODULE

_PATIENCE, _PATIENCE_S = 10.0, 10.0
"""How long a rank waits for others: a multiple of the undisturbed rank's longest computation, but at least so long."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. ``script_class`` is `equal`, `different by design`, `differs`, `not reproducible`,
    `refused`, or `failed` (by the script's own error).
    """

    script_class: str
    text: str
    by_design: list[str] = field(default_factory=list)
    first_difference: str = ""
    scenario: str = ""

    @property
    def passed(self) -> bool:
        """Whether the script computes the same on several nodes as on one, except for differences by design."""
        return self.script_class in ("equal", "different by design")


class Check:
    """The check of one script. ``progress`` is called with a description of each run that begins."""

    def __init__(self, subject: Subject, progress: Callable[[str], None]) -> None:
        self._subject = subject
        self._run = CheckedRun(subject.settings.epochs, subject.settings.steps, double=True)
        self._progress = progress
        self._nodes = 1
        self._by_design: list[str] = []
        self._done = ""
        self._patience_s: float | None = None

    def result(self) -> CheckResult:
        """Run the script as often as needed, and return the result."""
        try:
            once, rounded = self._undisturbed()
            return self._disturbed(once, rounded, _shape(once, self._nodes))
        except RunFailed as failed:
            text = f"{failed}{f'; {self._done}' if failed.late and self._done else ''}"
            return CheckResult("refused" if failed.refused else "failed", text, self._by_design)

    def _undisturbed(self) -> tuple[list[Record], list[Record]]:
        """Return the records of an undisturbed run and of a perturbed one, in float64 if the script can."""
        self._progress("undisturbed, in float64")
        alone, rounded = self._both_alone()
        if alone.failed is not None and not (alone.failed.late or alone.failed.refused):
            self._run = msgspec.structs.replace(self._run, double=False)
            self._progress(f"undisturbed, in its own type; in float64 the script fails: {alone.failed}")
            alone, rounded = self._both_alone()
        once = _records_of(alone)
        self._patience_s = max(_PATIENCE_S, _PATIENCE * alone.slowest_s)
        if self._nodes == 1 and any(record.per_node for record in once):
            self._nodes = NODES
            return self._undisturbed()
        return once, _records_of(rounded)

    def _both_alone(self) -> list[ScenarioRun]:
        alone, rounded = scenarios.undisturbed(self._nodes), msgspec.structs.replace(self._run, rounding=True)
        return self._complete((self._run, alone), (rounded, alone))

    def _disturbed(self, once: list[Record], rounded: list[Record], shape: RunShape) -> CheckResult:
        self._by_design = sorted({name for record in once for name in record.by_design})
        self._progress("with nodes that join, are lost, and resume")
        scenario = scenarios.all_at_once(shape)
        again, disturbed = self._complete((self._run, scenarios.undisturbed(self._nodes)), (self._run, scenario))
        alone = Undisturbed(once, _records_of(again), rounded)
        if disturbed.failed is not None and disturbed.failed.refused:
            raise disturbed.failed
        if (unsteady := alone.not_reproducible()) is not None:
            text = f"undisturbed runs differ: {unsteady.described()}"
            return CheckResult("not reproducible", text, self._by_design, unsteady.name)
        self._done = f"undisturbed, its {alone.steps} steps are reproducible"
        result = self._compared(alone, scenario, disturbed)
        if result.passed:
            return result
        explaining = scenarios.single(shape)
        if shape.nodes == 1 and any("not disabled" in name for name in self._by_design):
            # Divided samples may get other random numbers by design.
            self._progress("the same without dividing samples")
            if (undivided := self._in(alone, scenarios.in_turn(shape))).passed:
                return undivided
            explaining = explaining[1:]
        with suppress(RunFailed):  # no time is left for an explanation
            for one in explaining:
                self._progress(f"to explain a difference: {one.name}")
                if not (explained := self._in(alone, one)).passed:
                    return explained
        return result

    def _in(self, alone: Undisturbed, scenario: Scenario) -> CheckResult:
        (run,) = self._complete((self._run, scenario))
        return self._compared(alone, scenario, run, explain=scenario.means != DIVIDED)

    def _complete(self, *wanted: tuple[CheckedRun, Scenario]) -> list[ScenarioRun]:
        """Run these scenarios at the same time, and return them when all have ended."""
        with ExitStack() as stack:
            runs = []
            for run, scenario in wanted:
                runs.append(ScenarioRun(self._subject, run, scenario, self._patience_s))
                stack.callback(runs[-1].stop)
            for one in runs:
                one.end()
        return runs

    def _compared(
        self, alone: Undisturbed, scenario: Scenario, run: ScenarioRun, *, explain: bool = False
    ) -> CheckResult:
        """Return the result of one run: it passed, or it differs."""
        if (found := alone.first_difference(run.records, explain=explain)) is not None:
            means = NOT_TRACKED if found.name.startswith(MODULE) else scenario.means
            text = f"{scenario.name}, {found.described()}: usually, {means}"
            return CheckResult("differs", text, self._by_design, found.name, scenario.name)
        if run.failed is not None:
            if run.failed.late:
                raise run.failed
            text = f"{scenario.name}, it fails: {run.failed}"
            return CheckResult("differs", text, self._by_design, "", scenario.name)
        kind = "float64" if self._run.double else "its own type"
        text = f"{alone.steps} steps train the same on changing nodes as undisturbed (in {kind})"
        if names := alone.differing_reports(run.records):
            text += f"; these reported values cover one node's samples only: {', '.join(names)}"
        return CheckResult("different by design" if self._by_design else "equal", text, self._by_design)


def _records_of(run: ScenarioRun) -> list[Record]:
    if run.failed is not None:
        raise run.failed
    return run.records[0]


def _shape(once: Sequence[Record], nodes: int) -> RunShape:
    steps = [record for record in once if not record.last]
    is_by_epoch = any(record.by_epoch for record in steps)
    by_epoch = Counter(record.epoch for record in steps)
    counts = tuple(by_epoch.values()) if is_by_epoch else (len(steps),)
    return RunShape(counts, max((record.sums for record in steps), default=1), is_by_epoch, nodes)
