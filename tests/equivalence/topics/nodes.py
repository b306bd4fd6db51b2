"""How gradients are summed: among the processes of a node, and between nodes."""

from __future__ import annotations

from dataclasses import dataclass

from tests.equivalence.recipe import Recipe
from tests.equivalence.rows import Ran, Row, Topic


@dataclass(frozen=True, kw_only=True)
class NodeRow(Row):
    """A row for nodes of two processes: :mod:`tests.equivalence.test_node_fabrics` runs it, or for replicas of several
    nodes :mod:`tests.integration.test_replicas`, with the script of :mod:`tests.equivalence.node_script`.

    Parameters
    ----------
    fabric : how they sum
    sharded : the model is sharded over them
    nodes_per_replica : over so many nodes
    """

    fabric: str
    sharded: bool = False
    nodes_per_replica: int = 1
    real: bool = True

    def script(self) -> Ran | None:
        """See the class."""
        raise NotImplementedError


ROWS = [
    NodeRow(name="two processes per node, shared memory", fabric="shared-memory"),
    NodeRow(name="two processes per node, gloo", fabric="gloo"),
    NodeRow(name="two processes per node, sharded", fabric="gloo", sharded=True),
    NodeRow(name="gloo between nodes of two processes", fabric="gloo", between_nodes="gloo"),
    NodeRow(name="gloo between nodes of two processes, sharded", fabric="gloo", between_nodes="gloo", sharded=True),
]
REPLICAS = NodeRow(
    name="replicas of two nodes of two processes, sharded",
    fabric="gloo",
    between_nodes="gloo",
    sharded=True,
    nodes_per_replica=2,
)
GLOO = Recipe(name="gloo between nodes", between_nodes="gloo", real=True, core=True)
TOPIC = Topic(75, "Sums in nodes and between them", [*ROWS, REPLICAS, GLOO])
