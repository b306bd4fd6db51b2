"""A pool's life in a few sentences and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from pilot.core.budget import HOUR_S, unit
from pilot.core.ids import TrainerId
from pilot.core.trainer import Phase, Trainer
from pilot.observation.timeline import Fate, Timeline, Use
from pilot.observation.utilisation import Utilisation
from pilot.observation.words import amount, counted, duration, node_count


@dataclass(frozen=True, slots=True)
class Summary:
    """What the sentences say.

    Parameters
    ----------
    lasted_s : from the pool's start to the end of its journal
    most_nodes : the most held at once
    node_hours : by use, before the charge factor; nodes that left count for as long as they were there
    charge_factor : what the site charges for a node-hour
    samples : processed and kept by trainers with a session
    steps : done by processes of torchrun scripts
    phases : how many trainers are in each phase
    fates : how often each thing happened to a node
    lost_steps : completed steps that had to be repeated
    u : see :class:`~pilot.observation.utilisation.Utilisation`; None if unknown
    """

    lasted_s: float
    most_nodes: int
    node_hours: Mapping[Use, float]
    charge_factor: float
    samples: int
    steps: int
    phases: Mapping[Phase, int]
    fates: Mapping[Fate, int]
    lost_steps: int
    u: float | None

    @property
    def all_node_hours(self) -> float:
        """Summed over all uses."""
        return sum(self.node_hours.values())


def summarise(
    timeline: Timeline,
    trainers: Mapping[TrainerId, Trainer],
    use: Utilisation,
    charge_factor: float,
    sessions: Container[TrainerId],
) -> Summary:
    """The summary of a pool from its ``timeline`` and the state of its ``trainers`` at the end; ``sessions`` are the
    trainers that have one.
    """
    node_hours = dict.fromkeys(Use, 0.0)
    for span in timeline.spans:
        node_hours[span.use] += (span.end_s - span.start_s) / HOUR_S
    return Summary(
        lasted_s=timeline.end_s,
        most_nodes=_most(timeline),
        node_hours=node_hours,
        charge_factor=charge_factor,
        samples=sum(trainer.samples for name, trainer in trainers.items() if name in sessions),
        steps=sum(trainer.samples for name, trainer in trainers.items() if name not in sessions),
        phases=Counter(trainer.phase for trainer in trainers.values()),
        fates=Counter(mark.fate for mark in timeline.marks),
        lost_steps=sum(trainer.counts.lost_steps for trainer in trainers.values()),
        u=use.u,
    )


def sentences(name: str, site: str, summary: Summary) -> list[str]:
    """The summary in plain words, for readers who know neither the papers nor our terms."""
    used = summary.all_node_hours
    charged = f"{amount(used * summary.charge_factor)} {unit(summary.charge_factor)}"
    told = [
        f"The pool {name} on {site} was up for {duration(summary.lasted_s)} and held up to"
        f" {node_count(summary.most_nodes)}: {charged} in total."
    ]
    if used:
        training, starting, idle = (summary.node_hours[use] / used for use in (Use.TRAINING, Use.WARMING, Use.IDLE))
        told.append(
            f"Of these {training:.0%} went into training, {starting:.0%} into starting scripts and waiting for others,"
            f" and {idle:.0%} were idle."
        )
    told.append(_trainers(summary))
    told.append(_losses(summary))
    if summary.u is not None:
        told.append(
            f"It trained {summary.u:.0%} of what dedicated nodes would have, as many as it held on average while it had"
            " trainers (U)."
        )
    return told


def _trainers(summary: Summary) -> str:
    total = sum(summary.phases.values())
    if not total:
        return "Nothing was submitted."
    ends = ", ".join(f"{count} {phase}" for phase, count in summary.phases.items())
    steps = f"{counted(summary.steps, 'step')} of torchrun processes" if summary.steps else ""
    samples = counted(summary.samples, "sample") if summary.samples or not steps else ""
    done = " and ".join(filter(None, [samples, steps]))
    return f"{counted(total, 'trainer')} ({ends}) processed {done}."


def _losses(summary: Summary) -> str:
    taken, lost = summary.fates.get(Fate.GONE, 0), summary.fates.get(Fate.LOST, 0)
    if not taken and not lost:
        return "No node was preempted or lost."
    again = counted(summary.lost_steps, "step") if summary.lost_steps else "no step"
    went = f"Preempted with notice: {node_count(taken)}; lost without notice: {node_count(lost)}"
    return f"{went}; {again} had to be repeated."


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
