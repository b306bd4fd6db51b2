"""The data plane with real workers, real MPI over TCP and real SIGKILLs: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pilot.checkpoint import names, store
from pilot.comm import mpich, world
from pilot.core.commands import SetCheckpointInterval, WriteCheckpoint
from pilot.core.events import LedgerRange
from pilot.history.ledger import Ledger
from pilot.protocol import wire
from tests.integration import rank_processes
from tests.integration.plane import Plane, plane, run_alone
from tests.integration.script import SAMPLES

SCRIPT = Path(__file__).with_name("script.py")
BATCH = ("--global-batch-size", "32")
STEPS_PER_EPOCH = -(-SAMPLES // 32)


def reference(folder: Path, *arguments: str) -> dict[str, Any]:
    """What the same script computes alone, undisturbed, in one plain process."""
    path = folder / "alone.pt"
    run_alone(folder, SCRIPT, *arguments, "--save", str(path))
    result: dict[str, Any] = torch.load(path)
    return result


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, tensor in one["model"].items():
        torch.testing.assert_close(tensor, other["model"][name], rtol=1e-12, atol=1e-15)


def assert_exactly_once(reports: Sequence[wire.Progress], epochs: int) -> Ledger:
    ledger = Ledger()
    for report in reports:
        ledger.add(LedgerRange(*row) for row in report.ledger)
    verdict = ledger.exactly_once(dict.fromkeys(range(epochs), SAMPLES))
    assert verdict.proved, verdict.text
    return ledger


def steps_of(cluster: Plane, *, before: int) -> list[int]:
    return [report.step for report in cluster.reports() if report.generation < before]


def finish(cluster: Plane, gate: Path) -> wire.TrainerFinished:
    gate.touch()
    finished = cluster.wait_finished()
    cluster.stop()
    return finished


@pytest.mark.slow
def test_rescales_a_pause_and_two_kills_leave_the_parameters_as_they_would_have_been(tmp_path: Path) -> None:
    epochs, gate, saved = 60, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), *BATCH)
    with plane(tmp_path, SCRIPT, *arguments, "--save", str(saved), "--step-s", "0.05", "--gate", str(gate)) as cluster:
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
        cluster.kill(b)
        cluster.dissolve()
        rescale([a, c, d], switch=False)
        rescale([a, c])
        go_on()
        paused = cluster.pause()
        up = cluster.wait_up(cluster.form([c, d, a]))
        assert up.step == paused
        steps.append(up.step)
        go_on()
        cluster.kill(c)
        cluster.dissolve()
        rescale([d, a], switch=False)
        rescale([d])
        finished = finish(cluster, gate)
    assert finished.step == epochs * STEPS_PER_EPOCH
    assert finished.samples == epochs * SAMPLES
    assert_exactly_once(cluster.reports(), epochs)
    elastic = torch.load(saved)
    assert elastic["state"] == {"passes": epochs}
    assert_same(elastic, reference(tmp_path, *arguments))


def test_gradients_may_travel_as_16_bits(tmp_path: Path) -> None:
    saved, plain = tmp_path / "elastic.pt", ("--epochs", "4", *BATCH, "--dtype", "float32")
    with plane(tmp_path, SCRIPT, *plain, "--wire-dtype", "bfloat16", "--save", str(saved)) as cluster:
        cluster.form(cluster.start(3))
        cluster.wait_finished()
        cluster.stop()
    exact = reference(tmp_path, *plain)["model"]
    off = [(tensor - exact[name]).abs().max().item() for name, tensor in torch.load(saved)["model"].items()]
    assert 1e-6 < max(off) < 1e-2  # more than float32 rounding, far less than what 64 steps of 1e-3 move a parameter


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_narrow_sum_rounds_twice_and_gives_all_ranks_the_same_bits(ranks: int) -> None:
    command = [sys.executable, "-m", "tests.integration.narrow_ranks"]
    done = world.run(command, ranks, mpich.environment(os.environ, interface="lo", provider="tcp"), limit_s=60)
    assert [rank.returncode for rank in done] == [0] * ranks
    errors = json.loads(done[0].stdout)
    assert 0 < errors["float16"] < 2 * 2**-11
    assert 0 < errors["bfloat16"] < 2 * 2**-8


def test_a_node_killed_in_mid_step_costs_no_step(tmp_path: Path) -> None:
    epochs, gate, saved = 20, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), *BATCH)
    with plane(tmp_path, SCRIPT, *arguments, "--save", str(saved), "--step-s", "0.05", "--gate", str(gate)) as cluster:
        a, b, c = cluster.start(3)
        cluster.wait_up(cluster.form([a, b, c]))
        cluster.wait_step(3)
        b.signal(signal.SIGSTOP)  # from now on the others wait for its gradients
        cluster.kill(b)
        cluster.dissolve()
        up = cluster.wait_up(cluster.form([a, c]))
        assert up.resumed is None
        assert up.step >= max(steps_of(cluster, before=up.generation))
        finish(cluster, gate)
    ledger = assert_exactly_once(cluster.reports(), epochs)
    assert ledger.voided_steps() <= 1
    assert_same(torch.load(saved), reference(tmp_path, *arguments))


def test_a_rank_that_lags_a_step_behind_takes_the_state_of_the_others(tmp_path: Path) -> None:
    epochs, gate, saved = 20, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), *BATCH)
    with plane(tmp_path, SCRIPT, *arguments, "--save", str(saved), "--step-s", "0.05", "--gate", str(gate)) as cluster:
        a, b = cluster.start(2)
        cluster.form([a, b])
        cluster.wait_step(3)
        a.signal(signal.SIGSTOP)
        cluster.dissolve()
        a.signal(signal.SIGCONT)
        cluster.form([a, b])
        finish(cluster, gate)
    assert_exactly_once(cluster.reports(), epochs)
    assert_same(torch.load(saved), reference(tmp_path, *arguments))


def test_a_state_that_moves_for_long_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait for it are told meanwhile, usually once a second, that it moves."""
    moved = tmp_path / "moved"
    monkeypatch.setattr(rank_processes, "RANK", ["-m", "tests.integration.talkative_rank", str(moved)])
    gate = tmp_path / "gate"
    arguments = (*BATCH, "--width", "20000", "--step-s", "0.02", "--gate", str(gate))
    with plane(tmp_path, SCRIPT, *arguments, "--save", str(tmp_path / "elastic.pt")) as cluster:
        a, b = cluster.start(2)
        cluster.form([a])
        cluster.form([b, a], switch=True)
        finish(cluster, gate)
    assert moved.exists()
    assert_exactly_once(cluster.reports(), epochs=2)


