"""Nodes that train seldom synchronised, with real processes, MPI and SIGKILL: after each inner step they have the
values of the reference, and each sample counts once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pilot.core.commands import WriteCheckpoint
from pilot.protocol import wire
from tests.integration.plane import Node, Plane, plane
from tests.seldom import log, script
from tests.seldom.case import Case, Values
from tests.seldom.log import Hold
from tests.seldom.replay import Round, assert_as_reference, assert_exactly_once, of_round, rounds

SLOW_S = 0.02
"""More than an inner step takes."""
PACED_S = 0.05
"""So long that a training of some epochs is not over before a group can change."""


class Run:
    """A case on a plane."""

    def __init__(self, folder: Path, cluster: Plane) -> None:
        self.folder, self.cluster = folder, cluster

    def wait_held(self, hold: Hold) -> int:
        """Wait until a node holds, and return in which round."""
        self.cluster.wait(log.reached(self.folder, hold).exists, str(hold))
        return int(log.reached(self.folder, hold).read_text())

    def release(self, hold: Hold) -> None:
        """Let a node go on."""
        log.released(self.folder, hold).touch()

    def held(self, node: Node) -> int:
        """Return the round that a node has held last."""
        return max(int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"held-{node.name}-*"))

    def wait_round(self, node: Node, number: int) -> None:
        """Wait until a node has held a round."""
        self.cluster.wait(log.held(self.folder, node.name, number).exists, f"round {number} held on {node.name}")


@contextmanager
def run(
    folder: Path, case: Case, *holds: Hold, slow_s: dict[str, float] | None = None, **options: Any
) -> Iterator[Run]:
    """A run that finishes after the block. ``slow_s``: how much longer nodes take for an inner step."""
    arguments = str(folder), case.text(), json.dumps([asdict(one) for one in holds]), json.dumps(slow_s or {})
    with plane(folder, Path(script.__file__), *arguments, **options) as cluster:
        yield Run(folder, cluster)
        cluster.wait_finished()
        cluster.stop()


def counted(made: Sequence[Round], name: str) -> list[int]:
    """Return the inner steps of a node that count, by round."""
    return [one.counted.get(name, 0) for one in made]


def generations(made: Sequence[Round], name: str) -> set[int]:
    """Return those in which inner steps of a node count."""
    return {one.rows[0].generation for one in made if one.counted.get(name)}


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_some_nodes(tmp_path: Path, nodes: int) -> None:
    case = Case()
    with run(tmp_path, case) as its:
        its.cluster.form(its.cluster.start(nodes))
    made = assert_as_reference(case, tmp_path)
    assert len(made) >= case.epochs * case.samples // (case.batch * nodes * case.every)
    assert all(sum(counted(made, f"n{number}")) for number in range(nodes))


CASES = {
    "local SGD": Case(outer_lr=1.0, momentum=0.0, nesterov=False),
    "without Nesterov": Case(nesterov=False),
    "every step": Case(every=1, samples=60),
    "does not divide": Case(every=7, samples=238, batch=6),
    "batch norm": Case(norm=True),
    "an average": Case(average=True),
    "a scheduler": Case(scheduled=True),
    "all of them": Case(norm=True, average=True, scheduled=True, samples=239, every=3),
}


@pytest.mark.parametrize("name", CASES)
def test_other_cases(tmp_path: Path, name: str) -> None:
    with run(tmp_path, CASES[name]) as its:
        its.cluster.form(its.cluster.start(2))
    assert_as_reference(CASES[name], tmp_path)


def test_nodes_of_two_processes(tmp_path: Path) -> None:
    case = Case(batch=6, scheduled=True, average=True)
    with run(tmp_path, case, ranks_per_node=2) as its:
        its.cluster.form(its.cluster.start(4))
    assert_as_reference(case, tmp_path, processes=2)


def test_a_node_of_two_processes_dies(tmp_path: Path) -> None:
    case = Case(batch=6)
    hold = Hold("n2", 2, step=2)
    with run(tmp_path, case, hold, ranks_per_node=2) as its:
        nodes = its.cluster.start(4)
        its.cluster.form(nodes)
        number = its.wait_held(hold)
        for node in nodes[2:]:
            its.cluster.kill(node)
        its.cluster.dissolve()
        its.cluster.form(nodes[:2])
    broken = of_round(assert_as_reference(case, tmp_path, processes=2), number)
    assert broken.counted["n2"] == 0 < broken.counted["n0"]


NARROW = {"bfloat16": 2**-8, "int8": 1 / 254}
"""The largest error of a value that is rounded once, relative to the largest value."""


@pytest.mark.parametrize("wire", NARROW)
def test_a_narrow_wire_rounds_changes_twice_and_no_buffers(tmp_path: Path, wire: str) -> None:
    case = Case(wire=wire, dtype="float32", outer_lr=1.0, momentum=0.0, nesterov=False, norm=True, epochs=1)
    with run(tmp_path, case) as its:
        its.cluster.form(its.cluster.start(2))
    made = rounds(tmp_path)
    assert_exactly_once(case, made)
    errors = []
    for one, following in pairwise(made):
        before, after = (next(its.in_sum()).before for its in (one, following))
        parts = changes(one, before)
        mean = {name: sum(part[name] for part in parts) for name in before}
        far = {name: after[name].double() - before[name].double() - mean[name] for name in before}
        for name in (name for name in before if "running" in name):
            assert far[name].abs().max() < 1e-6 * after[name].abs().max()
        trained = [name for name in before if "running" not in name]
        largest = sum(max(part[name].abs().max() for name in trained) for part in parts)
        errors.append(max(far[name].abs().max() for name in trained) / largest)
    assert 0.1 * NARROW[wire] < max(errors) < 2.1 * NARROW[wire]


def changes(one: Round, before: Values) -> list[Values]:
    """Return by how much each node has changed each value in a round, by its part of the samples."""
    samples = {name: sum(len(step.samples) for step in its) for name, its in one.steps.items()}
    total = sum(samples.values())
    return [
        {key: (its[-1].after[key].double() - before[key].double()) * samples[name] / total for key in before}
        for name, its in one.steps.items()
    ]


def test_a_slow_node_does_fewer_inner_steps(tmp_path: Path) -> None:
    case = Case(scheduled=True, every=6, epochs=1)
    with run(tmp_path, case, slow_s={"n1": SLOW_S}) as its:
        its.cluster.form(its.cluster.start(3))
    made = assert_as_reference(case, tmp_path)
    assert sum(counted(made, "n1")) < sum(counted(made, "n0"))
    assert max(counted(made, "n0")) == case.every


BOTH = Case(scheduled=True, norm=True)
LONG = replace(BOTH, epochs=4)


@pytest.mark.parametrize(("at", "name"), [("step", "n0"), ("before", "n1"), ("after", "n2")])
def test_a_node_dies_before_a_round_is_held(tmp_path: Path, at: str, name: str) -> None:
    """In an inner step, before it gathers, and before it sums: its work of the round is lost, that of others is not."""
    hold = Hold(name, 2, at, step=2 if at == "step" else 0)
    with run(tmp_path, BOTH, hold) as its:
        nodes = its.cluster.start(3)
        its.cluster.form(nodes)
        number = its.wait_held(hold)
        its.cluster.lose(next(node for node in nodes if node.name == name))
        its.cluster.form([node for node in nodes if node.name != name])
    broken = of_round(assert_as_reference(BOTH, tmp_path), number)
    assert broken.counted[name] == 0 < len(broken.steps[name])
    assert all(broken.counted[node.name] for node in nodes if node.name != name)


IN_SUM = Hold("n1", 2, "in sum")


def held_by_others(its: Run) -> tuple[int, list[Node]]:
    """Wait until two of three nodes have held a round whose sum the second one has yet to read; return its number."""
    a, _, c = nodes = its.cluster.start(3)
    its.cluster.form(nodes)
    number = its.wait_held(IN_SUM)
    its.wait_round(a, number)
    its.wait_round(c, number)
    return number, nodes


def test_the_work_of_a_node_counts_that_dies_when_another_has_held_the_round(tmp_path: Path) -> None:
    with run(tmp_path, BOTH, IN_SUM) as its:
        number, (a, b, c) = held_by_others(its)
        its.cluster.lose(b)
        its.cluster.form([a, c])
    made = assert_as_reference(BOTH, tmp_path)
    assert of_round(made, number).counted["n1"] > 0
    assert not any(one.counted.get("n1") for one in made if one.number > number)


def test_a_node_adopts_the_round_that_another_has_held(tmp_path: Path) -> None:
    """The group breaks when two have read the sum; the third one goes on with the next round from their state."""
    with run(tmp_path, BOTH, IN_SUM) as its:
        number, (a, b, c) = held_by_others(its)
        its.cluster.dissolve()
        its.cluster.form([b, a, c], wait=False)
        its.release(IN_SUM)
    made = assert_as_reference(BOTH, tmp_path)
    assert of_round(made, number).counted["n1"] > 0
    assert any(one.counted.get("n1") for one in made if one.number > number)


@pytest.mark.parametrize("inner", ["fresh", "copy"])
def test_a_node_joins_at_a_rounds_end(tmp_path: Path, inner: str) -> None:
    case = replace(LONG, inner=inner)
    with run(tmp_path, case, slow_s={"n0": PACED_S}) as its:
        (a,) = its.cluster.start()
        its.cluster.form([a])
        its.wait_round(a, 1)
        (b,) = its.cluster.start()
        its.cluster.form([a, b], switch=True)
        script.gate(tmp_path).touch()
    made = assert_as_reference(case, tmp_path, copies={"n1": "n0"} if inner == "copy" else None)
    assert generations(made, "n1") == {2}


def test_a_node_leaves_and_returns(tmp_path: Path) -> None:
    with run(tmp_path, LONG, slow_s={"n0": PACED_S, "n2": PACED_S}) as its:
        a, b, c = its.cluster.start(3)
        its.cluster.form([a, b, c])
        its.wait_round(a, 1)
        its.cluster.form([a, c], switch=True)
        its.wait_round(a, its.held(a) + 1)
        its.cluster.form([a, b, c], switch=True)
        script.gate(tmp_path).touch()
    made = assert_as_reference(LONG, tmp_path)
    assert generations(made, "n1") == {1, 3}
    assert generations(made, "n0") == {1, 2, 3}


def test_all_die_and_others_resume(tmp_path: Path) -> None:
    hold = Hold("n0", 5, step=1)
    with run(tmp_path, BOTH, hold) as its:
        a, b = its.cluster.start(2)
        its.cluster.form([a, b])
        its.wait_held(hold)
        a.tell(WriteCheckpoint("t1", "", ""))
        its.release(hold)
        its.cluster.wait(lambda: bool(a.heard(wire.CheckpointWritten)), "a checkpoint")
        step = a.heard(wire.CheckpointWritten)[0].step
        its.cluster.kill(a)
        its.cluster.lose(b)
        c, d = its.cluster.start(2)
        assert its.cluster.wait_up(its.cluster.form([c, d])).resumed == step
    made = assert_as_reference(BOTH, tmp_path, copies={"n2": "n0"})
    assert sum(counted(made, "n0")) > 0 < sum(counted(made, "n2"))
