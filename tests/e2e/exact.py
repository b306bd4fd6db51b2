"""A trainer whose result depends on all that a checkpoint must hold: batch norm, dropout, a scheduler, an average, what
is measured at epochs' ends, and whose numbers are in float64. ``--sharded``: over the processes of a node.
"""

import argparse
import time

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import pilot.train

SAMPLES, EPOCHS = 330, 12

parser = argparse.ArgumentParser()
parser.add_argument("--step-s", type=float, required=True)
parser.add_argument("--save", required=True, help="where to put all that was trained")
parser.add_argument("--sharded", action="store_true")
arguments = parser.parse_args()

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
data = TensorDataset(torch.randn(SAMPLES, 8), torch.randn(SAMPLES, 1))
norm = nn.LayerNorm(15) if arguments.sharded else nn.BatchNorm1d(15)
model = nn.Sequential(nn.Linear(8, 15), norm, nn.Tanh(), nn.Dropout(0.2), nn.Linear(15, 1))
if arguments.sharded:
    for layer in (model[0], model):
        fully_shard(layer, mesh=pilot.train.node_mesh())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
session = pilot.train.session(model, optimizer, scheduler, schedule="step", seed=1)
loader = session.loader(data, global_batch_size=32, shares="equal")  # which depend on no measured times
average = None if arguments.sharded else AveragedModel(model)
if average is not None:
    session.track("average", average)


def error(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of a batch."""
    return {"error": nn.functional.mse_loss(model(batch[0]), batch[1])}


for _ in session.epochs(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) * session.state.get("scale", 1.0)
        loss.backward()
        time.sleep(arguments.step_s)
        session.step(loss)
        if average is not None:
            average.update_parameters(model)
    session.state["scale"] = 1.0 + session.evaluate(data, error)["error"]

of_optimizer = {
    f"optimizer.{name}.{key}": value
    for name, state in optimizer.state_dict()["state"].items()
    for key, value in state.items()
}
of_average = {} if average is None else {f"average.{name}": one for name, one in average.state_dict().items()}
trained = {
    name: getattr(one, "full_tensor", lambda one=one: one)()
    for name, one in (model.state_dict() | of_optimizer | of_average).items()
}
if session.rank == 0:
    torch.save({**trained, "scale": torch.tensor(session.state["scale"])}, arguments.save)
