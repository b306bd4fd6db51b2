"""What a trial reported of its study's metric: the n-th report is what a rung is compared by, so they are counted.

They belong to the state: who takes it over counts on from there. Reports between the same two steps are one, the last
one: a rank that does again what the script did there reports it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

METRIC = "PILOT_STUDY_METRIC"
"""In the environment of a trial: the name of its study's metric."""

KEPT = 256
"""The newest ones: a leader that dies has told the others long ago."""

Row = tuple[int, int, float]
"""Number, step, value."""


class MetricReports:
    """``metric`` is the name that counts; "": of no study, nothing is kept."""

    def __init__(self, metric: str, rows: Iterable[Iterable[float]] = ()) -> None:
        self.metric = metric
        self.rows: list[Row] = [(int(number), int(step), float(value)) for number, step, value in rows]

    @property
    def count(self) -> int:
        """How many there were."""
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
        """(number, value) of those after report ``number``."""
        return [(count, value) for count, _, value in self.rows if count > number]
