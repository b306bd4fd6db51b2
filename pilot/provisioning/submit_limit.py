"""How many of our jobs the scheduler accepts, learned from what it refuses: limits of users, accounts and queues have
other words in each scheduler, and others' jobs may count as well. No side effects."""

from __future__ import annotations

from dataclasses import dataclass, field

from pilot.provisioning.retry import Retry


@dataclass(slots=True)
class SubmitLimit:
    """The number of our jobs with which one more was refused, in the scheduler's words. None: all were accepted."""

    most: int | None = None
    said: str = ""
    _retry: Retry = field(default_factory=Retry)

    def refused(self, now_s: float, jobs: int, said: str, first_s: float) -> bool:
        """Another job was refused while we had ``jobs``; returns whether the limit is another one than before. One more
        is tried after ``first_s``, and twice as long each time that the limit is the same."""
        differs = self.most != jobs
        if differs:
            self._retry.worked()
        self.most, self.said = jobs, said
        self._retry.tried(now_s, first_s)
        return differs

    def accepted(self, jobs: int) -> None:
        """Another job was accepted while we had ``jobs``."""
        if self.most is not None and jobs >= self.most:
            self.most = None
            self._retry.worked()

    def room(self, now_s: float, jobs: int) -> int | None:
        """How many jobs may be submitted in addition to ``jobs``; None: there is no known limit."""
        if self.most is None:
            return None
        return max(0, self.most - jobs) + self._retry.due(now_s)

    def sentence(self) -> str:
        """The limit, in words."""
        jobs = "1 job" if self.most == 1 else f"{self.most} jobs"
        return f"with {jobs} of ours, the scheduler refused another one: {self.said}"