def test_a_lone_survivor_parks_with_its_state_until_a_node_comes(tmp_path: Path) -> None:
    epochs, gate, saved = 20, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), *BATCH)
    with plane(tmp_path, SCRIPT, *arguments, "--save", str(saved), "--step-s", "0.05", "--gate", str(gate)) as cluster:
        a, b = cluster.start(2)
        cluster.form([a, b])
        cluster.wait_step(3)
        a.rank_process(cluster.generation).kill()  # the leader's own rank process, not its worker
        cluster.kill(b)
        cluster.dissolve()
        (c,) = cluster.start()
        up = cluster.wait_up(cluster.form([c, a]))  # the newcomer leads
        assert up.resumed is None
        assert up.step >= max(steps_of(cluster, before=up.generation))
        finish(cluster, gate)
    assert_exactly_once(cluster.reports(), epochs)
    assert_same(torch.load(saved), reference(tmp_path, *arguments))


def test_when_all_are_killed_the_newest_checkpoint_that_verifies_is_taken(tmp_path: Path) -> None:
    epochs, gate, saved = 20, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), *BATCH)
    pace = ("--save", str(saved), "--step-s", "0.05", "--gate", str(gate))
    with plane(tmp_path, SCRIPT, *arguments, *pace, interval_s=0.3) as cluster:
        a, b = cluster.start(2)
        cluster.form([a, b])
        cluster.wait(lambda: len(a.heard(wire.CheckpointWritten)) >= 3, "three checkpoints")
        cluster.kill(a)
        cluster.kill(b)
        newest, older, *_ = store.listing(tmp_path / "checkpoints")
        part = newest.path.with_name(names.part_name(newest.age.generation, newest.age.step, 1, 2))
        os.truncate(part, part.stat().st_size // 2)
        c, d = cluster.start(2)
        up = cluster.wait_up(cluster.form([c, d]))
        assert up.resumed == up.step == older.age.step
        (remark,) = [r for r in c.heard(wire.Remark) if part.name in r.text]
        assert newest.path.name in remark.text
        finish(cluster, gate)
    assert_exactly_once(cluster.reports(), epochs)
    assert_same(torch.load(saved), reference(tmp_path, *arguments))


def test_the_ranks_write_a_checkpoint_together_as_often_as_the_leader_is_told(tmp_path: Path) -> None:
    gate, saved = tmp_path / "gate", tmp_path / "elastic.pt"
    pace = ("--epochs", "20", *BATCH, "--save", str(saved), "--step-s", "0.02", "--gate", str(gate))
    with plane(tmp_path, SCRIPT, *pace) as cluster:
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
        finish(cluster, gate)


def test_with_notice_nothing_is_lost_even_when_all_nodes_go(tmp_path: Path) -> None:
    epochs, gate, saved = 20, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), *BATCH)
    with plane(tmp_path, SCRIPT, *arguments, "--save", str(saved), "--step-s", "0.05", "--gate", str(gate)) as cluster:
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
        (c,) = cluster.start()
        up = cluster.wait_up(cluster.form([c]))
        assert up.resumed == step
        finish(cluster, gate)
    ledger = assert_exactly_once(cluster.reports(), epochs)
    assert ledger.voided_steps() == 0
    assert_same(torch.load(saved), reference(tmp_path, *arguments))


