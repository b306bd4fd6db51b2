"""What a plan maximises, as a user names it."""

from __future__ import annotations

import importlib

from pilot.core.errors import UserError
from pilot.core.objective import Objective, named_objective, per_node_value


def load_objective(name: str) -> Objective:
    """A shipped objective by name, or by ``module:function`` a user's function of (trainer, nodes) → value per second.

    Raises
    ------
    UserError
        There is none of that name, or it cannot be imported.
    """
    if ":" not in name:
        return named_objective(name)
    module, _, function = name.partition(":")
    try:
        return per_node_value(getattr(importlib.import_module(module), function))
    except (ImportError, AttributeError) as error:
        raise UserError(f"cannot load the objective {name!r}: {error}") from None
