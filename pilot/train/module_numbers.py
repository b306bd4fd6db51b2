"""What modules keep in plain attributes: a temperature that forward lowers, a counter, the phase of training. Those
that have changed since the first step are part of the state, like buffers. What a script sets before, it sets on every
node, and perhaps differently on each (``model.rank = session.rank``).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any

import torch
from torch import nn

Numbers = dict[str, dict[str, Any]]
"""By the module's path and the attribute's name."""

_PLAIN = {bool, int, float, str, NoneType}
_OF_TORCH = vars(nn.Module()).keys()


class ModuleNumbers:
    """The plain attributes (numbers, flags, texts, None) of ``model`` and its parts, apart from torch's own."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._first: Numbers | None = None
        self._restored: Numbers = {}

    def begin(self) -> None:
        """A step begins."""
        if self._first is None:
            self._first = self.now()

    def now(self) -> Numbers:
        """All of them."""
        return {path: _plain(module) for path, module in self._modules()}

    def capture(self) -> Numbers:
        """Those that have changed. What the others are is up to the script, which may be edited before it resumes."""
        changed, now = {}, self.now()
        for path, values in now.items():
            first, restored = (self._first or now).get(path, {}), self._restored.get(path, {})
            its = {k: v for k, v in values.items() if k in restored or k not in first or first[k] != v}
            if its:
                changed[path] = its
        return changed

    def restore(self, changed: Numbers) -> None:
        """Take over what :meth:`capture` gave."""
        first = self._first or {}
        self.put({path: first[path] for path in self.capture() if path in first})
        self.put(changed)
        self._restored = changed

    def put(self, numbers: Numbers) -> None:
        """Set these."""
        for path, module in self._modules() if numbers else ():
            vars(module).update(numbers.get(path, {}))

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """A scripted module keeps its attributes elsewhere."""
        return ((path, one) for path, one in self._model.named_modules() if not isinstance(one, torch.jit.ScriptModule))


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if type(value) in _PLAIN and name not in _OF_TORCH}
