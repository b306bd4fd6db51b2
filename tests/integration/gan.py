"""Two models and two optimizers, an average of one, and parameters unfrozen in the second epoch: for the tests'
workers. A rank stops itself once where told; the others are paced until the file ``GATE`` exists.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import pilot.train

SAMPLES = 500


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--stops", action="append", default=[], help="STEP:NAME, before that optimizer's step")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--gate", type=Path, default=Path("/"))
    parser.add_argument("--save", type=Path, required=True, help="each rank adds its number")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    data = TensorDataset(torch.randn(SAMPLES, 4), torch.randn(SAMPLES, 1).exp())
    critic = nn.Sequential(spectral_norm(nn.Linear(1, 8)), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    critic[2].requires_grad_(False)
    generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    steps_critic = torch.optim.Adam([p for p in critic.parameters() if p.requires_grad], lr=1e-2)
    steps_generator = torch.optim.Adam(generator.parameters(), lr=1e-2)
    average = AveragedModel(generator, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    models, optimizers = (
        {"critic": critic, "generator": generator},
        {"critic": steps_critic, "generator": steps_generator},
    )
    session = pilot.train.session(models, optimizers, seed=1)
    loader = session.loader(data, global_batch_size=32)
    session.track("average", average)

    def step(loss: torch.Tensor, name: str) -> None:
        fate = f"{session.steps}:{name}"
        mark = arguments.save.with_name(fate)
        if session.rank == session.size - 1 and session.size > 1 and fate in arguments.stops and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        session.step(loss, name)

    for epoch in session.epochs(arguments.epochs):
        if epoch == 1:
            critic[2].requires_grad_(True)
            steps_critic.add_param_group({"params": list(critic[2].parameters()), "lr": 1e-3})
        for noise, real in loader:
            steps_critic.zero_grad()
            fake = generator(noise)
            (critic(real) - 1).square().mean().backward()
            loss = critic(fake.detach()).square().mean()
            loss.backward()
            step(loss, "critic")
            if not arguments.gate.exists():
                time.sleep(arguments.step_s)
            steps_generator.zero_grad()
            loss = (critic(fake) - 1).square().mean()
            loss.backward()
            step(loss, "generator")
            average.update_parameters(generator)
    result = {"critic": critic, "generator": generator, "average": average, "a": steps_critic, "b": steps_generator}
    torch.save({name: one.state_dict() for name, one in result.items()}, arguments.save.with_suffix(f".{session.rank}"))


if __name__ == "__main__":
    main()
