"""A study as a user submits it: its script, search space and rungs."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, takewhile
from typing import Annotated

import msgspec

from pilot.core.errors import UserError
from pilot.core.ids import StudyId, TrainerId, TrainerUid
from pilot.core.study.study import STEP, TO_END, TRIALS_MAX, Parameters, StudySpec
from pilot.core.trainer.spec import Checking, TrainerSpec
from pilot.submission.submission import LaunchSpec, check_given

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
WHOLE_MOST = 2**53
"""Beyond it, not every integer is a float."""

KINDS = "log:LOW:HIGH, float:LOW:HIGH[:STEP], int:LOW:HIGH[:STEP] or choice:A,B"


class Sampler(StrEnum):
    """The methods that choose parameters."""

    TPE = "tpe"
    RANDOM = "random"
    QMC = "qmc"
    GP = "gp"
    CMAES = "cmaes"
    GRID = "grid"
    BRUTE = "brute-force"


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that a parameter may take: ``choices``, or from ``low`` to ``high``."""

    kind: str  #: log, float, int or choice
    low: float = 0.0  #: the lower bound, included
    high: float = 0.0  #: the upper bound, included
    step: float = 0.0  #: for int and float; 0: none
    choices: tuple[str | int | float, ...] = ()  #: numbers where that writes them as they were given

    @classmethod
    def read(cls, text: str) -> Range:
        """Parse ``log:1e-4:1e-1`` and the like; :class:`UserError` if it is not a range."""
        kind, _, rest = text.partition(":")
        if kind == "choice" and rest:
            choices = tuple(map(_value, rest.split(",")))
            check_choices(text, choices)
            return cls(kind, choices=choices)
        try:
            numbers = [float(part) for part in rest.split(":")]
        except ValueError:
            numbers = []
        if kind not in ("log", "float", "int") or not 2 <= len(numbers) <= (2 if kind == "log" else 3):
            raise UserError(f"{text!r} is not a range; give {KINDS}")
        low, high, step = (*numbers, 0.0)[:3]
        if not all(map(math.isfinite, numbers)) or low > high or step < 0 or (kind == "log" and low <= 0):
            raise UserError(f"{text!r}: LOW must not exceed HIGH, and for log it must be greater than 0")
        if kind == "int" and not all(number.is_integer() for number in numbers):
            raise UserError(f"{text!r}: an int range takes whole numbers")
        if kind == "int" and max(-low, high) > WHOLE_MOST:
            raise UserError(f"{text!r}: whole numbers are at most {WHOLE_MOST}")
        return cls(kind, low, high, step)

    def values(self) -> tuple[str | int | float, ...]:
        """All values; () if they cannot be enumerated: there are no steps, or more than a study can have trials."""
        if self.kind == "choice":
            return self.choices
        step = self.step or (1.0 if self.kind == "int" else 0.0)
        last = (self.high - self.low) / step + 1e-9 if step else math.inf
        if last >= TRIALS_MAX:
            return ()
        found = [self.low + i * step for i in range(int(last) + 1)]
        return tuple(int(value) for value in found) if self.kind == "int" else tuple(found)


class StudyDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new study."""

    name: str  #: of the study
    launch: LaunchSpec  #: how each trial's script is started; its parameters are added to the arguments
    metric: str  #: what is optimised
    maximise: bool  #: whether to the maximum
    rungs: tuple[int, ...]  #: after how many reports of it trials are compared
    trials: int  #: how many there are to be
    parameters: dict[str, Range] = {}  #: the search space, by name; empty if ``space`` is given
    space: str = ""  #: the source of a file with a function ``space(trial)``; "": none
    sampler: Sampler = Sampler.TPE  #: how parameters are chosen
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0  #: of what the sampler draws
    #: how long the study may take; None: no limit
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    min_nodes: int = 1  #: the fewest nodes of each trial
    max_nodes: int = 64  #: the most nodes of each trial
    priority: float = 1.0  #: of each trial, as of ``pilot submit``
    check: Checking | None = None  #: of their script, as of ``pilot submit``

    def spec(self, uid: TrainerUid, now_s: float) -> StudySpec:
        """Return its specification for the core, at ``now_s``; :class:`UserError` if no trial could have its largest
        parameters.
        """
        bounds = {name: of.choices or (of.low, of.high) for name, of in self.parameters.items()}
        largest = ((name, max(values, key=lambda value: len(str(value)))) for name, values in bounds.items())
        check_given(self.trial(tuple(largest)))
        template = TrainerSpec(
            trainer=TrainerId(self.name),
            uid=uid,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            priority=self.priority,
            assumed_costs=True,
        )
        deadline_s = None if self.deadline_s is None else now_s + self.deadline_s
        return StudySpec(StudyId(self.name), self.metric, self.maximise, self.rungs, self.trials, template, deadline_s)

    def trial(self, parameters: Parameters) -> LaunchSpec:
        """Return the launch of the trial with these ``parameters``: each becomes an argument, ``--name=value``."""
        more = [argument(name, value) for name, value in parameters]
        environment = {**self.launch.environment, "PILOT_STUDY_METRIC": self.metric}
        return msgspec.structs.replace(self.launch, arguments=[*self.launch.arguments, *more], environment=environment)


@dataclass(frozen=True, slots=True)
class Asked:
    """A sampler's answer for one trial: its ``parameters``, or why there are none."""

    parameters: Parameters = ()
    error: str = ""
    again: bool = False
    exhausted: bool = False


def default_rungs(trials: int) -> tuple[int, ...]:
    """Return rungs by which ``trials`` are thinned out until one is left, which trains to the end of its script."""
    return (*takewhile(lambda rung: rung <= trials, (STEP**power for power in count())), TO_END)


def argument(name: str, value: object) -> str:
    """Return a parameter as an argument of the script."""
    return f"--{name}={value}"


def check_name(name: str) -> str:
    """Return ``name`` if it is valid for a parameter; otherwise :class:`UserError`."""
    if not _NAME.fullmatch(name):
        raise UserError(f"not a valid parameter name: {name!r}; use letters, digits, '_' and '-'")
    return name


def check_choices(name: str, choices: Sequence[Hashable]) -> None:
    """:class:`UserError` where ``choices`` cannot be stored, or where two of them are equal, as 1, 1.0 and True are:
    samplers do not tell these apart."""
    seen: dict[Hashable, Hashable] = {}
    for choice in choices:
        if choice in seen:
            raise UserError(f"{name}: the choices {seen[choice]!r} and {choice!r} are the same; leave one out")
        seen[choice] = choice
        if isinstance(choice, float) and not math.isfinite(choice):
            raise UserError(f"{name}: the choice {choice!r} is not a finite number; give it as a string")
        if isinstance(choice, int) and abs(choice) > WHOLE_MOST:
            raise UserError(f"{name}: the choice {choice} is too large; give it as a string")
        if isinstance(choice, str) and not choice.isprintable():
            raise UserError(f"{name}: the choice {choice!r} has characters that cannot be printed")


def differences(here: StudyDefinition, given: StudyDefinition) -> list[str]:
    """Describe the differences between the search spaces of ``here`` and ``given``."""
    found = []
    for name in {**here.parameters, **given.parameters}:
        before, now = here.parameters.get(name), given.parameters.get(name)
        if before != now:
            found.append(f"{name} was {_shown(before)}, now {_shown(now)}")
    if here.space != given.space:
        found.append("the --space file is different")
    return found


def _shown(range_: Range | None) -> str:
    if range_ is None:
        return "absent"
    if range_.kind == "choice":
        return f"choice:{','.join(map(str, range_.choices))}"
    step = f":{range_.step:g}" if range_.step else ""
    return f"{range_.kind}:{range_.low:g}:{range_.high:g}{step}"


def _value(text: str) -> str | int | float:
    """Return ``text`` as a number if the number's text is the same; not 007 and 1e-3, because scripts get the text."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if str(number) == text and abs(number) <= WHOLE_MOST:
            return number
    return text


class KnownTrial(msgspec.Struct, frozen=True):
    """A trial with parameters. If it has ``ended``, ``value`` is its report at the first rung, None if it failed."""

    number: int
    parameters: Parameters
    ended: bool = False
    value: float | None = None
