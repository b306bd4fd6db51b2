"""A pool's status as Prometheus metrics (text exposition format; https://prometheus.io/docs/instrumenting/)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pilot.core.trainer.trainer import Phase
from pilot.protocol.pool_status import PoolStatus, TrainerStatus

Value = Callable[[TrainerStatus], float | None]

GAUGES: dict[str, tuple[str, Value]] = {
    "nodes": ("Nodes that are training.", lambda t: len(t.nodes)),
    "nodes_target": ("Nodes that the last plan gave it.", lambda t: len(t.target)),
    "samples_per_second": ("Its rate on its current nodes.", lambda t: t.samples_per_s),
    "epoch": ("Its current epoch, from 0.", lambda t: t.epoch),
    "longest_stall_seconds": ("The longest pause between two steps.", lambda t: t.longest_stall_s),
}
COUNTERS: dict[str, tuple[str, Value]] = {
    "steps": ("Optimizer steps done.", lambda t: t.step),
    "samples": ("Samples used, over all epochs.", lambda t: t.samples),
    "preemptions": ("Nodes preempted with notice.", lambda t: t.preemptions),
    "losses": ("Nodes lost without notice.", lambda t: t.losses),
    "worker_deaths": ("Training processes that ended unexpectedly.", lambda t: t.worker_deaths),
    "lost_steps": ("Completed steps that had to be repeated.", lambda t: t.lost_steps),
}


class PoolCollector(Collector):
    """The metrics of one status."""

    def __init__(self, status: PoolStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """All families, the pool's first."""
        status, keeper = self._status, self._status.keeper
        yield GaugeMetricFamily("pilot_pool_nodes", "Nodes in the pool.", len(status.pool))
        yield GaugeMetricFamily("pilot_pool_wanted_nodes", "Nodes wanted.", keeper.wanted_nodes)
        yield CounterMetricFamily("pilot_pool_node_seconds", "Node-seconds of the pool.", status.node_seconds)
        if status.utilisation.u is not None:
            what = "Work done, relative to what as many dedicated nodes would have done (FreeTrain eq. 18)."
            yield GaugeMetricFamily("pilot_pool_utilisation_ratio", what, status.utilisation.u)
        jobs = GaugeMetricFamily("pilot_jobs", "The pool's jobs in the queue.", labels=["state"])
        for state, count in (("running", keeper.running), ("pending", keeper.pending), ("leaving", keeper.leaving)):
            jobs.add_metric([state], count)
        yield jobs
        ended = CounterMetricFamily("pilot_jobs_ended", "Jobs that have ended.", labels=["ending"])
        for ending, count in keeper.endings.items():
            ended.add_metric([ending], count)
        yield ended
        yield CounterMetricFamily("pilot_plans", "Plans made.", status.solves.count)
        yield from self._trainers()

    def _trainers(self) -> Iterator[Metric]:
        phases = GaugeMetricFamily("pilot_trainer_phase", "1 for its current phase.", labels=["trainer", "phase"])
        for trainer in self._status.trainers:
            for phase in Phase:
                phases.add_metric([trainer.trainer, phase], float(trainer.phase is phase))
        yield phases
        for kind, families in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, (what, value_of) in families.items():
                family = kind(f"pilot_trainer_{name}", what, labels=["trainer"])
                for trainer in self._status.trainers:
                    if (value := value_of(trainer)) is not None:
                        family.add_metric([trainer.trainer], value)
                yield family
        reported = GaugeMetricFamily(
            "pilot_trainer_metric", "Metrics reported by the script.", labels=["trainer", "name"]
        )
        for trainer in self._status.trainers:
            for name, value in trainer.metrics.items():
                reported.add_metric([trainer.trainer, name], math.nan if value is None else value)
        yield reported


def exposition(status: PoolStatus) -> str:
    """The text that a Prometheus server scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PoolCollector(status))
    return generate_latest(registry).decode()
