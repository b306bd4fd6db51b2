"""A pool's life in a few sentences, for readers who know neither the papers nor our terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from pilot.core.ids import TrainerId
from pilot.core.trainer.budget import HOUR_S, unit
from pilot.core.trainer.trainer import Trainer
from pilot.history.timeline import Fate, Timeline, Use
from pilot.history.utilisation import Utilisation
from pilot.history.words import amount, counted, duration, node_count


def sentences(
    name: str,
    site: str,
    timeline: Timeline,
    trainers: Mapping[TrainerId, Trainer],
    use: Utilisation,
    charge_factor: float,
    sessions: Container[TrainerId],
) -> list[str]:
    """The life of the pool ``name``, from its ``timeline`` and the state of its ``trainers`` at the end; ``sessions``
    are the trainers that have one.
    """
    hours = dict.fromkeys(Use, 0.0)
    for span in timeline.spans:
        hours[span.use] += (span.end_s - span.start_s) / HOUR_S
    used = sum(hours.values())
    lines = [
        f"The pool {name} on {site} was up for {duration(timeline.end_s)} and held up to {node_count(_most(timeline))}:"
        f" {amount(used * charge_factor)} {unit(charge_factor)} in total."
    ]
    if used:
        lines.append(
            f"Of these {hours[Use.TRAINING] / used:.0%} went into training, {hours[Use.WARMING] / used:.0%} into"
            f" starting scripts and waiting for others, and {hours[Use.IDLE] / used:.0%} were idle."
        )
    lines += [_trainers(trainers, sessions), _losses(timeline, trainers)]
    if use.u is not None:
        lines.append(
            f"It trained {use.u:.0%} of what dedicated nodes would have, as many as it held on average while it had"
            " trainers (U)."
        )
    return lines


def _trainers(trainers: Mapping[TrainerId, Trainer], sessions: Container[TrainerId]) -> str:
    if not trainers:
        return "Nothing was submitted."
    phases = Counter(trainer.phase for trainer in trainers.values())
    ends = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    samples = sum(trainer.samples for name, trainer in trainers.items() if name in sessions)
    steps = sum(trainer.samples for name, trainer in trainers.items() if name not in sessions)
    done = [counted(samples, "sample")] if samples or not steps else []
    done += [f"{counted(steps, 'step')} of torchrun processes"] if steps else []
    return f"{counted(len(trainers), 'trainer')} ({ends}) processed {' and '.join(done)}."


def _losses(timeline: Timeline, trainers: Mapping[TrainerId, Trainer]) -> str:
    fates = Counter(mark.fate for mark in timeline.marks)
    if not fates[Fate.GONE] and not fates[Fate.LOST]:
        return "No node was preempted or lost."
    lost = sum(trainer.counts.lost_steps for trainer in trainers.values())
    went = f"Preempted with notice: {node_count(fates[Fate.GONE])}; lost without notice: {node_count(fates[Fate.LOST])}"
    return f"{went}; {counted(lost, 'step') if lost else 'no step'} had to be repeated."


def _most(timeline: Timeline) -> int:
    """The most nodes that were there at once."""
    changes: Counter[float] = Counter()
    for span in timeline.spans:
        changes[span.start_s] += 1
        changes[span.end_s] -= 1
    most = now = 0
    for at_s in sorted(changes):
        now += changes[at_s]
        most = max(most, now)
    return most
