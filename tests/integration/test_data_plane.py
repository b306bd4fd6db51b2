"""The data plane with real workers, real MPI over TCP and real SIGKILLs: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilot.checkpoint import names, store
from pilot.comm import mpich, world
from pilot.comm.int8 import BLOCK
from pilot.core.commands import SetCheckpointInterval, WriteCheckpoint
from pilot.protocol import wire
from tests.integration import disturbed, rank_processes
from tests.integration.disturbed import BATCH, SAMPLES, STEPS_PER_EPOCH, alone, assert_exactly_once, same_as_alone
from tests.integration.plane import Node, Plane, plane

SCRIPT = Path(__file__).with_name("script.py")


@pytest.mark.slow
def test_rescales_a_pause_and_two_kills_leave_the_parameters_as_they_would_have_been(tmp_path: Path) -> None:
    with same_as_alone(tmp_path, SCRIPT, *BATCH, epochs=60) as run:
        cluster = run.cluster
        a, b, c, d = cluster.start(4)
        steps = [cluster.wait_up(cluster.form([a])).step]

        def go_on() -> None:
            cluster.wait_step(steps[-1] + 1)

        def rescale(members: list[Any], *, switch: bool = True) -> None:
            if switch:
                go_on()
            up = cluster.wait_up(cluster.form(members, switch=switch))
            assert up.resumed is None
            assert up.step > steps[-1]
            steps.append(up.step)

        rescale([a, b])
        rescale([a, b, c, d])
        rescale([d, b, a])  # c parks, another node leads
        go_on()
        cluster.lose(b)
        rescale([a, c, d], switch=False)
        rescale([a, c])
        go_on()
        paused = cluster.pause()
        up = cluster.wait_up(cluster.form([c, d, a]))
        assert up.step == paused
        steps.append(up.step)
        go_on()
        cluster.lose(c)
        rescale([d, a], switch=False)
        rescale([d])
    assert run.finished.step == 60 * STEPS_PER_EPOCH
    assert run.finished.samples == 60 * SAMPLES
    assert run.results()[0]["state"] == {"passes": 60}


def test_gradients_may_travel_as_16_bits(tmp_path: Path) -> None:
    plain = (*BATCH, "--dtype", "float32")
    with disturbed.run(tmp_path, SCRIPT, *plain, "--wire-dtype", "bfloat16", epochs=4) as run:
        run.cluster.form(run.cluster.start(3))
    exact = alone(tmp_path, SCRIPT, *plain, "--epochs", "4")["model"]
    off = [(tensor - exact[name]).abs().max().item() for name, tensor in run.results()[0]["model"].items()]
    assert 1e-6 < max(off) < 1e-2  # more than float32 rounding, far less than what 64 steps of 1e-3 move a parameter


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_narrow_sum_rounds_twice_and_gives_all_ranks_the_same_bits(ranks: int) -> None:
    command = [sys.executable, "-m", "tests.integration.narrow_ranks"]
    done = world.run(command, ranks, mpich.environment(os.environ, interface="lo", provider="tcp"), limit_s=60)
    assert [rank.returncode for rank in done] == [0] * ranks
    errors = json.loads(done[0].stdout)
    assert 0 < errors["float16"] < 2 * 2**-11
    assert 0 < errors["bfloat16"] < 2 * 2**-8
    assert 0.3 < errors["int8"] <= 1
    assert 1 <= errors["NaN"] <= BLOCK


def killed_in_mid_step(cluster: Plane, a: Node, b: Node) -> list[Node]:
    (c,) = cluster.start()
    cluster.form([a, b, c], switch=True)
    cluster.wait_step(6)
    b.signal(signal.SIGSTOP)  # from now on the others wait for its gradients
    cluster.lose(b)
    return [a, c]


def lone_survivor(cluster: Plane, a: Node, b: Node) -> list[Node]:
    """It parks with its state until a node comes, which leads."""
    a.rank_process(cluster.generation).kill()  # the leader's own rank process, not its worker
    cluster.lose(b)
    return [*cluster.start(), a]


def lags_behind(cluster: Plane, a: Node, b: Node) -> list[Node]:
    """A rank that is a step behind takes the state of the other."""
    a.signal(signal.SIGSTOP)
    cluster.dissolve()
    a.signal(signal.SIGCONT)
    return [a, b]


@pytest.mark.parametrize("change", [killed_in_mid_step, lone_survivor, lags_behind])
def test_a_group_that_breaks_costs_no_step(tmp_path: Path, change: Callable[[Plane, Node, Node], list[Node]]) -> None:
    with same_as_alone(tmp_path, SCRIPT, *BATCH, epochs=20) as run:
        cluster = run.cluster
        a, b = cluster.start(2)
        cluster.form([a, b])
        cluster.wait_step(3)
        members = change(cluster, a, b)
        up = cluster.wait_up(cluster.form(members))
        assert up.resumed is None
        assert up.step >= max(report.step for report in cluster.reports() if report.generation < up.generation)
    assert run.ledger.voided_steps() <= 1


def test_a_state_that_moves_for_long_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait for it are told meanwhile, usually once a second, that it moves."""
    moved = tmp_path / "moved"
    monkeypatch.setattr(rank_processes, "RANK", ["-m", "tests.integration.talkative_rank", str(moved)])
    with disturbed.run(tmp_path, SCRIPT, *BATCH, "--width", "20000", epochs=2, paces=("--step-s", "0.02")) as run:
        a, b = run.cluster.start(2)
        run.cluster.form([a])
        run.cluster.form([b, a], switch=True)
    assert moved.exists()