def test_micro_batches_from_loader_processes_add_up_to_the_same_step(tmp_path: Path) -> None:
    epochs, gate, saved = 6, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), "--global-batch-size", "50")
    pace = ("--save", str(saved), "--step-s", "0.05", "--gate", str(gate), "--micro-batch-size", "9")
    with plane(tmp_path, SCRIPT, *arguments, *pace, "--loaders", "1") as cluster:
        a, b, c = cluster.start(3)
        cluster.form([a, b, c])
        cluster.wait_step(2)
        cluster.form([a, b], switch=True)
        finish(cluster, gate)
    assert_exactly_once(cluster.reports(), epochs)
    assert_same(torch.load(saved), reference(tmp_path, *arguments))


def test_a_fixed_batch_per_node_grows_with_the_group_and_the_learning_rate_with_it(tmp_path: Path) -> None:
    epochs, gate, saved = 12, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), "--batch-size", "16")
    with plane(tmp_path, SCRIPT, *arguments, "--save", str(saved), "--step-s", "0.05", "--gate", str(gate)) as cluster:
        a, b, c = cluster.start(3)
        cluster.form([a, b])
        cluster.wait_step(8)
        cluster.form([a, b, c], switch=True)
        finished = finish(cluster, gate)
    assert_exactly_once(cluster.reports(), epochs)
    assert finished.metrics["learning_rate"] == pytest.approx(3e-3 * 0.9999 ** (finished.step - 1), rel=1e-9)


def test_when_the_leader_dies_at_the_end_another_one_finishes(tmp_path: Path) -> None:
    saved = tmp_path / "elastic.pt"
    with plane(tmp_path, SCRIPT, "--epochs", "2", *BATCH, "--save", str(saved)) as cluster:
        a, b = cluster.start(2)
        cluster.form([a, b])
        first = cluster.wait_finished()
        cluster.kill(a)
        cluster.dissolve()
        cluster.form([b])
        second = cluster.wait_finished()
        assert (second.step, second.samples) == (first.step, first.samples)
        cluster.stop()
    assert saved.exists()
    assert_exactly_once(b.heard(wire.Progress), 2)


def test_who_is_not_stopped_at_the_end_says_again_that_it_has_finished(tmp_path: Path) -> None:
    arguments = ("--epochs", "1", *BATCH, "--save", str(tmp_path / "elastic.pt"))
    with plane(tmp_path, SCRIPT, *arguments, silent_s=0.5) as cluster:
        (node,) = cluster.start()
        cluster.form([node])
        first = cluster.wait_finished()
        before = len(node.heard(wire.Progress))
        cluster.wait(lambda: node.heard(wire.TrainerFinished)[1:] == [first], "its word, once more")
        cluster.stop()
    assert_exactly_once(node.heard(wire.Progress)[before:], 1)
