"""Whether it is proved that a trainer's script trains the same on changing nodes as undisturbed (``pilot check``).

A script is checked on the trainer's first node while it trains there, and until the result is known the trainer stays
on one node. So it does if the script differs, or if it could not be checked although that is required.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pilot.core.ids import NodeId
from pilot.core.trainer.spec import Checking, TrainerSpec


class ProofState(StrEnum):
    """How far a check is, and what came of it."""

    OFF = "off"
    """No check is asked for."""
    WAITING = "waiting"
    """It begins when the trainer has a group on one node."""
    RUNNING = "running"
    PASSED = "passed"
    DIFFERS = "differs"
    UNCHECKED = "unchecked"
    """No result: the script cannot be checked, or not in time."""


@dataclass(frozen=True, slots=True)
class Proof:
    """``line``: what was found, or why nothing was; ``node``: where the check runs."""

    state: ProofState = ProofState.OFF
    line: str = ""
    node: NodeId | None = None

    @classmethod
    def of(cls, spec: TrainerSpec) -> Proof:
        """The one that a trainer begins with."""
        if spec.check is Checking.OFF:
            return cls()
        if why := spec.uncheckable():
            return cls(ProofState.UNCHECKED, why)
        return cls(ProofState.WAITING)

    def without(self, node: NodeId) -> Proof:
        """This one after the trainer's process on ``node`` has ended: a check that ran there begins anew."""
        return self if node != self.node else Proof(ProofState.WAITING)

    def keeps_to_one(self, checking: Checking) -> str:
        """Why the trainer has to stay on one node; "": it may grow."""
        match self.state:
            case ProofState.WAITING | ProofState.RUNNING:
                return f"it stays on one node until its script has been checked ({self.text})"
            case ProofState.DIFFERS:
                return f"it {self.text}"
            case ProofState.UNCHECKED if checking is Checking.REQUIRE:
                return f"it stays on one node, {self.text} (--check require)"
        return ""

    @property
    def text(self) -> str:
        """The state for users; "": no check is asked for."""
        match self.state:
            case ProofState.WAITING:
                return "to be checked on its first node"
            case ProofState.RUNNING:
                return f"being checked on {self.node}"
            case ProofState.PASSED:
                return f"checked: {self.line}"
            case ProofState.DIFFERS:
                return f"stays on one node: {self.line}"
            case ProofState.UNCHECKED:
                return f"unchecked: {self.line}"
        return ""
