"""Random small replays, every planner with every option: they end, add up, and are reproducible."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.planners import NAMES, SOLVERS
from pilot.research.sim import sweep
from pilot.research.sim.driver import Simulation
from pilot.research.sim.sweep import Case, Inputs, Replay, run_case
from pilot.research.traces.changes import Change, write_changes
from pilot.service.settings import load_objective
from tests.invariants import violations

QUICK, MANY = range(2 * len(NAMES)), range(400)
POWERS = (1, 2, 4, 8)
HEADER = "trainer,submit_s,min_nodes,max_nodes,rescale_up_s,rescale_down_s,samples,curve"
KNOWN = ("truth", "guess:linear", "guess:huawei", "guess:other", "guess:1", "guess:factor", "measured")
SAME = (0.0, 0.0, 0.0, 0.3)
"""Fault rates: mostly zero."""


class Checked(Simulation):
    """The core's invariants hold at each time."""

    def _step(self, now_s: float) -> None:
        super()._step(now_s)
        assert violations(self.core) == []


def changes(rng: random.Random) -> list[Change]:
    """Nodes come and go, some at the same time, down to none at all."""
    here, now_s, number = [NodeId("n0")], 0.0, 1
    made = [Change(0.0, joined=tuple(here))]
    while now_s < 2000:
        now_s += rng.choice((1.0, rng.uniform(1, 400)))
        left = rng.sample(here, rng.randint(0, len(here)) if rng.random() < 0.6 else 0)
        joined = [NodeId(f"n{number + i}") for i in range(rng.choice((0, 1, 2, 5)))]
        number += len(joined)
        if left or joined:
            made.append(Change(now_s, tuple(joined), tuple(left)))
        here = [node for node in here if node not in left] + joined
    return made


def write(folder: Path, rng: random.Random) -> Inputs:
    """A trace, trainers and curves, some of which are not concave."""
    write_changes(folder / "events.csv", changes(rng))
    rows = []
    for number in range(rng.randint(1, 7)):
        low = rng.choice((1, 1, 1, 2))
        costs = [rng.choice((0.0, rng.uniform(0, 60))) for _ in "ud"]
        samples = rng.choice((10.0, rng.uniform(100, 50_000)))
        row = (f"t{number}", rng.choice((0, 5, 700)), low, low * rng.choice((1, 2, 4)), *costs, samples)
        rows.append(",".join(map(str, (*row, rng.randint(0, 1)))))
    (folder / "trainers.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    bent = {"nodes": [0, 1, 2, 4, 8], "samples_per_s": [0, 5, 9, 8.5, 22]}
    straight = {"nodes": [0, 1, 4, 8], "samples_per_s": [0, 10, 36, 64]}
    (folder / "curves.json").write_text(json.dumps([straight, bent]))
    sizes = rng.choice(((), (), POWERS))
    return Inputs(folder / "events.csv", folder / "trainers.csv", folder / "curves.json", 2500.0, sizes)


def case(rng: random.Random, planner: str) -> Case:
    """Any compatible options."""
    know = rng.choice(KNOWN)
    still = rng.random() < 0.2
    made = Case(
        planner,
        rng.choice(SOLVERS[:1] + SOLVERS[2:]),
        rng.choice(("throughput", "scaling-efficiency", "priority")),
        t_fwd_s=rng.choice((10.0, 120.0, 1e6)),
        max_parallel=rng.choice((1, 3, 10)),
        rescale_scale=rng.choice((0.0, 1.0, 20.0)),
        solver_latency_s=rng.choice((0.0, 0.0, 45.0)),
        node_order=rng.choice(("hostname", "join")),
        accounting=rng.choice(("paper", "physical")),
        completions=rng.choice(("at-once", "at-once", "at-node-events")),
        on_curve=rng.choice((None, None, 1)),
        budget=rng.choice((None, None, 0.5)),
        decide_every_s=rng.choice((None, 60.0, 300.0)),
        nodes=rng.randint(2, 9) if still else None,
        gpus_per_node=rng.choice((None, None, 1)),
        eta_noise=rng.choice(SAME),
        hang_share=rng.choice(SAME),
        fail_share=rng.choice(SAME),
        cancel_share=rng.choice(SAME),
        scale_up_delay_s=rng.choice((0.0, 15.0)),
        know=know,
        seed=rng.randint(0, 99),
        known_ends=0.0 if still else rng.choice((0.0, 0.5, 1.0)),
    )
    if know != "measured":
        return made
    profile, noise = rng.choice(("auto", "inverse", "never")), rng.choice((0.0, 0.03, 1.0))
    return replace(made, profile=profile, measure_noise=noise, share_curves=rng.random() < 0.5)


def replayed(inputs: Inputs, given: Case) -> Replay | str:
    """The result, or what is wrong with the input."""
    if given.nodes is not None:
        inputs = replace(inputs, events=None)
    try:
        return run_case(inputs, given, load_objective, 10.0, lambda: False, lambda _: None)
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.long) for seed in MANY[len(QUICK) :])])
def test_a_replay_ends_adds_up_and_gives_the_same_twice(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "Simulation", Checked)
    rng = random.Random(seed)
    inputs, given = write(tmp_path, rng), case(rng, NAMES[seed % len(NAMES)])
    made, again = (replayed(inputs, given) for _ in range(2))
    if isinstance(made, str):
        assert made == again and "needs 2 nodes" in made
        return
    assert isinstance(again, Replay)
    assert repr(asdict(made.summary)) == repr(asdict(again.summary))
    assert [(c.trainer, c.changes) for c in made.busiest] == [(c.trainer, c.changes) for c in again.busiest]
    summary = made.summary
    assert summary.complete and summary.completed <= summary.submitted
    assert all(math.isfinite(value) for value in asdict(summary).values() if isinstance(value, float))
    assert 0 <= summary.used <= 1 + 1e-9
    assert (made.columns["used"] <= made.columns["pool"]).all()
    held = {nodes for account in made.busiest for _, nodes in account.changes}
    assert held <= {0, *POWERS} or not inputs.sizes
