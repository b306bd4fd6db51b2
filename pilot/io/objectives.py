"""Loads the objective that plans maximise, by the name that the user gave."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from pilot.core.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.objective import Objective, named_objective, per_node_value
from pilot.core.spec import TrainerSpec
from pilot.io.site_files import prints_to_stderr

_PROBE = TrainerSpec(TrainerId("probe"), max_nodes=1)


def load_objective(name: str) -> Objective:
    """A built-in objective by name, or a user's function (trainer, nodes) → value per second by ``module:function``.

    Raises
    ------
    UserError
        There is no objective of that name, or it cannot be imported.
    """
    if ":" not in name:
        return named_objective(name)
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)  # last, so that nothing in the user's folder shadows a library
    try:
        with prints_to_stderr():
            value = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever a user's module raises
        raise UserError(f"cannot load the objective {name!r}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(here)
    if not callable(value):
        raise UserError(f"the objective {name!r} is not a function of (trainer, nodes)")
    try:
        with prints_to_stderr():
            float(value(_PROBE, 1))
    except LookupError:
        pass  # it looks trainers up by name, so it knows no made-up one
    except Exception as error:  # a function of other arguments must not fail only when a plan is made
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"the objective {name!r} is not a function of (trainer, nodes): {why}") from None
    valued = per_node_value(value, name)

    def objective(spec: TrainerSpec, curve: Curve) -> Curve:
        with prints_to_stderr():
            return valued(spec, curve)

    return objective
