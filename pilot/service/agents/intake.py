"""The messages of a pilot that are accepted: about itself and the trainers that it runs, with texts in printable lines,
and no more than is good for the journal.

=============================================  ==================================================================
message                                        accepted if
=============================================  ==================================================================
``Heartbeat``, ``Noticed``                     always: it is about itself (step times only of trainers that it runs)
any other                                      it has a worker of this trainer, or is a member of this generation
… that completes a command                     however many there are; :mod:`pilot.service.agents.inbound` checks more
=============================================  ==================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from pilot.core.coordinator import Coordinator
from pilot.core.errors import LONGEST, one_line
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.protocol import wire
from pilot.protocol.allowance import Allowance
from pilot.service.agents.pending import PendingCommands

FACTS_PER_S, FACTS_AT_ONCE = 10.0, 500
"""Messages of a pilot that may be journaled; one that was cut off comes back with many of them."""

WORDS_PER_S, WORDS_AT_ONCE = 0.2, 50
"""Messages of a pilot that people read."""

ROWS = 50
"""This many rows of ``Progress``, or files of ``CodeLoaded``, count as another message."""

WARN_EVERY_S = 60.0

_ABOUT_ITSELF = wire.Heartbeat | wire.Noticed
_COMPLETING = (
    wire.WorkerReady
    | wire.WorkerExited
    | wire.RankAddress
    | wire.RankJoined
    | wire.GroupFormed
    | wire.GroupBroken
    | wire.RankPaused
    | wire.RankExamined
)

M = TypeVar("M", bound=wire.Message)


@dataclass(slots=True)
class Quota:
    """The messages that one pilot may still send; the number of dropped ones, and when it was last reported."""

    facts: Allowance = field(default_factory=lambda: Allowance(FACTS_PER_S, FACTS_AT_ONCE, 0.0))
    words: Allowance = field(default_factory=lambda: Allowance(WORDS_PER_S, WORDS_AT_ONCE, 0.0))
    dropped: int = 0
    warned_s: float = -math.inf

    def allows(self, now_s: float, message: wire.FromAgent) -> bool:
        """Whether ``message`` is within the limits; it is counted as dropped otherwise."""
        if isinstance(message, wire.Heartbeat):
            return True
        taken = self.facts.allows(now_s, _units(message)) and (not _is_words(message) or self.words.allows(now_s))
        self.dropped += not taken
        return taken

    def warning(self, now_s: float, node: NodeId) -> str:
        """One line about the messages dropped since the last one; "" if it is not time for it."""
        if not self.dropped or now_s - self.warned_s < WARN_EVERY_S:
            return ""
        count, self.dropped, self.warned_s = self.dropped, 0, now_s
        return f"{count} messages of {node} were dropped: a pilot may send {FACTS_PER_S:g} a second"


class Intake:
    """Accepts pilots' messages; it remembers the quotas that were exceeded."""

    def __init__(self, core: Coordinator, pending: PendingCommands) -> None:
        self._core = core
        self._pending = pending
        self._exceeded: dict[NodeId, Quota] = {}

    def accepted(self, now_s: float, node: NodeId, quota: Quota, message: wire.FromAgent) -> wire.FromAgent | None:
        """``message`` as it may be acted upon; None: it exceeds the quota, or is about a trainer that ``node`` does not
        run."""
        if not self._completes(node, message) and not quota.allows(now_s, message):
            self._exceeded[node] = quota
            return None
        return in_lines(message) if self._is_own(node, message) else None

    def warnings(self, now_s: float) -> list[str]:
        """Lines about dropped messages, one a pilot, if it is time for them."""
        found = {node: quota.warning(now_s, node) for node, quota in self._exceeded.items()}
        self._exceeded = {node: quota for node, quota in self._exceeded.items() if not found[node]}
        return list(filter(None, found.values()))

    def runs(self, node: NodeId, name: str) -> bool:
        """Whether ``node`` has a worker of the trainer ``name``."""
        trainer = self._core.trainers.get(TrainerId(name))
        return trainer is not None and node in trainer.workers

    def _completes(self, node: NodeId, message: wire.FromAgent) -> bool:
        """Whether a command may wait for ``message``. It needs no quota: each has an effect once, and a trainer would
        wait for ever for one that was dropped."""
        match message:
            case wire.ScriptChecked():
                return (TrainerId(message.trainer), node) in self._pending.checking
            case wire.CheckpointWritten():
                return message.asked and (TrainerId(message.trainer), node) in self._pending.writing
            case wire.TrainerFinished():
                trainer = self._core.trainers.get(TrainerId(message.trainer))
                return trainer is not None and trainer.open
        return isinstance(message, _COMPLETING)

    def _is_own(self, node: NodeId, message: wire.FromAgent) -> bool:
        """Whether ``message`` is about what ``node`` runs. One that comes late may not be."""
        if isinstance(message, _ABOUT_ITSELF):
            return True
        name = TrainerId(getattr(message, "trainer", ""))
        group = self._pending.groups.get((name, Generation(getattr(message, "generation", 0))))
        return self.runs(node, name) or (group is not None and node in group.members)


def in_lines(message: M) -> M:
    """``message`` with each text in one line without control characters."""
    if isinstance(message, wire.RankAddress):
        return message  # no texts: the rendezvous checks each address
    return msgspec.structs.replace(message, **{name: _clean(value) for name, value in _fields(message)})


def _fields(message: wire.Message) -> list[tuple[str, Any]]:
    return [(name, getattr(message, name)) for name in message.__struct_fields__]


def _clean(value: Any) -> Any:
    match value:
        case str():
            return value if value.isprintable() and len(value) <= LONGEST else one_line(value)
        case dict():
            return {_clean(name): _clean(inner) for name, inner in value.items()}
        case list() | tuple():
            return type(value)(map(_clean, value))
    return value


def _units(message: wire.FromAgent) -> float:
    match message:
        case wire.Progress():
            return 1 + (len(message.ledger) + len(message.reports)) / ROWS
        case wire.CodeLoaded():
            return 1 + len(message.files) / ROWS
    return 1


def _is_words(message: wire.FromAgent) -> bool:
    return isinstance(message, wire.Remark) or (isinstance(message, wire.CheckpointWritten) and bool(message.error))
