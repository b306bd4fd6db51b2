"""One replay from its files and options, and many of them in parallel processes."""

from __future__ import annotations

import functools
import math
import multiprocessing
import multiprocessing.synchronize
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.errors import PilotError, UserError
from pilot.core.ids import natural_key
from pilot.core.plan.arrivals import ARRIVALS_S
from pilot.core.plan.objective import Objective
from pilot.core.pool.pool import NODE_ORDERS, TOPOLOGY, hostname_order
from pilot.core.pool.topology import Topology
from pilot.core.trainer.spec import Profiling
from pilot.host.system import die_with_parent
from pilot.planners import TIMED, TYPED, make, usual_objective
from pilot.protocol.pool_status import Answer
from pilot.research.gpu_packing import GpuNodes
from pilot.research.sim.accounting import Account, Accounting, TrainerTimes, times_of
from pilot.research.sim.driver import Completions, SimConfig, Simulation
from pilot.research.sim.knowledge import TRUTH, Knowledge, ReadCurves, objective_name
from pilot.research.sim.metrics import U_IN_WORDS, Summary, summarize
from pilot.research.sim.records import SolveRecord
from pilot.research.sim.remarks import remarks
from pilot.research.traces.changes import Change, read_changes, still_pool, types_of, with_ends, with_types
from pilot.research.traces.fragments import Floats
from pilot.research.traces.workload import Mishaps, WorkloadRow, befallen, read_curves, read_workload
from pilot.site.hostlist import NodePattern

GIVEN = "given"
"""The objective of the curves file (``objective_per_s``), else the planner's default."""
TOLD, IGNORED = "told", "ignored"
"""Whether plans tell types of nodes apart."""
BUSIEST_MAX = 40
"""Most trainers whose node counts over time are kept: a figure shows no more."""

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of a replay. ``events`` None: the pool does not change. ``until_s`` None: to the trace's last event
    (FreeTrain eq. 17), or until all trainers have ended. ``sizes``: the node counts allowed for all trainers, within
    their bounds; empty: those in the file. ``only_nodes``: use only the trace's nodes that match this pattern; empty:
    all. ``topology``: a site's topology, for the node order of that name.
    """

    events: Path | None
    trainers: Path
    curves: Path
    until_s: float | None = None
    sizes: tuple[int, ...] = ()
    only_nodes: str = ""
    topology: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """The options of one replay; each may be swept."""

    planner: str = "milp"  #: the planner's name
    solver: str = "cbc"  #: the solver's name
    objective: str = GIVEN  #: its name; `given`: the one in the curves file
    t_fwd_s: float = 120.0  #: forward-looking time
    max_parallel: int | None = None  #: most trainers that share the pool at a time; null: sized from the pool
    longest_wait_s: float = 0.0  #: after this time without nodes a trainer has its turn; 0: no turns
    rescale_scale: float = 1.0  #: factor of all rescale costs
    solver_latency_s: float = 0.0  #: how long a plan takes
    node_order: str = "hostname"  #: the order in which nodes are handed out and taken back
    accounting: str = Accounting.PAPER.value  #: how a rescale is paid for
    completions: str = Completions.AT_ONCE.value  #: when the core learns of completions and arrivals
    on_curve: int | None = None  #: the number of the scaling curve that all trainers get; null: each keeps its own
    budget: float | None = None  #: node-hours after which the pool drains; null: no limit
    decide_every_s: float | None = None  #: plans are made at multiples of this; null: at every event
    nodes: int | None = None  #: size of a fixed pool; null: the pool is the trace's
    #: the nodes are GPUs, this many to a real node, in name order; null: they are real nodes
    gpus_per_node: int | None = None
    eta_noise: float = 0.0  #: relative error of the remaining work, see :class:`pilot.research.traces.workload.Mishaps`
    hang_share: float = 0.0  #: share of trainers that hang
    fail_share: float = 0.0  #: share of trainers that fail
    cancel_share: float = 0.0  #: share of trainers that are cancelled
    scale_up_delay_s: float = 0.0  #: delay of starts and of added nodes
    #: the core's knowledge of the curves: `truth`, a guess (`guess:linear` and others), or `measured` ones
    know: str = TRUTH
    profile: str | None = None  #: `auto`, `inverse` or `never`; null: nothing is measured
    #: relative standard deviation of reported rates from the true ones; null: nothing is measured
    measure_noise: float | None = None
    seed: int = 1  #: seed of everything random: guesses, noise, mishaps
    share_curves: bool = False  #: trainers on one curve share measurements
    known_ends: float = 0.0  #: share of the leaving nodes whose time of leaving is known from when they join
    node_types: str = TOLD  #: `told`: plans tell the trace's types of nodes apart; `ignored`: all nodes count as alike


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of one case; all but the summary is for plots and files, and ``solves`` contain wall-clock times."""

    case: Case
    summary: Summary
    columns: dict[str, Floats]
    solves: tuple[SolveRecord, ...]
    busiest: tuple[Account, ...]
    times: tuple[TrainerTimes, ...]


