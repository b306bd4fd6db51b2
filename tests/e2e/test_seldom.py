"""Trainers whose nodes exchange parameters once in many steps, in real pools: nodes die, come and go within rounds."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pilot.protocol.pool_status import TrainerStatus
from tests.e2e.acts import script
from tests.e2e.proof import EPOCH_SAMPLES, proved
from tests.e2e.test_checked import CHECK_S
from tests.e2e.test_stuck import OBEYS, TAKES, goes_on
from tests.pools import LIMIT_S, Pool

NAP = "time.sleep(0.03)"


def in_rounds(pool: Pool, sync: str, inside: str = NAP, *, before: str = "", samples: int = EPOCH_SAMPLES) -> Path:
    """A script with ``sync`` ("": none) whose nodes take batches of 4 samples; a file ``enough`` ends it."""
    path = script(pool, inside, before=before, samples=samples)
    text = path.read_text().replace("global_batch_size=16", "batch_size=4")
    if sync:
        text = text.replace("session(model, optimizer)", f"session(model, optimizer, sync=pilot.train.{sync})")
    path.write_text(text)
    return path


def training(pool: Pool, nodes: int, path: Path, *options: str) -> str:
    """A trainer that has trained on ``nodes`` nodes."""
    pool.up()
    for _ in range(nodes):
        pool.agent()
    name = pool.submit(path, options=(*pool.gains(), *options))
    pool.until(f"{name} trains", lambda s: len(s.trainer(name).nodes) == nodes and s.trainer(name).step >= 10, CHECK_S)
    return name


def finished(pool: Pool, name: str) -> TrainerStatus:
    (pool.folder / "enough").touch()
    assert pool.pilot("wait", name).stdout == f"{name} finished\n"
    return pool.trainer(name)


def until_round(pool: Pool, name: str, nodes: int, more: int = 2) -> TrainerStatus:
    """Wait for some rounds more on so many nodes."""
    number = pool.trainer(name).metrics.get("round") or 0
    return pool.until(
        f"{name} on {nodes} nodes in round {number + more}",
        lambda s: len(s.trainer(name).nodes) == nodes and (s.trainer(name).metrics.get("round") or 0) >= number + more,
    ).trainer(name)


@pytest.mark.slow
def test_each_sample_counts_once_whatever_happens_to_nodes_in_rounds(pool: Pool) -> None:
    name = training(pool, 3, in_rounds(pool, ""), "--sync", "diloco:every=60,wire=bfloat16")
    until_round(pool, name, 3, 1)
    pool.kill_tree(pool.agents[0])
    until_round(pool, name, 2, 1)
    pool.agent()
    until_round(pool, name, 3, 1)
    noticed = pool.agents[1]
    noticed.send_signal(signal.SIGTERM)
    assert noticed.wait(LIMIT_S) == 0
    before = until_round(pool, name, 2)
    assert (before.losses, before.preemptions, before.worker_deaths, before.lost_steps) == (1, 1, 0, 0)
    assert ": exchange " in pool.pilot("ls").stdout
    assert "with every=60 exchanges take" in pool.pilot("logs", "--all", name).stdout
    assert before.warnings == []
    pool.pilot("down")
    assert pool.trainer(name).lost_steps == 0
    pool.up()
    pool.agent()
    until_round(pool, name, 1)
    trainer = finished(pool, name)
    assert (trainer.losses, trainer.lost_steps) == (1, 0)
    epochs = proved(pool, name)
    assert epochs > 1
    assert "round" in pool.pilot("ledger", name).stdout


@pytest.mark.long
def test_when_all_nodes_die_the_checkpoint_of_a_round_s_end_is_taken(pool: Pool) -> None:
    name = training(pool, 2, in_rounds(pool, "DiLoCo(every=60)"))
    until_round(pool, name, 2)
    pool.until("it was saved", lambda _: any(pool.run_dir.glob(f"trainers/{name}/checkpoints/*")))
    for agent in pool.agents:
        pool.kill_tree(agent)
    pool.until("the pool is empty", lambda s: not s.pool)
    for _ in range(2):
        pool.agent()
    until_round(pool, name, 2)
    assert finished(pool, name).losses == 2
    proved(pool, name)


@pytest.mark.slow
def test_a_long_round_is_no_hang_and_a_newcomer_ends_it(pool: Pool) -> None:
    name = training(pool, 2, in_rounds(pool, "LocalSGD(every=10**9)", samples=10**6))
    began = pool.status()
    later = pool.until("the round is long", lambda s: s.now_s > began.now_s + 9.0)  # twice the site's silent_s
    trainer = later.trainer(name)
    assert trainer.step > began.trainer(name).step + 50, "inner steps are reported"
    assert (trainer.generation, trainer.worker_deaths) == (began.trainer(name).generation, 0)
    assert (trainer.warnings, trainer.remarks, trainer.metrics.get("round")) == ([], [], None)
    pool.agent()
    pool.until_step(name, trainer.step, nodes=3)
    assert pool.trainer(name).lost_steps == 0
    pool.pilot("cancel", name)


@pytest.mark.long
@pytest.mark.parametrize("mood", ["wait", "block"])
def test_a_node_that_does_not_end_its_inner_step_is_waited_for_or_lost(pool: Pool, mood: str) -> None:
    path = in_rounds(pool, "DiLoCo(every=60)", OBEYS, before=TAKES)
    name = training(pool, 2, path, "--patience-s", "300" if mood == "wait" else "4")
    (pool.folder / mood).touch()
    if mood == "wait":
        pool.until("it is shown", lambda s: "waiting for it (--patience-s)" in " ".join(s.trainers[0].remarks))
        (pool.folder / "go").touch()
    else:
        lost = pool.until("it is lost", lambda s: s.trainers[0].worker_deaths == 1)
        assert "was stuck" in " ".join(lost.trainers[0].remarks)
    goes_on(pool, name, 2)


@pytest.mark.long
def test_such_a_script_is_not_checked_and_grows(pool: Pool) -> None:
    pool.check = "auto"
    name = training(pool, 2, in_rounds(pool, "LocalSGD(every=60)"))
    trainer = until_round(pool, name, 2)
    assert trainer.check == "unchecked"
    assert "train by themselves" in trainer.check_text
    pool.pilot("cancel", name)
