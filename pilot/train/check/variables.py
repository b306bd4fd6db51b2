"""What the variables of a checked script hold, by name: values, not code. They explain a difference; and a module that
is trained beside the session's is a difference itself.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import nn

from pilot.train.check.values import MODULE, VARIABLE, Values, leaves, of, values_in
from pilot.train.script.refusal import is_of_a_library
from pilot.train.state.training import Training

_DEPTH = 3
_MOST = 2000


def of_script(training: Training) -> Values:
    """What its running functions and its main module hold now."""
    values: Values = {}
    ours = {id(one) for one in training.model.parameters()}
    seen = {id(one) for one in training.tracked.values()}

    def is_new(held: object) -> bool:
        """Whether it is an object of the script's own class, not seen yet."""
        if id(held) in seen or not _is_its_own(held):
            return False
        seen.add(id(held))
        return True

    found = (one for name, value in _variables() for one in leaves(value, name, _DEPTH, is_new))
    for name, one in islice(found, _MOST):
        if not isinstance(one, nn.Module):
            values[f"{VARIABLE}{name}"] = of(one)
        elif id(one) not in seen and not ours.intersection(id(parameter) for parameter in one.parameters()):
            values |= values_in(dict(one.named_parameters()), f"{MODULE}{name}")
    return values


def _variables() -> Iterator[tuple[str, Any]]:
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if not is_of_a_library(frame.f_code.co_filename) and frame.f_locals is not frame.f_globals:
            yield from list(frame.f_locals.items())
        frame = frame.f_back
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if not name.startswith("__"):
            yield name, value


def _is_its_own(held: object) -> bool:
    """Whether its class is the script's."""
    if isinstance(held, type | types.ModuleType | types.FunctionType):
        return False
    file = getattr(sys.modules.get(type(held).__module__), "__file__", None)
    return file is not None and not is_of_a_library(file)
