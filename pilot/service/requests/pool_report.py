"""A pool's history from its journal alone, for its report, and the effect that another budget would have had."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pilot.core.commands import DrainPool, WarnOfBudget
from pilot.core.coordinator import Coordinator
from pilot.core.events import BudgetDue
from pilot.core.trainer.budget import hours
from pilot.history.monitor import Monitor
from pilot.history.page import Life
from pilot.history.story import Story
from pilot.history.summary import sentences
from pilot.history.timeline import TimelineMaker
from pilot.history.trainer_progress import ProgressRecorder
from pilot.history.utilisation import utilisation
from pilot.history.words import amount, duration
from pilot.protocol.remaining_work import has_session
from pilot.rundir.entries import Decision
from pilot.rundir.follower import Follower
from pilot.rundir.journal import Contents
from pilot.service.requests.status_view import account, best_for
from pilot.service.settings import remembering_core


def life_of(contents: Contents) -> Life:
    """The history in a journal, which is read once and run through a core."""
    core, monitor, progress = remembering_core(contents), Monitor(), ProgressRecorder()
    story = Story(contents.header.started_unix_s)
    nodes, events = TimelineMaker(core), []
    for entry in contents.entries:
        events += story.events_of(entry)
        for event, commands in nodes.note(entry) if isinstance(entry, Decision) else ():
            monitor.note(entry.now_s, event, commands)
            progress.note(entry.now_s, event, commands)
    what, course = account(core, monitor), nodes.made()
    sessions = {name for name, record in monitor.trainers.items() if has_session(record.metrics)}
    name, site = contents.header.coordinator, str(contents.header.site.get("name", "an unnamed site"))
    use, factor = utilisation(what, best_for(what)), core.config.charge_factor
    return Life(
        name=name,
        summary=sentences(name, site, course, core.trainers, use, factor, sessions),
        timeline=course,
        trainers=core.trainers,
        progress=progress.of,
        events=events,
    )


@dataclass(slots=True)
class PoolLife:
    """One life of the pool, from its start at ``since_s`` until it was down."""

    since_s: float  #: on the pool's clock
    charge_factor: float  #: its site's at that time
    lasted_s: float = 0.0  #: on the pool's clock
    used: float = 0.0  #: charged node-hours
    warned_s: float | None = None  #: when 80% of the budget was used; None: never
    ended_s: float | None = None  #: when all of it was used; None: never
    samples: int = 0  #: processed by all trainers
    samples_then: int = 0  #: processed when the budget was used up

    def sentence(self, budget: float) -> str:
        """A sentence about the effect of ``budget``."""
        lasted = duration(self.lasted_s)
        if self.ended_s is not None:
            return (
                f"it would be used up after {duration(self.ended_s)}, and the pool would drain; the pool was up for"
                f" {lasted}, and {self.samples_then:,} of its {self.samples:,} samples were processed by then"
            )
        warning = f"; the warning would come after {duration(self.warned_s)}" if self.warned_s is not None else ""
        used = f"{amount(self.used)} would be used ({self.used / budget:.0%}) in {lasted}"
        return f"{used}{warning}; nothing else would change"


def trials(contents: Contents, budget: float) -> Iterator[PoolLife]:
    """Each life of the pool with another ``budget``, in charged node-hours, counted from its start.

    The recorded events run through a core with that budget. It gets ``BudgetDue`` when it asks for it, as from the live
    driver, and answers as it would have live. A drain is recorded but not carried out: the recorded events continue,
    which shows what the budget would have cost.
    """
    core = remembering_core(contents, budget)
    follower = Follower(core)
    trial, lives = PoolLife(0.0, core.config.charge_factor), core.reopened
    for decision in contents.decisions:
        _spend(follower, trial, decision.now_s)
        follower.follow(decision)
        if core.reopened != lives:
            trial.samples = _samples(core)
            yield trial
            trial, lives = PoolLife(decision.now_s, core.config.charge_factor), core.reopened
        trial.lasted_s = decision.now_s - trial.since_s
        trial.used = hours(core.usage.until(decision.now_s), trial.charge_factor)
    trial.samples = _samples(core)
    yield trial


def _spend(follower: Follower, trial: PoolLife, now_s: float) -> None:
    """Note the budget's events up to ``now_s``."""
    core = follower.core
    while trial.ended_s is None and not core.draining and (due_s := core.usage.due_s()) <= now_s:
        for command in follower.handle(due_s, BudgetDue(None)):
            if isinstance(command, WarnOfBudget):
                trial.warned_s = due_s - trial.since_s
            elif isinstance(command, DrainPool):
                trial.ended_s, trial.samples_then = due_s - trial.since_s, _samples(core)


def _samples(core: Coordinator) -> int:
    return sum(trainer.samples for trainer in core.trainers.values())
