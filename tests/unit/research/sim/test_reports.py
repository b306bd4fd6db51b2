"""The rates that trainers report in a replay: as many, and as good, as the core needs to know what it knows live."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from statistics import fmean, stdev

import pytest

from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.curves.measured import LONGEST_S, Measured
from pilot.core.curves.profile import REPORTS
from pilot.core.events import Progress, SpeedsMeasured
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.plan.objective import throughput
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Group, Trainer
from pilot.planners import dp
from pilot.research.sim.accounting import Account
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.sim.knowledge import MEASURED, Knowledge
from pilot.research.sim.reports import EVERY_S, SETTLED_S, SPEEDS_EVERY_S, Reports
from pilot.research.traces.changes import still_pool
from pilot.research.traces.workload import WorkloadRow

T = TrainerId("t")
SPEC = TrainerSpec(T, 1, 4, Curve.of([(1, 10.0), (4, 40.0)]), fixed_curve=True, rescale_up_s=10.0)


def trainer_of(nodes: int, generation: int = 1) -> Trainer:
    return Trainer(
        SPEC, Measured(SPEC), group=Group(Generation(generation), tuple(NodeId(f"n{i}") for i in range(nodes)))
    )


def taken(reports: Reports, trainer: Trainer, until_s: float, from_s: float = 0.0) -> list[tuple[float, float]]:
    """The times and rates of all reports that come until then."""
    account = Account(WorkloadRow(SPEC, 0.0, 1e9, 0), 0.0)
    account.held = (len(trainer.members),)
    accounts = {T: account}
    reports.expect(from_s, trainer)
    found = []
    while (now_s := reports.due_s()) < until_s:
        came = reports.take(now_s, accounts, {T: trainer})
        found += [(now_s, report.samples_per_s or 0.0) for report in came if isinstance(report, Progress)]
        reports.expect(now_s, trainer)
    return found


def test_a_group_reports_for_as_long_as_it_trains_and_ever_less_often() -> None:
    times_s = [at_s for at_s, _ in taken(Reports(), trainer_of(2), 1e5)]
    waits_s = [after - before for before, after in pairwise(times_s)]
    assert times_s[:REPORTS] == [10.0 + EVERY_S * n for n in range(1, REPORTS + 1)], "its pause is over"
    assert max(waits_s[:15]) <= LONGEST_S and max(waits_s) == SETTLED_S and times_s[-1] > 1e5 - SETTLED_S - 1
    assert len(times_s) < REPORTS + 5 + 1e5 / SETTLED_S + SETTLED_S / LONGEST_S
    assert {at_s % SETTLED_S for at_s in times_s[-10:]} == {0.0}, "those of all groups in one step"


def test_a_new_group_and_a_count_that_is_measured_are_reported_at_once() -> None:
    reports = Reports()
    taken(reports, trainer_of(2), 600.0)
    later = taken(reports, trainer_of(3, generation=2), 640.0, from_s=605.0)
    assert later == [(615.0 + EVERY_S * n, 30.0) for n in range(1, len(later) + 1)] and len(later) >= REPORTS
    trainer = trainer_of(3, generation=2)
    taken(reports, trainer, 900.0)
    trainer.profile.begin(900.0, [3])
    trainer.profile.wanted = True
    measured = taken(reports, trainer, 925.0, from_s=900.0)
    assert [at_s for at_s, _ in measured if at_s > 901.0] == [900.0 + EVERY_S * n for n in range(1, 7)]


def test_what_the_core_knows_is_as_good_as_from_one_report_a_second() -> None:
    """After ten minutes: the rate's error as said, and its actual spread over many trainers."""
    sigma, found, live, errors = 0.03, [], [], []
    for seed in range(200):
        draw = Random(seed)
        ours, theirs = Measured(SPEC), Measured(SPEC)
        for at_s, rate in taken(Reports(sigma, draw), trainer_of(2), 610.0):
            ours.rate(at_s, 2, rate)
        for second in range(600):  # of each EVERY_S seconds as one report of a replay has
            theirs.rate(float(second), 2, 20.0 * math.exp(draw.gauss(0.0, sigma * math.sqrt(EVERY_S))))
        errors += [known.points[0].error for known in (ours, theirs)]
        found.append(ours.rates[2])
        live.append(theirs.rates[2])
    assert max(errors) < 0.035 and max(errors) - min(errors) < 0.003, "as said"
    assert fmean(found) == pytest.approx(20.0, rel=0.002) and fmean(live) == pytest.approx(20.0, rel=0.002)
    assert stdev(found) == pytest.approx(stdev(live), rel=0.3), "and as it is"


def test_a_group_that_makes_no_progress_or_is_gone_reports_nothing() -> None:
    idle = Account(WorkloadRow(SPEC, 0.0, 0.0, 0), 0.0)
    reports = Reports()
    reports.expect(0.0, trainer_of(2))
    assert reports.take(20.0, {T: idle}, {T: trainer_of(2)}) == [] and reports.due_s() == math.inf
    reports.expect(30.0, trainer_of(2, generation=2))
    assert reports.take(60.0, {}, {}) == [] and not reports.groups


def test_rates_that_come_late_reach_a_plan_in_a_calm_pool() -> None:
    """Two trainers share four nodes, and nothing else happens: what was measured is planned with all the same."""
    curves = [Curve.of(zip((1, 2, 3, 4), rates, strict=True)) for rates in ((10, 20, 30, 40), (10, 10.5, 11, 11.5))]
    specs = [TrainerSpec(TrainerId(f"t{i}"), 1, 4, curve, fixed_curve=True) for i, curve in enumerate(curves)]
    rows = [WorkloadRow(spec, 0.0, 1e12, i) for i, spec in enumerate(specs)]
    core = Coordinator(CoordinatorConfig(objective=throughput))
    simulation = Simulation(core, dp.plan, [still_pool(4)], rows, SimConfig(3600.0, knowledge=Knowledge(MEASURED)))
    assert simulation.run(lambda: False, lambda _: None)
    assert sum(account.rate for account in simulation.accounts.values()) == 40.0
    assert len(simulation.records.moments) > 3600 / SETTLED_S + 10, "reports come until the end"


def test_nodes_of_several_types_report_how_fast_they_compute_at_most_every_half_minute() -> None:
    account = Account(WorkloadRow(SPEC, 0.0, 1e9, 0, equal_shares=True), 0.0, speeds=(1.0, 0.25))
    account.held = (1, 1)
    kinds = {NodeId("n0"): 0, NodeId("n1"): 1}
    reports, found, rates = Reports(type_of=kinds), list[tuple[float, SpeedsMeasured]](), set[float | None]()
    for trainer, from_s, until_s in ((trainer_of(2), 0.0, 100.0), (trainer_of(2, generation=2), 105.0, 150.0)):
        reports.expect(from_s, trainer)
        while (now_s := reports.due_s()) < until_s:
            for report in reports.take(now_s, {T: account}, {T: trainer}):
                if isinstance(report, SpeedsMeasured):
                    found.append((now_s, report))
                else:
                    rates.add(report.samples_per_s)
    assert rates == {account.rate_on((1, 1))}
    assert [report.generation for _, report in found][:2] == [1, 1] and found[-1][1].generation == 2
    assert min(after - before for (before, _), (after, _) in pairwise(found)) >= SPEEDS_EVERY_S
    assert {report.per_s for _, report in found} == {((NodeId("n0"), 10.0), (NodeId("n1"), 2.5))}
    assert all(report.equal_shares for _, report in found)
