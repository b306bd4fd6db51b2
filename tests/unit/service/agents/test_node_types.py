"""The type of a pilot's node."""

from __future__ import annotations

import pytest

from pilot.core.pool.node_type import NodeType
from pilot.protocol import wire
from pilot.service.agents.node_types import NodeTypes
from pilot.site.site import Site

TYPES = {
    "a100": {"partition": "a", "charge_factor": 2.0},
    "cpu": {"partition": "c", "memory_gb": 256},
}
SITE = Site(name="s", scheduler="slurm", charge_factor=0.5)


def hello(model: str = "", count: int = 0, memory_gb: float = 0.0, cores: int = 64) -> wire.Hello:
    told = {"accelerator": model, "accelerators": count, "memory_gb": memory_gb, "cores": cores}
    return wire.Hello("p", "secret", "h", "127.0.0.1", 1, **told)


@pytest.mark.parametrize(
    ("model", "queue", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100", "a100"),
        ("AMD/MI250X", "", "4x AMD-MI250X"),
        ("AMD/MI250X", "gone", "4x AMD-MI250X"),
    ],
)
def test_the_jobs_queue_decides_then_the_hardware(model: str, queue: str, name: str) -> None:
    assert NodeTypes(SITE.replace(node_types=TYPES)).of(hello(model, 4), queue).name == name


def test_a_type_has_what_the_pilot_reports_and_the_charge_of_its_queue() -> None:
    types = NodeTypes(SITE.replace(node_types=TYPES))
    assert types.of(hello("X", 4, 42.9), "a100") == NodeType("a100", "X", 4, 42.9, 64, 2.0)
    assert types.of(hello(), "cpu") == NodeType("cpu", "", 0, 256, 64, 0.5)


def test_nodes_of_a_site_without_types_are_named_by_their_hardware() -> None:
    types = NodeTypes(SITE)
    assert types.of(hello(cores=64), "").name == "cpu-64"
    assert types.of(hello(cores=0), "").name == ""
