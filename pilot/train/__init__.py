"""What a user's script imports: ``pilot.train.session`` makes an ordinary PyTorch loop elastic."""

from pilot.train.session import Session, session

__all__ = ["Session", "session"]
