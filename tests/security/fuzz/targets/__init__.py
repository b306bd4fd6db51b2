"""One file per kind of input."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.security.fuzz.target import Target

TARGETS: list[Target] = [import_module(f"{__name__}.{module.name}").TARGET for module in pkgutil.iter_modules(__path__)]
