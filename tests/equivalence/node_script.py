"""The script that the workers of a node run: ``node_script.py KIND WAY FOLDER``, in float64; ``KIND``: ``plain``,
``sharded`` or ``mixed``.

Its parts do not divide by two (a bias of one number has an empty shard), a weight is tied, one is frozen, there is a
buffer, activations are recomputed in backward, and an epoch's last step leaves one rank of four without samples. Unless
sharded, it has a default process group of its own. ``mixed``: parameters are float32, and a sharded model computes in
float64 (a lossless policy, so that results are comparable).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import pilot.train
from pilot.train.session import Session

SAMPLES, BATCH, EPOCHS = 22, 8, 4
SWITCHES = {"1 -> 2 -> 1": {2: 1, 6: 2}, "replicas": {3: 2, 5: 3, 6: 4}}
"""By step: before summing, the ranks of this generation wait until they can switch to the next one."""
DIES = {"one of two killed": [(4, "n2"), (4, "n3")], "replicas": [(2, "n6"), (2, "n7")]}
"""In which step which workers of the first generation wait to be killed."""
ALL_DIE = {"all killed": 1, "replicas": 5}
"""Of which generation there is a checkpoint when all workers wait to be killed."""


class Model(nn.Module):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 7)
        self.tied = nn.Linear(7, 7)
        self.tied.weight = self.second.weight
        self.frozen = nn.Linear(7, 3).requires_grad_(False)
        self.last = nn.Linear(3, 1)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """One number for each sample."""
        hidden: torch.Tensor = checkpoint(  # type: ignore[no-untyped-call]  # torch's
            self.first, inputs, use_reentrant=False
        )
        hidden = torch.tanh(self.tied(torch.tanh(self.second(torch.tanh(hidden)))))
        output: torch.Tensor = self.last(torch.tanh(self.frozen(hidden))) * self.scale
        return output


def dies(folder: Path, node: str) -> Path:
    """Exists when ``node`` waits to be killed."""
    return folder / f"dies-{node}"


def waits(folder: Path, generation: int) -> Path:
    """Exists when a rank of ``generation`` waits until it can switch."""
    return folder / f"waits-{generation}"


def ran(folder: Path, node: str) -> Path:
    """The script's result on ``node``."""
    return folder / f"ran-{node}"


def play(way: str, folder: Path, node: str) -> None:
    """Make it happen."""
    step = Session.step

    def played(session: Session, *arguments: Any, **keywords: Any) -> bool:
        group: Any = session._group
        generation = group._group.generation if group._group is not None else 0
        if (generation == 1 and (session.steps, node) in DIES.get(way, ())) or (
            generation == ALL_DIE.get(way) and _saved(folder / "checkpoints", generation)
        ):
            dies(folder, node).touch()
            signal.pause()
        assert group._between.in_use == bool(os.environ.get("PILOT_BETWEEN_NODES"))
        waiting = SWITCHES.get(way, {}).get(session.steps)
        if generation == waiting:
            waits(folder, generation).touch()
        while group._group is not None and group._group.generation == waiting and not group._membership.ready_for:
            group._attend(None)
        return step(session, *arguments, **keywords)

    Session.step = played


def _saved(checkpoints: Path, generation: int) -> bool:
    """Whether there is a checkpoint of ``generation``; one that is being written gets a second."""
    by_s = time.monotonic() + 1
    while not (there := any(checkpoints.glob(f"g{generation:06d}-s????????.h5"))) and time.monotonic() < by_s:
        time.sleep(0.02)
    return there


def train(*, sharded: bool = False, mixed: bool = False) -> dict[str, torch.Tensor]:
    """The script as a user writes it; returns its final parameters."""
    torch.manual_seed(7)
    dataset = TensorDataset(torch.randn(SAMPLES, 5), torch.randn(SAMPLES, 1))
    model = Model().to(torch.float32 if mixed else torch.float64)
    if sharded:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh, wide = pilot.train.replica_mesh(), torch.float64 if mixed else None
        policy = MixedPrecisionPolicy(param_dtype=wide, reduce_dtype=wide)
        for layer in (model.first, [model.second, model.tied]):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    else:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    session = pilot.train.session(model, optimizer, seed=3)
    loader = session.loader(dataset, global_batch_size=BATCH, micro_batch_size=3)
    for _ in session.epochs(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            session.clip_grad_norm(0.5)
            session.step(loss)
        measured = session.evaluate(
            dataset, lambda batch: {"error": nn.functional.mse_loss(model(batch[0]), batch[1])}, 3
        )
        session.state["errors"] = [*session.state.get("errors", []), measured["error"]]
    kept = {name: _gathered(tensor).clone() for name, tensor in model.state_dict().items()}
    return kept | {"errors": torch.tensor(session.state["errors"])}


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    gather = getattr(tensor, "full_tensor", None)
    gathered: torch.Tensor = gather() if gather is not None else tensor
    return gathered


def main() -> None:
    kind, way, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    node = Path(os.environ.get("PILOT_WORKER_SOCKET", "alone")).stem
    if node != "alone":
        play(way, folder, node)
    kept = train(sharded=kind in ("sharded", "mixed"), mixed=kind == "mixed")
    torch.save(kept, ran(folder, node).with_suffix(".part"))
    ran(folder, node).with_suffix(".part").rename(ran(folder, node))


if __name__ == "__main__":
    main()
