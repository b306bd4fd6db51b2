"""Buffers that ``state_dict()`` leaves out (``persistent=False``), of the models and of tracked modules. They are
part of the state like the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import nn

Unsaved = dict[str, dict[str, torch.Tensor | None]]
"""By the module's path and the buffer's name."""


class UnsavedBuffers:
    """Those of one session.

    Parameters
    ----------
    model : with all its parts
    tracked : what the script tracks, by name; modules count
    """

    def __init__(self, model: nn.Module, tracked: Mapping[str, object]) -> None:
        self._model = model
        self._tracked = tracked

    def capture(self) -> Unsaved:
        """Return them, not copied."""
        return {path: dict(its) for path, module in self._modules() if (its := list(unsaved_of(module)))}

    def restore(self, state: Unsaved) -> None:
        """Take over what :meth:`capture` gave."""
        for path, module in self._modules():
            for name, value in state.get(path, {}).items():
                _put(module, name, value)

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self._model.named_modules()
        for name, one in self._tracked.items():
            if isinstance(one, nn.Module):
                yield from one.named_modules(prefix=f"tracked {name}")


def unsaved_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Return those of ``module`` itself, by name. (torch.jit saves all buffers.)"""
    if isinstance(module, torch.jit.ScriptModule):
        return
    for name in sorted(module._non_persistent_buffers_set & module._buffers.keys()):
        buffer = module._buffers[name]
        yield name, None if buffer is None else buffer.detach()


def _put(module: nn.Module, name: str, value: torch.Tensor | None) -> None:
    """A buffer of the same shape stays the same tensor: modules may share it. Forward may have made one elsewhere."""
    held = module._buffers.get(name)
    if value is None or held is None or held.is_inference() or _form(held) != _form(value):
        value = None if value is None else value.to(_device(module, held), copy=True)
        module.register_buffer(name, value, persistent=False)
    else:
        held.data.copy_(value)


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _device(module: nn.Module, held: torch.Tensor | None) -> torch.device | None:
    """Where a tensor belongs that came from another rank, or from a file."""
    tensors = chain([held], module._parameters.values(), module._buffers.values())
    return next((one.device for one in tensors if one is not None), None)
