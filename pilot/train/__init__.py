"""What a user's script imports: ``pilot.train.session`` makes an ordinary PyTorch loop elastic."""

from pilot.submission.seldom import DiLoCo, LocalSGD
from pilot.train.node.node_group import node_mesh
from pilot.train.session import Session, session

__all__ = ["DiLoCo", "LocalSGD", "Session", "node_mesh", "session"]
