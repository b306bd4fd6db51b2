"""Takes a core through a journal in which entries may be missing.

After a gap the core lacks facts, so it decides otherwise than the pool did: later entries are about trainers, groups
and plans that it does not know. It ignores most of them as stale. So that it is back in step as soon as possible, it
gets the numbers that the journal names: its next plan and groups are those that there were. An entry that it cannot
apply at all is skipped, and leaves no trace.
"""

from __future__ import annotations

from pilot.core.commands import Command, FormGroup, Solve
from pilot.core.coordinator import Coordinator
from pilot.core.errors import InvariantError, one_line
from pilot.core.events import EntriesLost, Event
from pilot.core.ids import Generation, PlanId, TrainerId
from pilot.core.study.events import TrialAsked
from pilot.rundir.entries import Decision
from pilot.rundir.segments import state_bytes, state_of

SNAPSHOT_EVERY = 1000
"""Number of events after which the state is saved: an entry that cannot be applied costs at most this many."""

Applied = tuple[Event, list[Command]]
"""An event that the core took, and its commands."""


class Follower:
    """Applies a journal's entries to ``core``; ``refused`` are the entries that were skipped, with the reasons."""

    def __init__(self, core: Coordinator) -> None:
        self.core = core
        self.refused: list[str] = []
        self._save()

    def follow(self, decision: Decision) -> list[Applied]:
        """Apply the next entry; returns it and its commands, after an event that first brings the core into step."""
        if len(self._since) >= SNAPSHOT_EVERY:
            self._save()
        before = len(self._since)
        behind = _behind(self.core, decision)
        events: list[Event] = [decision.event] if behind is None else [behind, decision.event]
        try:
            applied = [(event, self.handle(decision.now_s, event)) for event in events]
            if isinstance(decision.event, TrialAsked) and decision.event.spec.trainer not in self.core.trainers:
                raise InvariantError(f"study {decision.event.study} is missing")
        except Exception as error:  # whatever it is, it would be the same the next time
            del self._since[before:]
            self._go_back()
            kind = type(decision.event).__name__
            self.refused.append(f"entry {decision.seq} ({kind}) cannot be applied: {one_line(str(error))}")
            return []
        return applied

    def handle(self, now_s: float, event: Event) -> list[Command]:
        """Return the core's commands for an event."""
        commands = self.core.handle(now_s, event)
        self._since.append((now_s, event))
        return commands

    def _save(self) -> None:
        self._saved = state_bytes(self.core)
        self._since: list[tuple[float, Event]] = []

    def _go_back(self) -> None:
        self.core.restore(state_of(self._saved))
        for now_s, event in self._since:
            self.core.handle(now_s, event)
        self._save()


def _behind(core: Coordinator, decision: Decision) -> EntriesLost | None:
    """Return an event that brings ``core`` into step if it missed entries before ``decision``; otherwise None."""
    named: dict[TrainerId, int] = {}
    plan_id = core.plan_id
    about = getattr(decision.event, "trainer", None), getattr(decision.event, "generation", None)
    for command in decision.commands:
        match command:
            case FormGroup():
                named[command.trainer] = command.generation - 1
            case Solve():
                plan_id = max(plan_id, PlanId(command.plan_id - 1))
    if about[0] is not None and about[1] is not None:
        named[about[0]] = max(about[1], named.get(about[0], 0))
    known = core.trainers
    generations = tuple((t, Generation(g)) for t, g in named.items() if t in known and known[t].generation < g)
    if not generations and plan_id == core.plan_id:
        return None
    return EntriesLost(generations, plan_id)
