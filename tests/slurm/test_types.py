"""Pilots of two types of nodes, each in a partition of its own."""

from __future__ import annotations

import os
import signal

from tests.slurm.lab import Lab
from tests.slurm.pools import EPOCHS, SITE, SlurmPool

TYPES = {"cancelled": {"partition": "preempt", "max_jobs": 1}, "requeued": {"partition": "requeue", "requeue": True}}


def partitions(lab: Lab) -> list[str]:
    """The partitions of the jobs that run or wait."""
    return sorted(lab.run("squeue", "-h", "-o", "%P").split())


def test_each_type_is_kept_in_its_partition_through_a_crash_and_none_is_left(lab: Lab, pool: SlurmPool) -> None:
    site = pool.folder / "lab.py"
    site.write_text(SITE.format(changes=f"node_types={TYPES!r}"))
    pool.pilot("up", "--site", site, "--pilots", "cancelled:2", "--pilots", "requeued:2")
    pool.until_pilots(3)
    assert partitions(lab) == ["preempt", "requeue", "requeue"]
    assert [keeper.running for keeper in pool.status().keepers] == [1, 2]
    assert "the site allows 1 jobs per user" in pool.pilot("status").stdout
    assert sorted(node.type for node in pool.status().pool) == ["cancelled", "requeued", "requeued"]
    name = pool.submit_elastic(3, EPOCHS)
    pool.trains(name, 3)

    coordinator = pool.coordinator()
    assert coordinator is not None
    os.kill(coordinator, signal.SIGKILL)
    pool.back_from(coordinator)
    pool.until("all are known again", lambda s: [keeper.running for keeper in s.keepers] == [1, 2])
    pool.trains(name, 3)
    pool.pilot("scale", "requeued:1")
    pool.until_pilots(2)
    pool.until("one is left in each partition", lambda _: partitions(lab) == ["preempt", "requeue"])
    assert [keeper.wanted_nodes for keeper in pool.status().keepers] == [2, 1]
    pool.pilot("down")
    assert partitions(lab) == []
