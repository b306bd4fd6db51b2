"""A trial's reports of its study's metric. Trials are compared at a rung by their n-th report, so reports are counted.
They are part of the state, so a rank that takes it over continues the count. Of several reports between the same two
steps only the last counts, because a rank that repeats that part of the script reports again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

METRIC = "PILOT_STUDY_METRIC"
"""The environment variable of a trial with the name of its study's metric."""

KEPT = 256
"""How many of the newest to keep: earlier ones were sent to the coordinator long ago."""

Row = tuple[int, int, float]
"""Number, step, value."""


class MetricReports:
    """``metric`` is the name of the metric; "": there is no study, and nothing is kept."""

    def __init__(self, metric: str, rows: Iterable[Iterable[float]] = ()) -> None:
        self.metric = metric
        self.rows: list[Row] = [(int(number), int(step), float(value)) for number, step, value in rows]

    @property
    def count(self) -> int:
        """How many reports there were."""
        return self.rows[-1][0] if self.rows else 0

    def note(self, step: int, values: Mapping[str, float]) -> None:
        """The script reported ``values`` after ``step`` steps."""
        if not self.metric or self.metric not in values:
            return
        if self.rows and self.rows[-1][1] == step:
            self.rows[-1] = (*self.rows[-1][:2], values[self.metric])
        else:
            self.rows.append((self.count + 1, step, values[self.metric]))
            del self.rows[:-KEPT]

    def since(self, number: int) -> list[tuple[int, float]]:
        """(number, value) of the reports after number ``number``."""
        return [(count, value) for count, _, value in self.rows if count > number]