class ReplayAnswer(Answer, frozen=True):
    """One replay."""

    case: Case  #: the replay's options
    summary: Summary  #: its results
    efficiency_is: str  #: the definition of `efficiency`, in words
    remarks: list[str]  #: what to know when reading the numbers


class ReplayList(Answer, frozen=True):
    """The output of `pilot replay --json`, which is deterministic."""

    replays: list[ReplayAnswer]  #: the replays in the order of the option values

    @classmethod
    def of(cls, replays: Iterable[Replay]) -> ReplayList:
        """The printed part of ``replays``."""
        answers = [
            ReplayAnswer(
                case=r.case,
                summary=r.summary,
                efficiency_is=U_IN_WORDS.format(unit=r.summary.unit),
                remarks=list(remarks(r.summary)),
            )
            for r in replays
        ]
        return cls(replays=answers)


ObjectiveOf = Callable[[str], Objective]
"""Maps an objective's name to the objective."""


def run_case(
    inputs: Inputs,
    case: Case,
    objective_of: ObjectiveOf,
    solve_limit_s: float,
    stop: Callable[[], bool],
    tick: Callable[[float], None],
) -> Replay:
    """Replay ``case``; ``tick`` is called with the share done so far, and ``stop`` can end it early. Raises UserError
    if something is wrong with a file or an option."""
    curves = read_curves(inputs.curves)
    submissions = _workload(inputs, case, curves)
    changes, until_s = _pool(inputs, case, submissions)
    told = case.node_types == TOLD and len({of.name for of in types_of(changes).values()}) > 1
    if told and case.planner not in TYPED:
        raise UserError(f"--planner {case.planner} cannot tell types of nodes apart; add --node-types ignored")
    profile = Profiling(case.profile) if case.profile is not None else Profiling.NEVER
    config = SimConfig(
        until_s,
        Accounting(case.accounting),
        Completions(case.completions),
        case.solver_latency_s,
        case.scale_up_delay_s,
        Knowledge(case.know, curves, profile, case.seed, case.share_curves),
        case.measure_noise or 0.0,
    )
    planner = make(case.planner, case.solver, solve_limit_s)
    gpus = _gpu_nodes(changes, case.gpus_per_node) if case.gpus_per_node is not None else None
    topology = _topology(inputs, case)
    core = Coordinator(replace(_core_config(case, objective_of, curves), packing=gpus, topology=topology, typed=told))
    simulation = Simulation(core, planner, changes, submissions, config)
    complete = simulation.run(stop, lambda now_s: tick(_share_done(simulation, now_s)))
    submitted = sum(submission.submit_s <= simulation.now_s for submission in submissions)
    records = simulation.records
    summary = summarize(records, simulation.accounts, config.accounting, submitted, complete, gpus is not None)
    accounts = simulation.accounts.values()
    times = tuple(times_of(accounts))
    return Replay(case, summary, records.columns(), tuple(records.solves), _busiest(accounts), times)


