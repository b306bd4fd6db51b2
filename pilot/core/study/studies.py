"""Events of studies: trials are asked for, arrive, report, are promoted and shelved, and end.

A plan decides how many new trials there should be: in a problem each study offers trials that it has not asked for yet
(:meth:`Studies.offers`). For each one that wins nodes the sampler is asked for parameters, one after the other in the
order of their numbers, and the nodes are reserved meanwhile. With its parameters a trial becomes a trainer, on those
nodes. From then on plans treat it like any trainer, except for its weight (:mod:`pilot.core.study.study`).

Both commands to the sampler survive restarts: each is given once, and a restarted driver repeats those that have no
completion.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import assert_never

from pilot.core.commands import AskTrial, CloseTrainer, Command, Outcome, TellTrial
from pilot.core.curves.measured import Measured
from pilot.core.errors import InvariantError
from pilot.core.events import GroupFormed, Progress
from pilot.core.ids import StudyId, TrainerId
from pilot.core.study import events as study_events
from pilot.core.study.study import (
    ASKS_ALLOWED,
    FAILURES_ALLOWED,
    LATEST,
    Reservation,
    Study,
    Trial,
    promotable,
    reports_left,
    weights,
)
from pilot.core.trainer.proof import Proof
from pilot.core.trainer.registry import Registry
from pilot.core.trainer.trainer import Trainer

RESERVE_S = 30.0
"""Nodes are reserved this long for a trial whose parameters are being chosen; then others may have them."""

HEARD_MOST = 20
"""How many names of metrics to keep, to show what a script reports instead of the study's metric."""


@dataclass(slots=True)
class Followed:
    """The consequences: ``commands``; trainers that are ``shelved`` and must give their nodes back; a new trainer
    (``trial``) and the nodes reserved for it; why another plan is needed ("": none is).
    """

    commands: list[Command] = field(default_factory=list)
    shelved: list[Trainer] = field(default_factory=list)
    trial: Trainer | None = None
    nodes: int = 0
    replan: str = ""


