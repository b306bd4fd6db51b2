"""What a user's script imports: ``pilot.train.session`` makes an ordinary PyTorch loop elastic."""

from pilot.train.make_session import session
from pilot.train.node.node_group import node_mesh
from pilot.train.session import Session

__all__ = ["Session", "node_mesh", "session"]
