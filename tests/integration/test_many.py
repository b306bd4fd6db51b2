"""Many parameters, optimizers and values: more than fit in a packet between a worker and its rank process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.plane import plane

SCRIPT = Path(__file__).with_name("many.py")


@pytest.mark.parametrize("arguments", [("1", "3000"), ("100", "1", "each")], ids=["values", "optimizers"])
def test_many_are_no_hindrance(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with plane(tmp_path, SCRIPT, *arguments) as cluster:
        nodes = cluster.start(2)
        cluster.form(nodes)
        cluster.wait_finished()
        cluster.stop()
        assert [node.log.read_text() for node in nodes] == ["True\nTrue\n"] * 2


def test_ranks_with_many_parameters_that_differ_say_in_what(tmp_path: Path) -> None:
    with plane(tmp_path, SCRIPT, "1500", "1", "differ") as cluster:
        nodes = cluster.start(2)
        cluster.form(nodes, wait=False)
        with pytest.raises(AssertionError, match="ended with status 1"):
            cluster.wait_finished()
        for node in nodes:
            node.process.join(60)
            assert "the ranks of this trainer differ: the seed is " in node.log.read_text()
