"""However the two processes of a node sum, and whatever befalls the nodes, a script trains what it trains alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.equivalence import node_script
from tests.integration.plane import Plane, plane, run_alone

FABRICS = (pytest.param("shared-memory", marks=pytest.mark.long), "gloo")
TOLERANCE = 1e-12
SCRIPT = Path(node_script.__file__)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("alone")
    run_alone(folder, SCRIPT, "plain", "alone", str(folder))
    kept: dict[str, torch.Tensor] = torch.load(node_script.ran(folder, "alone"))
    return kept


def ran(cluster: Plane, folder: Path) -> list[dict[str, torch.Tensor]]:
    cluster.wait_finished()
    last = [node.name for node in cluster.training]
    cluster.stop()
    return [torch.load(node_script.ran(folder, name)) for name in last]


def assert_as_alone(ranks: list[dict[str, torch.Tensor]], alone: dict[str, torch.Tensor]) -> None:
    for kept in ranks:
        assert kept.keys() == alone.keys()
        for name, tensor in kept.items():
            torch.testing.assert_close(tensor, alone[name], rtol=TOLERANCE, atol=TOLERANCE, msg=name)
            assert torch.equal(tensor, ranks[0][name])


@pytest.mark.parametrize("fabric", FABRICS)
def test_nodes_come_and_go(fabric: str, alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    arguments = fabric, "1 -> 2 -> 1", str(tmp_path)
    with plane(
        tmp_path, SCRIPT, *arguments, ranks_per_node=2, node_fabric=fabric.replace("sharded", "gloo")
    ) as cluster:
        nodes = cluster.start(4)
        cluster.form(nodes[:2])
        cluster.form(nodes, switch=True)
        cluster.form(nodes[:2], switch=True)
        ranks = ran(cluster, tmp_path)
    assert_as_alone(ranks, alone)


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_node_is_killed(fabric: str, alone: dict[str, torch.Tensor], tmp_path: Path) -> None:
    arguments = fabric, "one of two killed", str(tmp_path)
    with plane(
        tmp_path, SCRIPT, *arguments, ranks_per_node=2, node_fabric=fabric.replace("sharded", "gloo")
    ) as cluster:
        nodes = cluster.start(4)
        cluster.form(nodes)
        for node in nodes[2:]:
            cluster.wait(node_script.dies(tmp_path, node.name).exists, "the step in which a node dies")
        for node in nodes[2:]:
            cluster.kill(node)
        cluster.dissolve()
        cluster.form(nodes[:2])
        ranks = ran(cluster, tmp_path)
    assert_as_alone(ranks, alone)