class Studies:
    """The studies by name, over the trainers of ``registry``."""

    def __init__(self, studies: dict[StudyId, Study], registry: Registry) -> None:
        self.studies, self._registry = studies, registry
        self._trials = {s.spec.trainer(t.number): (s, t) for s in studies.values() for t in s.trials}

    @property
    def reserved(self) -> int:
        """How many nodes are reserved for trials whose parameters are being chosen."""
        return sum(reserved.nodes for study in self.studies.values() for reserved in study.reserved.values())

    def drain(self) -> None:
        """Start no more trials."""
        for study in self.studies.values():
            study.reserved.clear()

    def due(self) -> Iterator[tuple[float, study_events.ReservationDue | study_events.StudyDue]]:
        """The events that are due by time alone, and when."""
        for study in self.studies.values():
            for number, reserved in study.reserved.items():
                yield reserved.since_s + RESERVE_S, study_events.ReservationDue(study.id, number)
            if study.spec.deadline_s is not None and not study.stopped and not study.over:
                yield study.spec.deadline_s, study_events.StudyDue(study.id)

    # --- the plan ---------------------------------------------------------------------------------------------------

    def offers(self, most: int) -> list[Trainer]:
        """Up to ``most`` trials that may be asked for, as the trainers that they would be, from each study in turn."""
        turns = zip_longest(*(_offered(study, most) for study in self.studies.values()))
        return [trainer for turn in turns for trainer in turn if trainer is not None][:most]

    def weights(self, now_s: float, nodes: int, trainers: Sequence[Trainer]) -> dict[TrainerId, float]:
        """The weights of those ``trainers`` that are trials or offers, in a plan for ``nodes`` nodes."""
        found: dict[TrainerId, float] = {}
        for study in self.studies.values():
            names = {spec.trainer for spec in study.offers(len(trainers))}
            mine = [t for t in trainers if t.id in names or self._of(t.id) is study]
            trials = [self._trials[t.id][1] for t in mine if t.id in self._trials]
            speedup = max((_speedup(t, min(nodes, t.spec.max_nodes)) for t in mine), default=1.0)
            weight = weights(study, trials, reports_left(study, now_s, speedup)) if mine else {}
            found |= {t.id: weight[t.id if t.id in weight else None] for t in mine}
        return found

    def won(self, now_s: float, counts: Mapping[TrainerId, int]) -> list[Command]:
        """Ask for the trials to which a plan gave nodes (``counts``). Offers of a study are alike, so the first ones
        get what any of them got.
        """
        out: list[Command] = []
        for study in self.studies.values():
            given = [counts.get(spec.trainer, 0) for spec in study.offers(len(counts))]
            for nodes in sorted(filter(None, given), reverse=True):
                number = len(study.trials)
                study.trials.append(Trial(number))
                study.reserved[number] = Reservation(nodes, now_s)
                self._trials[study.spec.trainer(number)] = (study, study.trials[-1])
                out.append(AskTrial(study.id, number, study.spec.trial(number)))
        return out

    def _of(self, trainer: TrainerId) -> Study | None:
        """The study of which ``trainer`` is a trial; None for one that has ended, even if it was resumed since."""
        study, trial = self._trials.get(trainer, (None, None))
        return None if trial is None or trial.ended else study

    def reports(self, trainer: TrainerId) -> int:
        """How many reports are known of ``trainer``; 0 if it is no trial."""
        return self._trials[trainer][1].reports if trainer in self._trials else 0

    # --- events -----------------------------------------------------------------------------------------------------

    def note(self, event: study_events.StudyEvent, charge_factor: float) -> Followed:
        """Record ``event``. Budgets of trials are in charged node-hours."""
        if isinstance(event, study_events.StudySubmitted):
            return self._submitted(event)
        study = self.studies.get(event.study)
        if study is None:
            return Followed()
        match event:
            case study_events.StudyStopped():
                return self._stop(study, event.reason)
            case study_events.StudyDue():
                return self._stop(study, "its deadline has passed")
            case study_events.StudyResumed():
                return self._resume(study, event)
            case study_events.TrialAsked():
                return self._asked(study, event, charge_factor)
            case study_events.TrialNotAsked():
                return self._not_asked(study, event)
            case study_events.TrialTold():
                return Followed()
            case study_events.ReservationDue():
                late = study.reserved.pop(event.number, None)
                return Followed(replan=f"study {study.id} waits for its sampler" if late else "")
            case _:
                assert_never(event)

    def _submitted(self, event: study_events.StudySubmitted) -> Followed:
        if event.spec.study in self.studies:
            raise InvariantError(f"study {event.spec.study} was submitted twice")
        proof = Proof.of(event.spec.template)
        self.studies[event.spec.study] = Study(event.spec, event.spec.trials, proof=proof)
        return Followed(replan=f"study {event.spec.study} was submitted")

    def _stop(self, study: Study, reason: str) -> Followed:
        if study.stopped:
            return Followed()
        study.stopped = reason
        study.reserved.clear()
        return self._settle(study, study.trials, f"study {study.id} stopped")

    def _resume(self, study: Study, event: study_events.StudyResumed) -> Followed:
        """Resume a study; trials whose parameters could not be chosen are asked for again."""
        study.stopped, study.failures = "", 0
        study.total = max(study.total, event.trials or 0)
        again = [trial for trial in study.trials if trial.waits and trial.asks == 0]
        for trial in again:
            trial.asks = 1
        followed = self._advance(study, study.trials, f"study {study.id} continues")
        followed.commands += [AskTrial(study.id, t.number, study.spec.trial(t.number)) for t in again]
        followed.replan = followed.replan or f"study {study.id} continues"
        return followed

    def _asked(self, study: Study, event: study_events.TrialAsked, charge_factor: float) -> Followed:
        trial = self._waiting(study, event.number)
        if trial is None:
            return Followed()
        trial.asked, trial.parameters = True, event.parameters
        trainer = self._registry.submit(event.spec, charge_factor)
        reserved = study.reserved.pop(trial.number, None)
        trainer.shelved, trainer.proof = study.stopped, study.proof
        if study.stopped:
            return Followed()
        replan = "" if reserved is not None else f"trainer {trainer.id} arrived"
        return Followed(trial=trainer, nodes=reserved.nodes if reserved is not None else 0, replan=replan)

    def _not_asked(self, study: Study, event: study_events.TrialNotAsked) -> Followed:
        trial = self._waiting(study, event.number)
        if trial is None:
            return Followed()
        if event.exhausted:
            return self._exhausted(study, event.number)
        trial.asks += 1
        if event.again and trial.asks <= ASKS_ALLOWED:
            return Followed([AskTrial(study.id, trial.number, study.spec.trial(trial.number))])
        trial.asks = 0
        return self._stop(study, event.reason)

    def _exhausted(self, study: Study, number: int) -> Followed:
        """Record that there are no trials from ``number`` on: answers come in the order of the questions."""
        for trial in study.trials[number:]:
            del self._trials[study.spec.trainer(trial.number)]
            study.reserved.pop(trial.number, None)
        del study.trials[number:]
        study.exhausted = True
        followed = self._advance(study, [], "")
        followed.replan = f"study {study.id} has tried every point of its search space"
        return followed

    def heard(self, now_s: float, trainer: Trainer, event: object) -> Followed:
        """Record what happened to ``trainer``, if it is a trial."""
        study, trial = self._trials.get(trainer.id, (None, None))
        if study is None or trial is None or trial.ended:
            return Followed()
        if isinstance(event, GroupFormed):
            trial.reported_s = now_s
        if not isinstance(event, Progress):
            return Followed()
        if not trial.values:
            names = [name for name, _ in event.metrics if name not in study.heard]
            study.heard |= dict.fromkeys(names[: max(0, HEARD_MOST - len(study.heard))])
        out: list[Command] = []
        before = len(trial.values)
        for number, value in event.reports:
            out += self._report(now_s, study, trial, trainer, number, value)
        if len(trial.values) == before:
            return Followed()
        followed = self._advance(study, [trial], f"trial {trainer.id} reached rung {before + 1}")
        followed.commands = out + followed.commands
        return followed

    def _report(
        self, now_s: float, study: Study, trial: Trial, trainer: Trainer, number: int, value: float
    ) -> list[Command]:
        """Record the ``number``-th report of the study's metric; a repeated one changes nothing. It counts for every
        rung that the trial has come to: reports may be lost with a connection."""
        if number <= trial.reports:
            return []
        if trial.reported_s is not None and trainer.group is not None:
            took_s = (now_s - trial.reported_s) / (number - trial.reports)
            study.report_s = [*study.report_s, took_s * _speedup(trainer, len(trainer.group.members))][-LATEST:]
        trial.reports, trial.last, trial.reported_s = number, value, now_s
        come_to = bisect_right(study.spec.rungs, number)
        new = range(len(trial.values), come_to)
        trial.values += [value for _ in new]
        if new:
            study.failures = 0
        return self._tell(study, trial, value) if 0 in new else []

    def closed(self, command: CloseTrainer) -> Followed:
        """Record that a trainer has ended."""
        study, trial = self._trials.get(command.trainer, (None, None))
        if study is None or trial is None or trial.ended:
            return Followed()
        finished = command.outcome is Outcome.FINISHED
        if finished and study.spec.to_end and trial.reports:
            trial.values += [trial.last] * (len(study.spec.rungs) - len(trial.values))
            study.failures = 0
        unheard = finished and not trial.values
        lacks = study.lacks(trial) if finished else ""
        trial.ended = f"ended {lacks}" if lacks else command.reason or command.outcome.value
        trial.failed = command.outcome is Outcome.FAILED or unheard
        study.failures += trial.failed
        out = [] if trial.told else self._tell(study, trial, trial.values[0] if trial.values else None)
        why = self._given_up(study, trial.ended if unheard else "", command)
        followed = self._stop(study, why) if why else self._advance(study, [], f"trial {command.trainer} ended")
        followed.commands = [*out, *followed.commands]
        return followed

    def _given_up(self, study: Study, ended: str, command: CloseTrainer) -> str:
        """Why the study stops, now that a trial failed; "" if it continues. ``ended``: it never reported the metric."""
        if ended and not any(trial.values for trial in study.trials):
            return f"{command.trainer} {ended}; it reported {', '.join(study.heard) or 'nothing'}"
        if study.failures >= FAILURES_ALLOWED:
            return f"{study.failures} trials in a row failed; the last one, {command.trainer}: {command.reason}"
        return ""

    def share_proof(self, trainer: Trainer) -> list[Trainer]:
        """Copy the proof of ``trainer``, a trial, to its study's other trials; returns those that had another one."""
        study = self._of(trainer.id)
        if study is None or study.proof == trainer.proof:
            return []
        study.proof = trainer.proof
        names = [study.spec.trainer(trial.number) for trial in study.trials if not trial.ended]
        others = [t for name in names if (t := self._registry.open.get(name)) is not None and t is not trainer]
        for other in others:
            other.proof = study.proof
        return others

    # --- common -------------------------------------------------------------------------------------------------------

    def _waiting(self, study: Study, number: int) -> Trial | None:
        """Trial ``number``, if its parameters are being chosen; None: they are known, or there is no such trial."""
        trial = study.trials[number] if 0 <= number < len(study.trials) else None
        return trial if trial is not None and trial.waits else None

    def _tell(self, study: Study, trial: Trial, value: float | None) -> list[Command]:
        """Tell the sampler the first rung's value; None: the trial failed."""
        trial.told = True
        known = None if value is None or not math.isfinite(value) else value
        return [TellTrial(study.id, trial.number, known)]

    def _advance(self, study: Study, trials: Sequence[Trial], why: str) -> Followed:
        """Promote the trials that can be promoted, and shelve those of ``trials`` that have reached their rung."""
        changed = {trial.number: trial for trial in trials}
        for trial in promotable(study) if not study.stopped else ():
            trial.rung += 1
            changed[trial.number] = trial
        return self._settle(study, list(changed.values()), why)

    def _settle(self, study: Study, trials: Sequence[Trial], why: str) -> Followed:
        """Shelve or unshelve the trainers of ``trials``, as the facts require."""
        followed = Followed()
        for trial in trials:
            trainer = self._registry.open.get(study.spec.trainer(trial.number))
            shelved = "" if trial.trains and not study.stopped else study.stopped or self._shelved_at(study, trial)
            if trainer is None or trial.ended or bool(trainer.shelved) == bool(shelved):
                continue
            trainer.shelved, trainer.complete, followed.replan = shelved, study.complete(trial), why
            if shelved:
                followed.shelved.append(trainer)
        return followed

    def _shelved_at(self, study: Study, trial: Trial) -> str:
        reports = study.spec.rungs[trial.rung]
        if study.complete(trial):
            return f"complete after {reports} report{'' if reports == 1 else 's'}"
        return f"shelved after {reports} report{'' if reports == 1 else 's'}"


def _speedup(trainer: Trainer, nodes: int) -> float:
    """The speed-up of a trial on ``nodes`` nodes over one, as far as it is known."""
    curve = trainer.measured.planned
    return curve.at(nodes) / one if (one := curve.single_node_rate()) > 0 else 1.0


def _offered(study: Study, most: int) -> list[Trainer]:
    """Up to ``most`` trials that ``study`` may ask for, as the trainers that they would be."""
    return [Trainer(spec, Measured(spec), proof=study.proof) for spec in study.offers(most)]
