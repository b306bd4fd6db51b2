"""Names of nodes. A node is named after its host and its pilot: ``nid0012.pilot-1000-fu6bbncn3cnmni6l``. People see its
short name, ``nid0012.fu6b``: the host without its domain, and the beginning of what makes the pilot's name unique.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pilot.core.errors import UserError
from pilot.core.ids import NodeId

_NODE = re.compile(r"(?<![\w/.-])([A-Za-z0-9][\w-]*)(?:\.[\w-]+)*?\.pilot-\d+-([a-z2-7]{4})[a-z2-7]{12}(?![\w-])")


def node_of(host: str, pilot: str) -> NodeId:
    """The full name of the node of ``pilot`` on ``host``."""
    return NodeId(f"{host}.{pilot}")


def shortened(text: str) -> str:
    """``text`` with the short names of the nodes that it mentions."""
    return _NODE.sub(r"\1.\2", text)


def find_node(nodes: Iterable[NodeId], name: str) -> NodeId:
    """The node that ``name`` means: its full name, its short one, or that of its host if no other node is on it.

    Raises
    ------
    UserError
        No node has that name, or several have.
    """
    of_host = {node: shortened(node).partition(".")[0] for node in nodes}
    found = [node for node in of_host if node == name] or [
        node for node, host in of_host.items() if name in (shortened(node), host)
    ]
    if not found:
        raise UserError(f"no node named {name!r} in the pool; 'pilot nodes' lists them")
    if len(found) > 1:
        several = ", ".join(found if len({*map(shortened, found)}) < len(found) else map(shortened, found))
        raise UserError(f"{name!r} may be any of {several}; give one of these names")
    return found[0]
