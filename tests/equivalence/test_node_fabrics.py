"""However nodes and their processes sum, and whatever happens to the nodes, a script trains as it does alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from pilot.checkpoint import dcp as dcp_export
from pilot.checkpoint import store
from pilot.checkpoint.export import export
from tests.equivalence import node_script
from tests.equivalence.topics import nodes
from tests.equivalence.topics.nodes import NodeRow
from tests.integration.plane import Node, Plane, plane, run_alone
from tests.unit.checkpoint import states

EVERY_DAY = {
    ("two processes per node, gloo", 1),
    ("two processes per node, sharded", 2),
    ("gloo between nodes of two processes", 1),
    ("gloo between nodes of two processes, sharded", 1),
}
CASES = [
    pytest.param(row, rails, marks=[] if (row.name, rails) in EVERY_DAY else pytest.mark.long, id=f"{row.name}-{rails}")
    for row in nodes.ROWS
    for rails in (1, 2)
    if rails == 1 or not row.between_nodes
]
"""Each row, with one and two rails between nodes."""
TOLERANCE = 1e-12
SCRIPT = Path(node_script.__file__)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return ran_alone(tmp_path_factory.mktemp("alone"))


def ran_alone(folder: Path) -> dict[str, torch.Tensor]:
    """What the script computes under plain ``python``."""
    run_alone(folder, SCRIPT, "plain", "alone", str(folder))
    kept: dict[str, torch.Tensor] = torch.load(node_script.ran(folder, "alone"))
    return kept


def ran(cluster: Plane, folder: Path) -> list[dict[str, torch.Tensor]]:
    cluster.wait_finished()
    last = [node.name for node in cluster.training]
    cluster.stop()
    return [torch.load(node_script.ran(folder, name)) for name in last]


@contextmanager
def cluster_of(
    row: NodeRow, rails: int, way: str, folder: Path, **options: Any
) -> Iterator[tuple[Plane, list[Node], list[Node]]]:
    """A plane with the workers of two replicas, which are most often nodes."""
    arguments, each = ("sharded" if row.sharded else "plain", way, str(folder)), 2 * row.nodes_per_replica
    options |= {"node_fabric": row.fabric, "between_nodes": row.between_nodes, "rails": rails, "ranks_per_node": 2}
    with plane(folder, SCRIPT, *arguments, nodes_per_replica=row.nodes_per_replica, **options) as cluster:
        workers = cluster.start(2 * each)
        yield cluster, workers[:each], workers[each:]


def continued(folder: Path, checkpoints: Path, kind: str, ranks: int, **options: Any) -> list[dict[str, torch.Tensor]]:
    """The results of one replica, with so many processes on each node, that starts from copies of ``checkpoints``."""
    folder.mkdir()
    shutil.copytree(checkpoints, folder / "checkpoints")
    with plane(folder, SCRIPT, kind, "undisturbed", str(folder), ranks_per_node=ranks, **options) as cluster:
        cluster.form(cluster.start(ranks * options.get("nodes_per_replica", 1)))
        assert cluster.wait_up(1).resumed is not None
        return ran(cluster, folder)


def kill_in_step(cluster: Plane, folder: Path, node: list[Node]) -> None:
    """Kill the workers of a node in the step in which they wait for that."""
    for worker in node:
        cluster.wait(node_script.dies(folder, worker.name).exists, "the step in which a node dies")
    for worker in node:
        cluster.kill(worker)
    cluster.dissolve()


def assert_as_alone(ranks: list[dict[str, torch.Tensor]], alone: dict[str, torch.Tensor]) -> None:
    for kept in ranks:
        assert kept.keys() == alone.keys()
        for name, tensor in kept.items():
            torch.testing.assert_close(tensor, alone[name], rtol=TOLERANCE, atol=TOLERANCE, msg=name)
            assert torch.equal(tensor, ranks[0][name])


@pytest.mark.parametrize(("row", "rails"), CASES)
def test_nodes_come_and_go(row: NodeRow, rails: int, alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with cluster_of(row, rails, "1 -> 2 -> 1", tmp_path) as (cluster, first, second):
        cluster.form(first)
        cluster.form([*first, *second], switch=True)
        cluster.form(first, switch=True)
        ranks = ran(cluster, tmp_path)
    assert_as_alone(ranks, alone)


@pytest.mark.parametrize(("row", "rails"), CASES)
def test_a_node_is_killed(row: NodeRow, rails: int, alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with cluster_of(row, rails, "one of two killed", tmp_path) as (cluster, first, second):
        cluster.form([*first, *second])
        kill_in_step(cluster, tmp_path, second)
        cluster.form(first)
        ranks = ran(cluster, tmp_path)
    assert_as_alone(ranks, alone)


@pytest.mark.long
def test_a_mixed_precision_policy_computes_as_it_does_alone(tmp_path: Path) -> None:
    run_alone(tmp_path, SCRIPT, "mixed", "alone", str(tmp_path))
    expected = torch.load(node_script.ran(tmp_path, "alone"))
    with plane(tmp_path, SCRIPT, "mixed", "undisturbed", str(tmp_path), ranks_per_node=2) as cluster:
        cluster.form(cluster.start(4))
        for kept in ran(cluster, tmp_path):
            for name, tensor in kept.items():
                torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6, msg=name)
                assert tensor.dtype == expected[name].dtype


def test_a_sharded_script_runs_alone(alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    run_alone(tmp_path, SCRIPT, "sharded", "alone", str(tmp_path))
    assert_as_alone([torch.load(node_script.ran(tmp_path, "alone"))], alone)


def test_a_checkpoint_of_shards_loads_on_any_number_of_ranks(alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    arguments = "sharded", "all killed", str(tmp_path)
    with plane(tmp_path, SCRIPT, *arguments, ranks_per_node=2, interval_s=0.001) as cluster:
        nodes = cluster.start(4)
        cluster.form(nodes)
        cluster.wait(lambda: any(tmp_path.glob("dies-*")), "a checkpoint")
    assert_as_alone(continued(tmp_path / "plain", tmp_path / "checkpoints", "plain", 1), alone)
    assert_as_alone(continued(tmp_path / "three", tmp_path / "checkpoints", "sharded", 3), alone)
    options = {"nodes_per_replica": 2, "node_fabric": "gloo", "between_nodes": "gloo"}
    assert_as_alone(continued(tmp_path / "two nodes", tmp_path / "checkpoints", "sharded", 2, **options), alone)
    newest = store.listing(tmp_path / "three" / "checkpoints")[0].path
    assert export(newest, tmp_path / "model.safetensors", "model") > 0
    exported = load_file(tmp_path / "model.safetensors")
    for name, tensor in exported.items():
        torch.testing.assert_close(tensor, alone[name], rtol=TOLERANCE, atol=TOLERANCE)
    assert dcp_export.export(newest, tmp_path / "dcp") > 0
    torch.set_default_dtype(torch.float64)  # as in the script: AdamW counts its steps in it
    try:
        assert_loads(tmp_path / "dcp", store.load(newest).state)
    finally:
        torch.set_default_dtype(torch.float32)


def assert_loads(folder: Path, state: dict[str, Any]) -> None:
    """A plain script loads ``state`` from ``folder`` by ``torch.distributed.checkpoint``."""
    model = node_script.Model()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    models, optims = get_state_dict(model, optimizer)
    found = {"model": models, "optim": optims}
    dcp.load(found, checkpoint_id=folder, no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optim"])
    assert states.difference(dict(model.state_dict()), state["model"]) is None
    assert states.difference(optimizer.state_dict(), state["optimizer"]) is None
