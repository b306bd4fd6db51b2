"""What a user's script imports: ``pilot.train.session`` makes an ordinary PyTorch loop elastic."""

from pilot.submission.seldom import DiLoCo, LocalSGD
from pilot.train.node.node_group import node_mesh, replica_mesh
from pilot.train.script import refusal
from pilot.train.session import Session, session

__all__ = ["DiLoCo", "LocalSGD", "Session", "node_mesh", "replica_mesh", "session"]

refusal.show_in_one_line()  # also what settings refuse, which are made before a session
