"""The type of a pilot's node: by the queue of its job, or made from its hardware."""

from __future__ import annotations

from pilot.core.pool.node_type import NodeType
from pilot.protocol import wire
from pilot.site.site import Site


class NodeTypes:
    """The types of nodes of one site."""

    def __init__(self, site: Site) -> None:
        self._sites = {"": site, **{name: site.of_type(name) for name in site.node_types}}

    def of(self, hello: wire.Hello, queue: str) -> NodeType:
        """The type of the node of ``hello``; ``queue``: the type for which its job was submitted, "" if for none."""
        name = queue if queue in self._sites else ""
        site = self._sites[name]
        if not name and (hello.accelerators or hello.cores):
            made = f"{hello.accelerators}x {hello.accelerator}" if hello.accelerators else f"cpu-{hello.cores}"
            name = made.replace("/", "-")
        has = hello.accelerator, hello.accelerators, hello.memory_gb or site.memory_gb, hello.cores
        return NodeType(name, *has, site.charge_factor)
