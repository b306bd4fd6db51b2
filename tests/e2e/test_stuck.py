"""A training process that is stopped or stuck while its agent lives is lost; a slow one is shown and left alone."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.e2e.acts import script
from tests.pools import Pool

TAKES = """
from pilot.comm.channel import Channel
from pilot.comm.messages import Gather

def took(mood):
    try:
        Path(mood).rename(f"{mood}.taken")
    except FileNotFoundError:
        return False
    return True

def send_unless_lost(channel, note, fd=None):
    if not (isinstance(note, Gather) and took("lose")):
        send(channel, note, fd)

send, Channel.send = Channel.send, send_unless_lost
"""
OBEYS = """
time.sleep(0.02)
while took("block"):
    time.sleep(1e6)
while took("wait"):
    while not Path("go").exists():
        time.sleep(0.5)
while took("spin"):
    while not Path("go").exists():
        pass
"""


def moods(pool: Pool) -> Path:
    """A script that obeys files: each is taken by one process, which acts on it. ``block``: sleep for ever; ``spin``,
    ``wait``: compute, or do nothing, until a file ``go`` exists; ``lose``: lose its part of the next gather.
    """
    return script(pool, OBEYS, before=TAKES)


def moody(pool: Pool, nodes: int, patience_s: float = 4.0) -> str:
    """A trainer that trains on ``nodes`` nodes."""
    pool.up()
    for _ in range(nodes):
        pool.agent()
    name = pool.submit(moods(pool), options=("--patience-s", str(patience_s), *pool.gains()))
    pool.until_step(name, 10, nodes=nodes)
    return name


def goes_on(pool: Pool, name: str, nodes: int) -> None:
    """It continues on this many nodes, and no step was lost."""
    step = pool.trainer(name).step
    pool.until_step(name, step + 20, nodes=nodes)
    assert pool.trainer(name).lost_steps == 0
    pool.pilot("cancel", name)


def test_a_stopped_process_is_lost_and_a_new_one_takes_its_place(pool: Pool) -> None:
    name = moody(pool, 2)
    (victim,) = pool.workers(pool.agents[1])
    victim.send_signal(signal.SIGSTOP)
    pool.until("it is lost", lambda s: s.trainers[0].worker_deaths == 1)
    assert not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE
    goes_on(pool, name, 2)


def test_a_process_that_is_blocked_for_ever_is_lost_and_a_new_one_takes_its_place(pool: Pool) -> None:
    name = moody(pool, 3)
    (pool.folder / "block").touch()
    lost = pool.until("it is lost", lambda s: s.trainers[0].worker_deaths == 1)
    assert "was stuck" in " ".join(lost.trainers[0].remarks)
    goes_on(pool, name, 3)


def test_a_process_that_waits_for_something_is_left_alone_while_there_is_patience(pool: Pool) -> None:
    """Like a process that reads over a network: no CPU time, no disk; the others wait for it in a step."""
    name = moody(pool, 2, patience_s=300.0)
    (pool.folder / "wait").touch()
    pool.until("it is shown", lambda s: "waiting for it (--patience-s)" in " ".join(s.trainers[0].remarks))
    (pool.folder / "go").touch()
    goes_on(pool, name, 2)
    trainer = pool.trainer(name)
    assert (trainer.worker_deaths, trainer.losses) == (0, 0)


def test_a_process_that_computes_on_is_slow_and_is_not_killed(pool: Pool) -> None:
    name = moody(pool, 2)
    (pool.folder / "spin").touch()
    slow = pool.until("it is shown", lambda s: any("is slow" in r for r in s.trainers[0].remarks))
    assert "it is computing" in " ".join(slow.trainers[0].remarks)
    assert "is slow, the others wait for it" in pool.pilot("status").stdout
    (pool.folder / "go").touch()
    goes_on(pool, name, 2)
    trainer = pool.trainer(name)
    assert (trainer.worker_deaths, trainer.losses) == (0, 0)
    assert trainer.generation == slow.trainers[0].generation


@pytest.mark.parametrize("forming", [False, True])
def test_ranks_of_which_one_gather_was_lost_wait_for_one_another_and_form_anew(pool: Pool, forming: bool) -> None:
    """In a group that trains, or while one forms with a newcomer."""
    name = moody(pool, 1 if forming else 2)
    before = pool.trainer(name).generation + forming
    (pool.folder / "lose").touch()
    if forming:
        pool.agent()
    pool.until("the group forms anew", lambda s: s.trainers[0].generation > before)
    assert "its ranks all waited for one another" in (pool.run_dir / "journal.jsonl").read_text()
    goes_on(pool, name, 2)
    assert pool.trainer(name).worker_deaths == 0


def test_a_newcomer_waits_for_the_end_of_a_step_that_takes_longer_than_finding_each_other_may(pool: Pool) -> None:
    pool.form_s = 8.0
    name = moody(pool, 1, patience_s=300.0)
    (pool.folder / "wait").touch()
    pool.until("the step lasts", lambda _: (pool.folder / "wait.taken").exists())
    pool.agent()
    began = pool.until("a group forms", lambda s: s.trainers[0].generation == 2).now_s
    pool.until("finding each other would be over", lambda s: s.now_s > began + 2 * pool.form_s)
    (pool.folder / "go").touch()
    goes_on(pool, name, 2)
    trainer = pool.trainer(name)
    assert (trainer.generation, trainer.losses, trainer.worker_deaths) == (2, 0, 0)
    assert "is slow" not in " ".join(trainer.remarks), "nobody of its group waits for it"


def test_a_process_that_was_alone_and_is_blocked_for_ever_is_lost_when_a_newcomer_waits_for_it(pool: Pool) -> None:
    name = moody(pool, 1)
    (pool.folder / "block").touch()
    pool.until("it is blocked", lambda _: (pool.folder / "block.taken").exists())
    pool.agent()
    lost = pool.until("it is lost", lambda s: s.trainers[0].worker_deaths == 1)
    assert "was stuck" in " ".join(lost.trainers[0].remarks)
    pool.until_step(name, lost.trainers[0].step + 20, nodes=2)


def test_a_fork_server_that_is_stopped_is_replaced(pool: Pool) -> None:
    pool.up()
    agent = pool.agent()
    pool.until("it has joined", lambda s: len(s.pool) == 1)
    (server,) = [p for p in psutil.Process(agent.pid).children() if "pilot.agent.fork_server" in p.cmdline()]
    server.send_signal(signal.SIGSTOP)
    name = pool.submit(moods(pool))
    goes_on(pool, name, 1)


def test_a_script_whose_loop_does_not_begin_in_its_time_is_stopped(pool: Pool) -> None:
    pool.up()
    pool.agent()
    script = pool.folder / "reads.py"
    script.write_text("import time\ntime.sleep(1e6)  # as one that reads its data\n")
    name = pool.submit(script, options=("--warm-up-s", "2"))
    pool.until("it has failed", lambda s: s.trainers[0].phase == "failed")
    assert "its training loop did not begin within 2 s (--warm-up-s)" in pool.trainer(name).reason
