"""What is taken from a pilot: what it may say, in lines that can be shown, and not more than is good for the journal.

=============================================  ==================================================================
what a pilot says                              it may, if
=============================================  ==================================================================
``Heartbeat``, ``Leaving``                     always: it is about itself (a pace only of a trainer that it runs)
anything else                                  it has a worker of this trainer, or is a member of this generation
… and what completes a command, or leads       :mod:`pilot.service.agents.inbound` and its neighbours look closer; of
the
                                               former, none is too much
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
"""Messages of a pilot that may be journaled; one that was cut off comes back with minutes of them."""

WORDS_PER_S, WORDS_AT_ONCE = 0.2, 50
"""Those of them that are kept for people to read."""

ROWS = 50
"""As many rows of ``Progress``, or files of ``CodeLoaded``, count as another message."""

DETAIL_MAX = 8000
"""The end of a long text counts: errors are usually there."""

TELL_EVERY_S = 60.0

_ABOUT_ITSELF = wire.Heartbeat | wire.Noticed

M = TypeVar("M", bound=wire.Message)


@dataclass(slots=True)
class Speech:
    """How much one pilot may still say; how many messages it has said beyond that, and when that was told."""

    facts: Allowance = field(default_factory=lambda: Allowance(FACTS_PER_S, FACTS_AT_ONCE, 0.0))
    words: Allowance = field(default_factory=lambda: Allowance(WORDS_PER_S, WORDS_AT_ONCE, 0.0))
    dropped: int = 0
    told_s: float = -math.inf

    def takes(self, now_s: float, message: wire.FromAgent) -> bool:
        """Whether ``message`` is within the limits; it is counted as dropped otherwise."""
        if isinstance(message, wire.Heartbeat):
            return True
        taken = self.facts.allows(now_s, _units(message)) and (not _is_words(message) or self.words.allows(now_s))
        self.dropped += not taken
        return taken

    def due(self, now_s: float) -> bool:
        """Whether it is time to tell that messages were dropped."""
        return self.dropped > 0 and now_s - self.told_s >= TELL_EVERY_S

    def tell(self, now_s: float, node: NodeId) -> str:
        """One line about those dropped since the last one."""
        count, self.dropped, self.told_s = self.dropped, 0, now_s
        return f"{count} messages of {node} were dropped: a pilot may say {FACTS_PER_S:g} things a second"


class Intake:
    """Takes pilots' messages; it only remembers who said too much."""

    def __init__(self, core: Coordinator, pending: PendingCommands) -> None:
        self._core = core
        self._pending = pending
        self._loud: dict[NodeId, Speech] = {}

    def taken(self, now_s: float, node: NodeId, speech: Speech, message: wire.FromAgent) -> wire.FromAgent | None:
        """``message`` as it may be acted upon; None: it is too much, or about what ``node`` does not run."""
        if not self._completes(node, message) and not speech.takes(now_s, message):
            self._loud[node] = speech
            return None
        return in_lines(message) if self._is_own(node, message) else None

    def dropped(self, now_s: float) -> list[str]:
        """Lines about what was dropped, one a pilot, if it is time for them."""
        due = [(node, speech) for node, speech in self._loud.items() if speech.due(now_s)]
        for node, _ in due:
            del self._loud[node]
        return [speech.tell(now_s, node) for node, speech in due]

    def runs(self, node: NodeId, name: str) -> bool:
        """Whether ``node`` has a worker of the trainer ``name``."""
        trainer = self._core.trainers.get(TrainerId(name))
        return trainer is not None and node in trainer.workers

    def _completes(self, node: NodeId, message: wire.FromAgent) -> bool:
        """Whether a command may wait for ``message``. It is never too much: each has an effect once, and a trainer that
        waits for one that was dropped would wait for ever."""
        match message:
            case wire.WorkerReady() | wire.WorkerExited() | wire.RankAddress() | wire.RankJoined():
                return True
            case wire.ScriptChecked():
                return (TrainerId(message.trainer), node) in self._pending.checking
            case wire.GroupFormed() | wire.GroupBroken() | wire.RankPaused() | wire.RankExamined():
                return True
            case wire.CheckpointWritten():
                return message.asked and (TrainerId(message.trainer), node) in self._pending.writing
            case wire.TrainerFinished():
                trainer = self._core.trainers.get(TrainerId(message.trainer))
                return trainer is not None and trainer.open
        return False

    def _is_own(self, node: NodeId, message: wire.FromAgent) -> bool:
        """Whether ``message`` is about what ``node`` runs. One that comes late may not be."""
        if isinstance(message, _ABOUT_ITSELF):
            return True
        name = TrainerId(getattr(message, "trainer", ""))
        group = self._pending.groups.get((name, Generation(getattr(message, "generation", 0))))
        return self.runs(node, name) or (group is not None and node in group.members)


def in_lines(message: M) -> M:
    """``message`` with each text in one line without control characters; in lines, the last words of a worker."""
    if isinstance(message, wire.RankAddress):
        return message  # no texts: the rendezvous checks each address
    changed = {name: _clean(value) for name, value in _fields(message) if name != "detail"}
    if isinstance(message, wire.WorkerExited):
        changed["detail"] = "\n".join(map(one_line, message.detail[-DETAIL_MAX:].splitlines()))
    elif isinstance(message, wire.RankExamined):
        changed["detail"] = one_line(message.detail)
    return msgspec.structs.replace(message, **changed)


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
