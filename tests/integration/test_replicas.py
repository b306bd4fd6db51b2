"""Replicas of two nodes with two processes each, with real kills: two of them train as one process does alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.equivalence import node_script
from tests.equivalence.node_script import EPOCHS, SAMPLES
from tests.equivalence.test_node_fabrics import assert_as_alone, cluster_of, continued, kill_in_step, ran, ran_alone
from tests.equivalence.topics.nodes import REPLICAS
from tests.integration.disturbed import assert_exactly_once
from tests.integration.plane import Node, Plane


def lose_node(cluster: Plane, folder: Path, replica: list[Node]) -> None:
    """Kill the second node of ``replica`` in a step; the processes of the first one end by themselves."""
    kill_in_step(cluster, folder, replica[2:])
    cluster.wait_raised(replica[:2])


def test_whatever_happens_to_replicas_they_compute_what_one_process_does(tmp_path: Path) -> None:
    """A node is killed, and its replica replaced; the other one leaves and comes back; all are killed, and resume."""
    checkpoints, kept = tmp_path / "checkpoints", tmp_path / "kept"
    with cluster_of(REPLICAS, 1, "replicas", tmp_path, interval_s=0.001) as (cluster, first, broken):
        cluster.form([*first, *broken])
        lose_node(cluster, tmp_path, broken)
        assert cluster.wait_up(cluster.form(first)).step == 2
        new = cluster.start(len(broken))
        for step, members in ((4, [*first, *new]), (6, new), (7, [*new, *first])):
            cluster.wait(node_script.waits(tmp_path, cluster.generation).exists, "the step before the switch")
            assert cluster.wait_up(cluster.form(members, switch=True)).step == step
        cluster.wait(node_script.dies(tmp_path, first[0].name).exists, "a checkpoint of both replicas")
        for node in (*new, *first):
            cluster.kill(node)
        shutil.copytree(checkpoints, kept)
        resumed = cluster.wait_up(cluster.form(cluster.start(len(cluster.training)))).resumed
        assert resumed is not None
        assert resumed >= 7
        ranks = ran(cluster, tmp_path)
    (tmp_path / "alone").mkdir()
    alone = ran_alone(tmp_path / "alone")
    assert_as_alone(ranks, alone)
    assert_exactly_once(cluster.reports(), EPOCHS, SAMPLES)
    assert_as_alone(continued(tmp_path / "plain", kept, "plain", 1), alone)
    assert_as_alone(continued(tmp_path / "one node", kept, "sharded", 3), alone)
