"""A core with its books, driven without a journal: the service's parts take it for the driver."""

from __future__ import annotations

from typing import Self

from pilot.core.commands import Command, FormGroup
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, GroupFormed, PlanReady, PoolChanged, TrainerSubmitted, WorkerReady
from pilot.core.ids import Generation, NodeId, TrainerId, TrainerUid
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.spec import TrainerSpec
from pilot.service.durability.restore import Books
from pilot.submission.submission import LaunchSpec

T, A, B, C = TrainerId("t"), NodeId("a"), NodeId("b"), NodeId("c")
G = Generation(1)
UID = TrainerUid("0123456789abcdef" * 2)
SPEC = TrainerSpec(T, uid=UID)
LAUNCH = LaunchSpec("/s.py", "ab12", ["--x"], "/work", "/bin/python", {"KEY": "secret"})


class Stage:
    """Events go in at ``now_s``; ``remarks`` are the texts of journal notes."""

    def __init__(self, config: CoordinatorConfig | None = None) -> None:
        self.core = Coordinator(config or CoordinatorConfig())
        self.books = Books.beside(self.core)
        self.pending, self.monitor = self.books.pending, self.books.monitor
        self.now_s, self.overfull, self.trouble = 0.0, False, ""
        self.remarks: list[str] = []

    def clock(self) -> float:
        return self.now_s

    def at(self, now_s: float) -> Self:
        """This stage, later."""
        self.now_s = now_s
        return self

    def post(self, *events: Event) -> list[Command]:
        """The commands for the last of ``events``."""
        commands: list[Command] = []
        for event in events:
            commands = self.core.handle(self.now_s, event)
            self.books.note(self.now_s, event, commands)
        return commands

    def remark(self, *, text: str, **note: str) -> None:
        self.remarks.append(text)
        self.books.remark(self.now_s, {"text": text, **note})

    def plan(self, **nodes: int) -> None:
        """Answer the open question with so many nodes for each trainer."""
        assert self.pending.solve is not None
        counts = tuple((TrainerId(name), count) for name, count in nodes.items())
        self.post(PlanReady(self.pending.solve.plan_id, Plan(PlanStatus.OPTIMAL, counts, 1.0, planner="dp")))

    def starts(self, *nodes: NodeId, min_nodes: int = 1) -> None:
        """``nodes`` join, and get workers of trainer T."""
        self.post(PoolChanged(joined=nodes), TrainerSubmitted(TrainerSpec(T, min_nodes, len(nodes))))
        self.plan(t=len(nodes))

    def forms(self, *nodes: NodeId) -> FormGroup:
        """The workers on ``nodes`` are ready; returns the group that forms."""
        commands = self.post(*(WorkerReady(T, node) for node in nodes))
        return next(command for command in commands if isinstance(command, FormGroup))

    def trains(self, *nodes: NodeId) -> None:
        """``nodes`` join, and train T in generation 1."""
        self.starts(*nodes)
        self.forms(*nodes)
        self.post(GroupFormed(T, G, 0))
