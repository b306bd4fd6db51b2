"""The scheduling core: events in, commands out.

Theory of operation
-------------------
Facts enter as events; :meth:`Coordinator.handle` records them and answers with commands. There are two loops:
:mod:`pilot.core.planning` decides how many nodes each trainer gets, and :mod:`pilot.core.bookkeeping` brings each
trainer from where it is to these nodes. Both work on one state (:class:`pilot.core.config.State`).

``tests/lifecycle.py`` has tables of what each event does; the tests prove them.

Fences: a plan is fenced by its id, everything about a group by its generation, which only increases; stale events are
dropped. Trainers are ordered by submission, nodes as in the pool; decisions never depend on the iteration order of a
set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

from pilot.core import events
from pilot.core.commands import CloseTrainer, Command, DrainPool, ReleaseNode, WarnOfBudget
from pilot.core.curves import profiles
from pilot.core.curves.measured import experience
from pilot.core.forecasting import Forecasting
from pilot.core.pool.changes import PoolChange
from pilot.core.study.events import StudyEvent
from pilot.core.trainer.actions import dissolve
from pilot.core.trainer.budget import Usage
from pilot.core.trainer.trainer import Phase

LOST = "entries of the journal are missing"


class Coordinator(Forecasting):
    """The pure state machine that both the live driver and the simulator run.

    The fields of its state may be read by anyone. ``later`` are the configurations that take over, one each time that
    the pool is ``reopened``.
    """

    def handle(self, now_s: float, event: events.Event) -> list[Command]:
        """Record ``event``, which happened at ``now_s``, and return the commands that follow."""
        self.now_s = now_s
        self._vacant.clear()
        self._replan, self._reach = "", None
        self._by_rates = isinstance(event, events.Progress | events.ProfileDue | events.CurvesDue)
        out = self._note(event)
        out += self._reconcile_touched()
        out += self._closed(out)
        out += self._release_vacant()
        self.usage.count(now_s, self._charged(self.pool.numbers))
        self.nodes_seen.note(now_s, len(self.pool))
        if any(isinstance(command, CloseTrainer) for command in out):
            measured = [trainer.measured for trainer in self.trainers.values()]
            self.priors = experience(measured, self.config.priors, self.priors)
            self._registry.forget_oldest(self.config.ended_kept)
        if self._replan and not self.draining:
            self.arrivals.close()
            out += self._ask(self._replan)
        return out

    def _note(self, event: events.Event) -> list[Command]:
        match event:
            case events.WorkerExited():
                return self._worker_exited(event)
            case events.Progress():
                out = self._about_trainer(self._referred(event))
                self._note_outdated(event.trainer)
                return out
            case events.SpeedsMeasured():
                out = self._speeds_measured(event)
                self._note_outdated(event.trainer)
                return out
            case events.PoolChanged():
                return self._pool_changed(event)
            case events.TrainerSubmitted():
                return self._arrived(self._registry.submit(event.spec, self.config.charge_factor, self.now_s))
            case events.TrainerResumed():
                return self._arrived(self._registry.resume(event, self.config.charge_factor))
            case events.TrainerReleased():
                return self._arrived(self._registry.hold(event.trainer, ""))
            case events.TrainerRemoved():
                self._registry.remove(event.trainer)
                return []
            case events.TrainerCancelled():
                return self._cancelled(event)
            case events.TrainerHeld():
                return self._held(event)
            case events.TrainerFinished():
                return self._finished(event)
            case events.PlanReady():
                return self._plan_ready(event)
            case events.PlanFailed():
                return self._plan_failed(event)
            case events.DrainRequested():
                return self._drain()
            case events.PoolReopened():
                return self._reopened()
            case events.EntriesLost():
                return self._entries_lost(event)
            case events.BudgetDue():
                return self._check_budget(event)
            case events.DecisionDue():
                return self._decide()
            case events.ArrivalsDue():
                return self._plan_if(self.arrivals.close())
            case events.CurvesDue():
                return self._plan_if(self.outdated)
            case events.TurnDue():
                return self._plan_if(self.aging.pass_turns(self.now_s, self.config.longest_wait_s))
            case events.ProfileDue():
                return self._plan_if(profiles.give_up(self.now_s, self._registry.open.get(event.trainer)))
            case events.NodeRetried():
                return self._plan_if(self.blame.retried(event))
            case events.NodeCleared():
                return self._plan_if(f"{event.node} was cleared" if self.blame.forget(event.node) else "")
        if isinstance(event, events.TrainerEvent):
            return self._about_trainer(event)
        if isinstance(event, StudyEvent):
            return self._follow(self._studies.note(event, self.config.charge_factor))
        assert_never(event)

    # --- the pool ---------------------------------------------------------------------------------------------------

    def _pool_changed(self, event: events.PoolChanged) -> list[Command]:
        change = PoolChange(self.pool, self.trainers, self.blame)
        commands = change.note(event, draining=self.draining)
        self.losses.note(self.now_s, len(self.pool), change.lost)
        self._vacant.update(change.vacant)
        for trainer_id in change.touched:
            self._touch(trainer_id)
        if change.counts:
            self.changes.note(self.now_s)
            self._replan = "the pool changed"
        return commands

    def _release_vacant(self) -> list[Command]:
        """Release leaving nodes on which nothing runs any more; only nodes that this event affected are checked."""
        vacant = [n for n in self._vacant if n in self.pool.leaving and n not in self.pool.occupant]
        return [ReleaseNode(node, "it was asked to leave and nothing runs on it") for node in vacant]

    def _drain(self) -> list[Command]:
        self.draining = True
        for trainer in self._registry.open.values():
            self._take_back(trainer)
        for trainer in self.trainers.values():
            if trainer.phase is Phase.CLOSING:
                self._touch(trainer.id)
        self._studies.drain()
        self._vacant = {node: None for node in self.pool.nodes if self.pool.leave(node, None)}
        return []

    def _reopened(self) -> list[Command]:
        """Switch to the next configuration, with its order of nodes and its budget."""
        self.draining = False
        self.reopened += 1
        self.aging.restart(self.now_s)
        self.pool.order_by(self.config.node_order, self.config.topology)
        self.usage = Usage(self._budget_s, nodes=self._charged(self.pool.numbers), since_s=self.now_s)
        return self._plan_if("the pool is up again")

    def _entries_lost(self, event: events.EntriesLost) -> list[Command]:
        """Never use a generation again that may exist. Its group is learned from its pilots."""
        out: list[Command] = []
        for trainer_id, generation in event.generations:
            trainer = self.trainers.get(trainer_id)
            if trainer is not None and trainer.generation < generation:
                out += dissolve(trainer, LOST) if trainer.forming is not None else []
                trainer.generation = generation
                self._touch(trainer_id)
        if event.plan_id is None:
            return out + self._plan_if(LOST)
        self.plan_id = max(self.plan_id, event.plan_id)
        return out

    # --- time -------------------------------------------------------------------------------------------------------

    def due(self, now_s: float) -> list[events.TimeEvent]:
        """The events that are due by time alone at ``now_s``. A driver, live or simulated, posts them."""
        return [*self.blame.due(now_s), *(event for at_s, event in self._timers() if at_s <= now_s)]

    def due_s(self) -> float:
        """When the next event is due if nothing else happens; nothing waits for nodes that can be used again."""
        return min(at_s for at_s, _ in self._timers())

    def _timers(self) -> Iterator[tuple[float, events.TimeEvent]]:
        trainers = list(self._registry.open.values())
        yield self.arrivals.due_s(self.config.arrivals_s), events.ArrivalsDue()
        for trainer in trainers:  # one that does not train is considered with the plan that gives it nodes
            if trainer.profile.left or (trainer.group is not None and trainer.profile.by_s < math.inf):
                yield trainer.profile.due_s, events.ProfileDue(trainer.id)
        if not self.draining:
            yield self.usage.due_s(), events.BudgetDue()
            yield self._curves_due_s(), events.CurvesDue()
            yield self.aging.due_s(self.config.longest_wait_s), events.TurnDue()
        for trainer in trainers:
            if trainer.usage.budget_s is not None and not trainer.stops:
                yield trainer.usage.due_s(), events.BudgetDue(trainer.id)
        yield from self._studies.due()
        yield self._decision_due_s(), events.DecisionDue()

    def _check_budget(self, event: events.BudgetDue) -> list[Command]:
        trainer = self._registry.open.get(event.trainer) if event.trainer is not None else None
        if event.trainer is not None and trainer is None:
            return []
        usage = self.usage if trainer is None else trainer.usage
        state = usage.check(self.now_s, self.config.charge_factor)
        if state.end and trainer is not None:
            return self._stop(trainer, state.end)
        if state.end:
            return [] if self.draining else [DrainPool(state.end)]
        return [WarnOfBudget(event.trainer, state.warning)] if state.warning else []
