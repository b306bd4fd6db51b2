"""Two training processes per node: a fault in one is a fault of its node, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from tests.e2e.acts import training
from tests.e2e.proof import proved
from tests.e2e.test_stuck import goes_on, moody
from tests.pools import LIMIT_S, TRAIN, Pool


def alone(path: Path, epochs: int) -> dict[str, torch.Tensor]:
    """The parameters that the script computes under plain ``python``."""
    command = [sys.executable, str(TRAIN), "--epochs", str(epochs), "--step-s", "0", "--save", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, timeout=LIMIT_S)
    parameters: dict[str, torch.Tensor] = torch.load(path)
    return parameters


def test_a_killed_process_and_a_killed_pilot_leave_the_parameters_as_one_process_makes_them(pool: Pool) -> None:
    saved = pool.folder / "elastic.pt"
    pool.ranks = 2
    pool.up()
    first, second = pool.agent(), pool.agent()
    name = pool.submit_lasting("--save", str(saved))
    pool.until_step(name, 20, nodes=2)
    assert [len(pool.workers(agent)) for agent in (first, second)] == [2, 2]
    logs = {path.name.rsplit(".", 2)[1] for path in (pool.run_dir / "trainers" / name / "logs").glob("*.log")}
    assert logs == {"0", "1"}, "each process has a log of its own"

    neighbour, victim = pool.workers(second)
    victim.kill()
    pool.until("its worker is lost", lambda s: s.trainers[0].worker_deaths == 1)
    neighbour.wait(LIMIT_S)  # all processes of a worker end together
    pool.until_step(name, pool.trainer(name).step + 20, nodes=2)

    pool.kill_tree(first)
    pool.until("the pilot is lost", lambda s: len(s.pool) == 1)
    trainer = pool.finish(name)
    assert (trainer.worker_deaths, trainer.losses, trainer.lost_steps) == (1, 1, 0)
    epochs = proved(pool, name)
    elastic = torch.load(saved)
    for parameter, values in alone(pool.folder / "alone.pt", epochs).items():
        torch.testing.assert_close(elastic[parameter], values, rtol=1e-9, atol=1e-12)


def test_a_single_pilot_that_is_preempted_with_notice_loses_nothing(pool: Pool) -> None:
    pool.ranks = 2
    name = training(pool, 1)
    (agent,) = pool.agents
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(LIMIT_S) == 0
    pool.until("the pool is empty", lambda s: not s.pool)
    pool.agent()
    trainer = pool.finish(name)
    assert (trainer.lost_steps, trainer.redone_steps) == (0, 0)
    proved(pool, name)


def test_a_process_that_is_blocked_for_ever_is_found_though_its_neighbour_answers(pool: Pool) -> None:
    pool.ranks = 2
    name = moody(pool, 2)
    (pool.folder / "block").touch()
    lost = pool.until("it is lost", lambda s: s.trainers[0].worker_deaths == 1)
    assert "was stuck" in " ".join(lost.trainers[0].remarks)
    goes_on(pool, name, 2)
