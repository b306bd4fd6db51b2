"""What a disturbed run has trained, compared with undisturbed ones, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import dist, hypot, inf, isfinite

from pilot.train.check.records import Record
from pilot.train.check.values import MODULE, REPORTED, VARIABLE, Value, Values
from pilot.train.gradients.sketch import LENGTH

_FACTOR = 30.0
"""A run's own roundings, in each step, may grow to so many times what one rounding of the initial parameters does."""
_EXPONENT = 0.6
"""And at least to this power of a rounding: 4e-10 in float64, 7e-5 in float32, 0.05 in bfloat16."""


Moment = tuple[int, bool]
"""After how many steps a record was made, and whether after the loop."""


@dataclass(frozen=True)
class Difference:
    """The first: after ``step`` steps, of ``name``, by ``part`` of its value; ``variables``: of the script's that
    differ, too.
    """

    step: int
    name: str
    part: float
    variables: tuple[str, ...] = ()

    def in_words(self) -> str:
        """Where it is, and how large."""
        much = f" by {self.part:.2g} of its value" if isfinite(self.part) else ""
        what = f"the module {self.name.removeprefix(MODULE)}" if self.name.startswith(MODULE) else self.name
        also = f" (so do the script's {', '.join(self.variables)})" if self.variables else ""
        return f"after step {self.step} {what} differs{much}{also}"


class Undisturbed:
    """What a script trains, and how far runs of it differ by themselves.

    Parameters
    ----------
    once, again : the records of two equal runs
    rounded : of one with other roundings
    """

    def __init__(self, once: Sequence[Record], again: Sequence[Record], rounded: Sequence[Record]) -> None:
        self._once = _by_moment(once)
        self._again = _by_moment(again)
        self._rounded = _by_moment(rounded)
        self._noise: dict[tuple[Moment, str], float] = {}
        self._floor = max((record.digits for record in once), default=0.0) ** _EXPONENT
        self._moving = _moving_modules(once)
        largest: dict[str, float] = {}
        for moment, record in self._once.items():
            for name, value in record.values.items():
                other = self._rounded[moment].values.get(name) if moment in self._rounded else value
                largest[name] = max(largest.get(name, 0.0), _apart(value, other))
                self._noise[moment, name] = largest[name]

    def not_reproducible(self) -> Difference | None:
        """What two equal runs train otherwise; or what is no finite number."""
        for moment, record in self._once.items():
            again = self._again[moment].values if moment in self._again else {}
            for name, value in record.values.items():
                if name.startswith((VARIABLE, REPORTED, MODULE)):
                    continue
                if name == "the loss" and not isfinite(_size(value)):
                    return Difference(record.step, "the loss (no finite number)", inf)
                other = again.get(name)
                if _apart(value, other) > self._floor * max(_size(value), _size(other)):
                    return Difference(record.step, name, _part(value, other))
        return None

    def first_difference(self, runs: Sequence[Sequence[Record]], *, explain: bool = False) -> Difference | None:
        """Of the records of a disturbed run's processes; ``explain``: also by the script's variables."""
        for record in sorted((record for records in runs for record in records), key=_moment):
            if _moment(record) not in self._once:
                return Difference(record.step, "the number of steps", inf)
            for name in self._differing(record):
                if not name.startswith((VARIABLE, REPORTED)):
                    value = self._once[_moment(record)].values.get(name)
                    variables = self._variables(record) if explain else ()
                    return Difference(record.step, name, _part(value, record.values.get(name)), variables)
        return None

    def reported_otherwise(self, runs: Sequence[Sequence[Record]]) -> list[str]:
        """The names of what the script reports that differs."""
        rows = [(record, name) for records in runs for record in records for name in self._differing(record)]
        return sorted({name.removeprefix(REPORTED) for _, name in rows if name.startswith(REPORTED)})

    def _differing(self, record: Record) -> Iterator[str]:
        moment = _moment(record)
        for name in self._once[moment].values if moment in self._once else ():
            if self._is_compared(name, record.values) and self._is_far(moment, name, record.values.get(name)):
                yield name

    def _is_compared(self, name: str, values: Values) -> bool:
        """What is declared always is; a variable, if it is there; of modules those that are trained."""
        if not name.startswith((VARIABLE, REPORTED, MODULE)):
            return True
        return name in values and (name in self._moving or not name.startswith(MODULE))

    def _is_far(self, moment: Moment, name: str, other: Value) -> bool:
        value = self._once[moment].values.get(name)
        most = max(_FACTOR * self._noise[moment, name], self._floor * max(_size(value), _size(other)))
        return bool(_apart(value, other) > most)

    def _variables(self, record: Record) -> tuple[str, ...]:
        moment = _moment(record)
        again = self._again[moment].values if moment in self._again else {}
        own = [name for name in self._differing(record) if name.startswith(VARIABLE)]
        steady = [name for name in own if not self._is_far(moment, name, again.get(name))]
        return tuple(name.removeprefix(VARIABLE) for name in steady[:5])


def _moment(record: Record) -> Moment:
    return record.step, record.last


def _by_moment(records: Sequence[Record]) -> dict[Moment, Record]:
    return {_moment(record): record for record in records}


def _moving_modules(records: Sequence[Record]) -> set[str]:
    """Parameters of modules beside the session's that change."""
    moving: set[str] = set()
    before: Values = {}
    for record in records:
        own = {name: value for name, value in record.values.items() if name.startswith(MODULE)}
        moving.update(name for name, value in own.items() if name in before and before[name] != value)
        before = own
    return moving


def _apart(one: Value, other: Value) -> float:
    """The distance of two values; of sketches about that of what they are of."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found = hypot(one[0] - other[0], dist(one[1:], other[1:]) / LENGTH**0.5)
        return found if isfinite(found) else (0.0 if str(one) == str(other) else inf)
    numbers = (int, float)
    if isinstance(one, numbers) and isinstance(other, numbers) and type(one) is type(other):
        return abs(one - other) if isfinite(one - other) else (0.0 if str(one) == str(other) else inf)
    return 0.0 if one == other else inf


def _size(value: Value) -> float:
    number = value[0] if isinstance(value, list) else value
    return abs(number) if isinstance(number, int | float) else 0.0


def _part(one: Value, other: Value) -> float:
    apart, size = _apart(one, other), max(_size(one), _size(other))
    return apart / size if size and isfinite(apart) else inf
