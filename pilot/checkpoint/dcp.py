"""Exports checkpoints to directories that ``torch.distributed.checkpoint`` (DCP) loads.

They have the names of ``torch.distributed.checkpoint.state_dict.get_state_dict``. torch plans the files from tensors
without memory; then one tensor after the other is read, verified and written, so no model has to fit into memory.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo

from pilot.checkpoint import reader, tree
from pilot.core.errors import UserError
from pilot.host import files, output_files

_PARTS = ("model", "optimizer", "trained")
"""What a session's state must have; ``trained`` has the names of the optimizers' parameters."""
_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module)\.")
"""What ``torch.compile`` and activation checkpointing add to names, and ``get_state_dict`` leaves out."""
_DATA = "__0_0.distcp"


def export(path: Path, output: Path, only: str = "") -> int:
    """Write the checkpoint at ``path`` to the new directory ``output``; returns the size of its files in bytes. Raises
    like :func:`pilot.checkpoint.export.export`, and :class:`UserError` for a part, and for what DCP cannot hold."""
    if only:
        raise UserError("--dcp exports models and optimizers; leave --only out")
    with reader.one_by_one(path, _PARTS) as (state, read), output_files.output_folder(output) as folder:
        if missing := [part for part in _PARTS if part not in state]:
            raise UserError(f"{path.name} has no '{missing[0]}': --dcp exports what pilot.train.session has saved")
        model = {_WRAPPERS.sub("", name): value for name, value in state["model"].items()}
        _write({"model": model, "optim": _optimizers(state, model)}, read, folder)
        return sum(file.stat().st_size for file in folder.iterdir())


def _optimizers(state: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """The state of all optimizers as one, by the names of parameters in ``model``."""
    merged: dict[str, Any] = {"state": {}, "param_groups": []}
    for optimizer, groups in state["trained"]["groups"].items():
        its = state["optimizer"][optimizer] if optimizer else state["optimizer"]
        names: dict[Any, str] = {}
        for group, given in zip(its["param_groups"], groups, strict=True):
            full = [_WRAPPERS.sub("", name) for name in given]
            names |= zip(group["params"], full, strict=True)
            merged["param_groups"].append({**group, "params": full})
        merged["state"] |= {names.get(key, key): value for key, value in its["state"].items()}
    uses = Counter(name for group in merged["param_groups"] for name in group["params"])
    for name in (*uses, *merged["state"]):
        if name not in model or uses[name] > 1:
            why = "in two optimizers" if uses[name] > 1 else "in an optimizer, but no parameter of a model"
            raise UserError(f"{name} is {why}: torch.distributed.checkpoint cannot hold its state")
    return merged


def _write(state: dict[str, Any], read: Callable[[Any], Any], folder: Path) -> None:
    """Write ``state``, with the values that ``read`` returns for its own, to ``folder``. (torch's ``FileSystemWriter``
    would hold all tensors of a file until it is complete.)"""
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    (plan,), metadata = planner.create_global_plan([planner.create_local_plan()])
    metadata.storage_data = {}
    mode = 0o666 & ~files.umask()
    with files.published(folder / _DATA, mode) as file:
        for item in plan.items:
            begin = file.tell()
            torch.save(tree.rebuilt(planner.lookup_object(item.index), read), file)
            metadata.storage_data[item.index] = _StorageInfo(_DATA, begin, file.tell() - begin)
    files.publish(folder / ".metadata", pickle.dumps(metadata), mode)