def _pool(inputs: Inputs, case: Case, submissions: Sequence[WorkloadRow]) -> tuple[list[Change], float]:
    """The changes of the pool, and the time up to which they are replayed."""
    if inputs.events is not None:
        changes = read_changes(inputs.events)
        until_s = changes[-1].time_s if inputs.until_s is None else inputs.until_s
        if inputs.only_nodes:
            changes = _only(changes, inputs)
        if until_s <= 0:
            raise UserError(f"{inputs.events}: all events are at time 0; give the length of the replay (--hours)")
        return with_ends(changes, case.known_ends, case.seed) if case.known_ends else changes, until_s
    nodes = case.nodes or 1
    for row in submissions:
        if row.spec.min_nodes > nodes:
            raise UserError(f"trainer {row.spec.trainer} needs {row.spec.min_nodes} nodes, and the pool has {nodes}")
    if inputs.until_s is None and case.hang_share:
        raise UserError("trainers that hang never end; give the length of the replay (--hours)")
    return [still_pool(nodes)], math.inf if inputs.until_s is None else inputs.until_s


def _only(changes: Sequence[Change], inputs: Inputs) -> list[Change]:
    """The changes of the nodes that match ``inputs.only_nodes``."""
    matches = NodePattern.read(inputs.only_nodes).matches
    parts = [Change(c.time_s, tuple(filter(matches, c.joined)), tuple(filter(matches, c.left))) for c in changes]
    if found := [part for part in parts if part.joined or part.left]:
        return with_types(found, types_of(changes))
    raise UserError(f"{inputs.events}: it has no node that matches --only-nodes {inputs.only_nodes}")