def test_when_all_are_killed_the_newest_checkpoint_that_verifies_is_taken(tmp_path: Path) -> None:
    with same_as_alone(tmp_path, SCRIPT, *BATCH, epochs=20, interval_s=0.3) as run:
        cluster = run.cluster
        a, b = cluster.start(2)
        cluster.form([a, b])
        cluster.wait(lambda: len(a.heard(wire.CheckpointWritten)) >= 3, "three checkpoints")
        cluster.kill(a)
        cluster.kill(b)
        newest, older, *_ = store.listing(tmp_path / "checkpoints")
        part = newest.path.with_name(names.part_name(*newest.age, 1, 2))
        os.truncate(part, part.stat().st_size // 2)
        c, d = cluster.start(2)
        up = cluster.wait_up(cluster.form([c, d]))
        assert up.resumed == up.step == older.age.step
        (remark,) = [r for r in c.heard(wire.Remark) if part.name in r.text]
        assert newest.path.name in remark.text


def test_the_ranks_write_a_checkpoint_together_at_the_leaders_interval(tmp_path: Path) -> None:
    with disturbed.run(tmp_path, SCRIPT, *BATCH, epochs=20, paces=("--step-s", "0.02")) as run:
        cluster = run.cluster
        a, b = cluster.start(2)
        cluster.form([a, b])
        a.tell(SetCheckpointInterval("t1", "", 0.1, ""))
        cluster.wait(lambda: len(a.heard(wire.CheckpointWritten)) >= 2, "two checkpoints")
        cluster.pause()
        done = [message for message in a.heard(wire.CheckpointWritten) if not message.asked][-1]
        assert done.error == ""
        assert store.verify(Path(done.path)) == []
        parts = {entry.path.name for entry in names.parts(tmp_path / "checkpoints") if entry.age.step == done.step}
        assert parts == {names.part_name(done.generation, done.step, part, 2) for part in range(2)}
        assert b.heard(wire.CheckpointWritten) == []
        cluster.form([a, b])


def test_with_notice_nothing_is_lost_even_when_all_nodes_go(tmp_path: Path) -> None:
    with same_as_alone(tmp_path, SCRIPT, *BATCH, epochs=20) as run:
        cluster = run.cluster
        a, b = cluster.start(2)
        cluster.form([a, b])
        cluster.wait_step(3)
        step = cluster.pause()
        b.tell(WriteCheckpoint("t1", "", "all nodes go"))
        cluster.wait(lambda: bool(b.heard(wire.CheckpointWritten)), "the checkpoint")
        (done,) = b.heard(wire.CheckpointWritten)
        assert (done.step, done.asked, done.error) == (step, True, "")
        cluster.kill(a)
        cluster.kill(b)
        assert cluster.wait_up(cluster.form(cluster.start())).resumed == step
    assert run.ledger.voided_steps() == 0


def test_micro_batches_from_loader_processes_add_up_to_the_same_step(tmp_path: Path) -> None:
    paces = ("--step-s", "0.05", "--micro-batch-size", "9", "--loaders", "1")
    with same_as_alone(tmp_path, SCRIPT, "--global-batch-size", "50", epochs=6, paces=paces) as run:
        a, b, c = run.cluster.start(3)
        run.cluster.form([a, b, c])
        run.cluster.wait_step(2)
        run.cluster.form([a, b], switch=True)


def test_a_fixed_batch_per_node_grows_with_the_group_and_the_learning_rate_with_it(tmp_path: Path) -> None:
    with disturbed.run(tmp_path, SCRIPT, "--batch-size", "16", epochs=12, paces=("--step-s", "0.05")) as run:
        a, b, c = run.cluster.start(3)
        run.cluster.form([a, b])
        run.cluster.wait_step(8)
        run.cluster.form([a, b, c], switch=True)
    finished = run.finished
    assert finished.metrics["learning_rate"] == pytest.approx(3e-3 * 0.9999 ** (finished.step - 1), rel=1e-9)


def test_when_the_leader_dies_at_the_end_another_one_finishes(tmp_path: Path) -> None:
    with disturbed.run(tmp_path, SCRIPT, *BATCH, epochs=2) as run:
        a, b = run.cluster.start(2)
        run.cluster.form([a, b])
        first = run.cluster.wait_finished()
        run.cluster.lose(a)
        run.cluster.form([b])
    assert (run.finished.step, run.finished.samples) == (first.step, first.samples)
    assert run.results()
    assert_exactly_once(b.heard(wire.Progress), 2)


def test_a_finished_leader_that_is_not_stopped_reports_again(tmp_path: Path) -> None:
    arguments = ("--epochs", "1", *BATCH, "--save", str(tmp_path / "saved"))
    with plane(tmp_path, SCRIPT, *arguments, silent_s=0.5) as cluster:
        (node,) = cluster.start()
        cluster.form([node])
        first = cluster.wait_finished()
        before = len(node.heard(wire.Progress))
        cluster.wait(lambda: node.heard(wire.TrainerFinished)[1:] == [first], "its word, once more")
        cluster.stop()
    assert_exactly_once(node.heard(wire.Progress)[before:], 1)
