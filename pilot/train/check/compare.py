"""Compares the records of a disturbed run with those of undisturbed runs, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import dist, hypot, inf, isfinite

from pilot.train.check.records import Record
from pilot.train.check.values import MODULE, REPORTED, VARIABLE, Value, Values, is_declared
from pilot.train.gradients.sketch import LENGTH

_FACTOR = 30.0
"""Tolerance as a multiple of the noise: the difference that one rounding of the initial parameters makes in a run."""
_EXPONENT = 0.6
"""The tolerance is at least the rounding error to this power: 4e-10 in float64, 7e-5 in float32, 0.05 in bfloat16."""

Moment = tuple[int, bool]
"""When a record was made: (number of steps, whether after the loop)."""


@dataclass(frozen=True)
class Difference:
    """The first difference between runs: after ``step`` steps, in the value ``name``, by the relative size ``part``.
    ``variables`` are the script's variables that differ, too.
    """

    step: int
    name: str
    part: float = inf
    variables: tuple[str, ...] = ()

    def described(self) -> str:
        """Return a sentence with the step, the value, and the size of the difference."""
        much = f" by {self.part:.2g} of its value" if isfinite(self.part) else ""
        what = f"the module {self.name.removeprefix(MODULE)}" if self.name.startswith(MODULE) else self.name
        also = f" (so do the script's {', '.join(self.variables)})" if self.variables else ""
        return f"after step {self.step} {what} differs{much}{also}"


class Undisturbed:
    """The values that a script trains undisturbed, and the noise between such runs. ``steps``: the number of steps.

    Parameters
    ----------
    once, again : the records of two equal runs
    rounded : the records of a run with perturbed initial parameters
    """

    def __init__(self, once: Sequence[Record], again: Sequence[Record], rounded: Sequence[Record]) -> None:
        self._once, self._again, noisy = ({_moment(one): one.values for one in run} for run in (once, again, rounded))
        self._again_records = again
        self.steps = len(self._once) - 1
        self._floor = max((record.digits for record in once), default=0.0) ** _EXPONENT
        self._moving = _moving_modules(once)
        self._noise: dict[tuple[Moment, str], float] = {}
        largest: dict[str, float] = {}
        for moment, values in self._once.items():
            for name, value in values.items():
                distance = _distance(value, noisy[moment].get(name)) if moment in noisy else 0.0
                self._noise[moment, name] = largest[name] = max(largest.get(name, 0.0), distance)

    def not_reproducible(self) -> Difference | None:
        """Return the first difference between the two equal runs, or the first loss that is not finite."""
        for (step, _), values in self._once.items():
            if not isfinite(_size(values.get("the loss"))):
                return Difference(step, "the loss (not finite)")
        return self.first_difference([self._again_records], factor=0.0)

    def first_difference(
        self, runs: Sequence[Sequence[Record]], *, explain: bool = False, factor: float = _FACTOR
    ) -> Difference | None:
        """Return the first difference of a disturbed run; with ``explain``, also the script's variables that differ."""
        for record in sorted((record for records in runs for record in records), key=_moment):
            moment, other = _moment(record), record.values
            if moment not in self._once:
                return Difference(record.step, "the number of steps")
            for name in self._differing(record, factor):
                if not name.startswith((VARIABLE, REPORTED)):
                    value = self._once[moment].get(name)
                    distance, size = _distance(value, other.get(name)), max(_size(value), _size(other.get(name)))
                    variables = self._variables(record) if explain else ()
                    return Difference(record.step, name, distance / size if size else inf, variables)
        return None

    def differing_reports(self, runs: Sequence[Sequence[Record]]) -> list[str]:
        """Return the names of the script's reported values that differ in the runs."""
        names = {name for records in runs for record in records for name in self._differing(record)}
        return sorted(name.removeprefix(REPORTED) for name in names if name.startswith(REPORTED))

    def _differing(self, record: Record, factor: float = _FACTOR) -> Iterator[str]:
        """Yield the names of differing values. Declared values are always compared, the script's variables if both runs
        have them, and parameters of modules if they change in training.
        """
        for name in self._once.get(_moment(record), {}):
            other = record.values.get(name)
            is_compared = name in record.values and (name in self._moving or not name.startswith(MODULE))
            if (is_declared(name) or is_compared) and self._is_far(_moment(record), name, other, factor):
                yield name

    def _is_far(self, moment: Moment, name: str, other: Value, factor: float = _FACTOR) -> bool:
        value = self._once[moment].get(name)
        noise = factor * self._noise[moment, name] if factor else 0.0
        return bool(_distance(value, other) > max(noise, self._floor * max(_size(value), _size(other))))

    def _variables(self, record: Record) -> tuple[str, ...]:
        """Return up to five variables of the script that differ in ``record``, but not between equal runs."""
        moment = _moment(record)
        own = [name for name in self._differing(record) if name.startswith(VARIABLE)]
        steady = [name for name in own if not self._is_far(moment, name, self._again.get(moment, {}).get(name))]
        return tuple(name.removeprefix(VARIABLE) for name in steady[:5])


def _moment(record: Record) -> Moment:
    return record.step, record.last


def _moving_modules(records: Sequence[Record]) -> set[str]:
    """Return the names of parameters that change in modules that the session does not have."""
    moving: set[str] = set()
    before: Values = {}
    for record in records:
        own = {name: value for name, value in record.values.items() if name.startswith(MODULE)}
        moving.update(name for name, value in own.items() if name in before and before[name] != value)
        before = own
    return moving


def _distance(one: Value, other: Value) -> float:
    """Return the distance of two values; for sketches an estimate of the distance of the tensors."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found = hypot(one[0] - other[0], dist(one[1:], other[1:]) / LENGTH**0.5)
    elif isinstance(one, int | float) and isinstance(other, int | float) and type(one) is type(other):
        found = abs(one - other)
    else:
        return 0.0 if one == other else inf
    return found if isfinite(found) else (0.0 if str(one) == str(other) else inf)


def _size(value: Value) -> float:
    number = value[0] if isinstance(value, list) else value
    return abs(number) if isinstance(number, int | float) else 0.0
