"""A Lightning module with validation and callbacks, as written for torchrun; it imports nothing from this project.

Arguments: a folder for its checkpoints, and the minimum seconds per step.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER, STEP_S = Path(sys.argv[1]), float(sys.argv[2])


class Digits(lightning.LightningModule):
    """A classifier of points by quadrant."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        time.sleep(STEP_S)
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], _index: int) -> None:
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Notes(lightning.Callback):
    """Prints its progress, and stops when a file exists."""

    def on_train_start(self, trainer: lightning.Trainer, _module: Any) -> None:
        print(f"begins on {trainer.world_size} at step {trainer.global_step}", flush=True)

    def on_validation_end(self, trainer: lightning.Trainer, _module: Any) -> None:
        if not trainer.sanity_checking and trainer.is_global_zero:
            loss = float(trainer.callback_metrics["val_loss"])
            print(f"epoch {trainer.current_epoch} val_loss {loss:.4f}", flush=True)

    def on_train_epoch_end(self, trainer: lightning.Trainer, _module: Any) -> None:
        enough = (FOLDER / "enough").exists()
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(enough, all=False)


lightning.seed_everything(0)
points = torch.randn(512, 2)
labels = (points[:, 0] > 0) * 2 + (points[:, 1] > 0).long()
data = TensorDataset(points, labels)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
    max_epochs=100_000,
    callbacks=[ModelCheckpoint(dirpath=FOLDER, monitor="val_loss", save_last=True), Notes()],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Digits(), DataLoader(data, 16, shuffle=True), DataLoader(data, 64), ckpt_path="last")
print("done", flush=True)
