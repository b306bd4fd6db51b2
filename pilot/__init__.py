"""pilot: elastic deep-learning training on the idle nodes of a supercomputer.

Importing this package imports none of torch, mpi4py, Pyomo, Parsl or h5py: a login node pays only for what it uses.
"""

from typing import TYPE_CHECKING, Any

from pilot.core.errors import PilotError as PilotError
from pilot.core.errors import UserError as UserError
from pilot.core.version import __version__ as __version__

if TYPE_CHECKING:
    from pilot.client.trainers import Trainer as Trainer
    from pilot.client.trainers import submit as submit


def __getattr__(name: str) -> Any:
    """Import what programs submit trainers with when it is first used."""
    if name not in ("Trainer", "submit"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pilot.client import trainers

    return getattr(trainers, name)