def _gpu_nodes(changes: Sequence[Change], per_node: int) -> GpuNodes:
    """Group all units that ever join into nodes of ``per_node`` GPUs, in the order of their names."""
    names = sorted({unit for change in changes for unit in change.joined}, key=natural_key)
    if len(names) % per_node:
        raise UserError(f"{len(names)} GPUs cannot be divided into nodes of {per_node} (--gpus-per-node)")
    host = {unit: number // per_node for number, unit in enumerate(names)}
    return GpuNodes(host.__getitem__, per_node)


def _topology(inputs: Inputs, case: Case) -> Topology | None:
    if case.node_order != TOPOLOGY:
        return None
    if case.gpus_per_node is not None:
        raise UserError("--node-order topology is about nodes; with --gpus-per-node the units of the pool are GPUs")
    if not inputs.topology:
        raise UserError("--node-order topology: give --site, the name or file of a site with a topology")
    return Topology(inputs.topology)


def _share_done(simulation: Simulation, now_s: float) -> float:
    """The share of the time, or of the trainers if the time is open-ended."""
    until_s = simulation.config.until_s
    return now_s / until_s if math.isfinite(until_s) else simulation.ended / simulation.submitted


def _busiest(accounts: Collection[Account]) -> tuple[Account, ...]:
    """The accounts of the trainers that did the most, in the order in which they were admitted."""
    busiest = {account.trainer for account in sorted(accounts, key=lambda account: -account.done)[:BUSIEST_MAX]}
    return tuple(account for account in accounts if account.trainer in busiest)


def _core_config(case: Case, objective_of: ObjectiveOf, curves: ReadCurves) -> CoordinatorConfig:
    return CoordinatorConfig(
        case.t_fwd_s,
        case.max_parallel,
        objective_of(_objective(case, curves)),
        NODE_ORDERS.get(case.node_order, hostname_order),
        arrivals_s=ARRIVALS_S,
        longest_wait_s=case.longest_wait_s or math.inf,
        budget_node_hours=case.budget,
        timed=case.planner in TIMED,
        decide_every_s=case.decide_every_s or 0.0,
    )


def _objective(case: Case, curves: ReadCurves) -> str:
    """The objective's name, for trainers without values of their own: all those whose curves the core does not know."""
    if case.objective != GIVEN:
        return case.objective
    return (objective_name(curves) if case.know != TRUTH else None) or usual_objective(case.planner)


def _workload(inputs: Inputs, case: Case, curves: ReadCurves) -> list[WorkloadRow]:
    submissions = [s.rescaled(case.rescale_scale) for s in read_workload(inputs.trainers, inputs.curves)]
    if inputs.sizes:
        submissions = [s.sized(inputs.sizes) for s in submissions]
    mishaps = Mishaps(case.eta_noise, case.hang_share, case.fail_share, case.cancel_share, case.seed)
    submissions = befallen(submissions, mishaps)
    if case.on_curve is not None:
        if not 0 <= case.on_curve < len(curves):
            raise UserError(f"{inputs.curves}: no curve {case.on_curve}; it has 0 to {len(curves) - 1}")
        submissions = [s.on_curve(case.on_curve, curves) for s in submissions]
    if case.objective != GIVEN:
        submissions = [replace(s, spec=replace(s.spec, objective_curve=None)) for s in submissions]
    return submissions


# --- many at once -----------------------------------------------------------------------------------------------------


def run_sweep(
    inputs: Inputs,
    cases: Sequence[Case],
    objective_of: ObjectiveOf,
    solve_limit_s: float,
    processes: int,
    progress: Callable[[float], None],
) -> list[Replay]:
    """Replay ``cases`` in parallel; ``progress`` is called with the overall share done so far.

    Ctrl-C stops running cases and skips those that have not started; each summary has the time that it reached. Raises
    UserError if something is wrong with a file or an option. Raises PilotError if a process was killed.
    """
    context = multiprocessing.get_context("spawn")
    stop, shares = context.Event(), context.Array("d", len(cases), lock=False)
    with ProcessPoolExecutor(processes, context, _begin_process, (stop, shares, os.getpid())) as pool:
        run = functools.partial(_run_in_process, inputs, objective_of, solve_limit_s)
        with _ignoring_ctrl_c():
            futures = [pool.submit(run, index, case) for index, case in enumerate(cases)]
        try:
            for _ in _until_done(futures):
                progress(math.fsum(shares) / len(cases))
        except BaseException as error:
            # A second signal must not interrupt the cleaning up: timeout sends one to the process and one to its group.
            with _ignoring_ctrl_c():
                stop.set()
                pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                reason = "a process of the replay was killed, perhaps for lack of memory"
                raise PilotError(f"{reason}; --processes limits how many run") from None
            if not isinstance(error, KeyboardInterrupt):
                raise
    return [future.result() for future in futures if not future.cancelled()]


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C, which reaches the process group; processes started in this block inherit this setting."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _until_done(futures: Sequence[Future[Replay]]) -> Iterator[None]:
    """Yield after each wait until all are done; the first error is raised at once."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=POLL_S)
        for future in done:
            future.result()
        yield


_process: list[tuple[Callable[[], bool], Callable[[int, float], None]]] = []
"""The arguments of this process: whether to stop, and how to report its progress."""


def _begin_process(stop: multiprocessing.synchronize.Event, shares: list[float], parent: int) -> None:
    die_with_parent(parent)
    for number in (signal.SIGTERM, signal.SIGHUP):  # the process group gets them; the parent handles them
        signal.signal(number, lambda *_: None)
    _process.append((stop.is_set, shares.__setitem__))


def _run_in_process(inputs: Inputs, objective_of: ObjectiveOf, solve_limit_s: float, index: int, case: Case) -> Replay:
    ((stop, report),) = _process
    replay = run_case(inputs, case, objective_of, solve_limit_s, stop, functools.partial(report, index))
    report(index, 1.0)
    return replay
