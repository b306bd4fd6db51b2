"""What the coordinator reports about its pool: the answers of ``pilot status`` and ``pilot ls``, also with ``--json``.

docs/json.md is generated from these names, types and docstrings. Times are in seconds on the pool's clock, which is 0
when the pool began and keeps running while its coordinator is restarted.
"""

from __future__ import annotations

import msgspec

from pilot.core.curve_model import Estimate
from pilot.core.problem import PlanStatus
from pilot.core.proof import ProofState
from pilot.core.trainer import Phase


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the coordinator's reports. A reader ignores fields that it does not know."""


class TrainerStatus(Told, frozen=True):
    """One trainer.

    Parameters
    ----------
    trainer : its name
    uid : its unique identity across pools and names, 32 hexadecimal digits; its checkpoints carry it
    phase : its current phase
    reason : why it is in this phase; for a failed trainer with the last lines of its traceback; may be empty
    directory : its folder on the coordinator's host, with `logs/` and `checkpoints/`
    nodes : the nodes that are training, rank 0 first; may be empty
    target : the nodes that the last plan gave it
    warming : the nodes on which its script has started but is not ready to train yet
    min_nodes : the fewest nodes on which it runs, as submitted
    max_nodes : the most nodes on which it runs, as submitted
    fixed_curve : whether plans always use the submitted curve
    generation : number of its group, incremented at every regroup; 0 before the first
    step : optimizer steps done
    steps : total number of steps, if its loop counts steps; null: it does not, or has not started
    epoch : its current epoch, from 0
    epochs : total number of epochs, if its loop counts epochs; null: it does not, or has not started
    samples : samples used, over all epochs
    samples_per_s : its rate on its current nodes; null if there are none or nothing was measured yet
    measured_samples_per_s : rates by number of nodes, as measured
    scaling : its rates by number of nodes as plans assume them, measured or estimated; empty: none yet
    rescale_up_s : the pause for a change to more nodes as the planner assumes it: measured; otherwise as measured for
        the pool's other trainers; otherwise as submitted or assumed
    rescale_down_s : the same for a change to fewer nodes
    metrics : the latest metrics that the script reported, such as `loss`, and the learning rate; null for one that is
        not a finite number
    elapsed_s : since it first trained (before that: since it was submitted), until now or its end
    left_s : time to the end of its loop at its current rate; null: not known. A script may end earlier
    waits : what it is waiting for, in words; empty: nothing
    rescales_up : planned changes to more nodes
    rescales_down : planned changes to fewer nodes
    preemptions : nodes preempted with notice while they belonged to it
    losses : nodes lost without notice while they belonged to it
    worker_deaths : training processes that ended unexpectedly
    lost_steps : completed steps that had to be repeated because no rank survived
    redone_steps : all steps that were repeated
    longest_stall_s : the longest pause between two steps
    held : why it gets no nodes, for example because a user holds it; empty: plans may include it
    node_seconds : time that it had workers on nodes, summed over the nodes
    used_node_hours : the same as charged by the site: hours on nodes times the charge factor
    budget_node_hours : limit of these, after which it stops; null: no limit
    checkpoints_kept : how many of its newest checkpoints are kept; null: the site's number, or not known
    submitted_s : when it was submitted
    started_s : when it first trained; null: not yet
    ended_s : when it ended; null: not yet
    remarks : messages for the user, newest last
    check : how far the check of its script is: `off`, `waiting`, `running`, `passed`, `differs` or `unchecked`
    check_text : what it found, or why nothing was checked, in words; empty: nothing to say
    """

    trainer: str
    uid: str
    phase: Phase
    reason: str
    directory: str
    nodes: list[str]
    target: list[str]
    warming: list[str]
    min_nodes: int
    max_nodes: int
    fixed_curve: bool
    generation: int
    step: int
    steps: int | None
    epoch: int
    epochs: int | None
    samples: int
    samples_per_s: float | None
    measured_samples_per_s: dict[int, float]
    scaling: list[Estimate]
    rescale_up_s: float
    rescale_down_s: float
    metrics: dict[str, float | None]
    elapsed_s: float
    left_s: float | None
    waits: str
    rescales_up: int
    rescales_down: int
    preemptions: int
    losses: int
    worker_deaths: int
    lost_steps: int
    redone_steps: int
    longest_stall_s: float
    held: str
    node_seconds: float
    used_node_hours: float
    budget_node_hours: float | None
    checkpoints_kept: int | None
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    remarks: list[str]
    check: ProofState
    check_text: str


class HeldNode(Told, frozen=True):
    """A node on which a trainer had a worker.

    Parameters
    ----------
    node : its name in the pool: the host's and the pilot's
    job : the batch scheduler's id of its job; empty if there is none
    from_s : since when
    until_s : until when; null: it still has one
    """

    node: str
    job: str
    from_s: float
    until_s: float | None


class TrainerHistory(Told, frozen=True):
    """The answer of ``pilot status NAME``.

    Parameters
    ----------
    began_unix_s : the time of day at 0 on the pool's clock, in seconds since 1970
    now_s : the current time on the pool's clock
    charge_factor : what the site charges for a node-hour
    trainer : its current status
    held_nodes : which nodes it had when: the newest 200 that it gave back, and its current ones
    """

    began_unix_s: float
    now_s: float
    charge_factor: float
    trainer: TrainerStatus
    held_nodes: list[HeldNode]


class NodeStatus(Told, frozen=True):
    """One node of the pool.

    Parameters
    ----------
    node : its name in the pool: the host's and the pilot's
    host : its host's name
    job : the batch scheduler's id of its job; empty if there is none
    trainer : the trainer whose worker runs on it or is planned for it; null: it is free
    leaving : whether it got a preemption notice
    set_aside : whether it is not used for a while, because trainers failed on it that work elsewhere
    joined_s : when it joined
    ends_s : when it will have left, on the pool's clock; null: that is not known
    """

    node: str
    host: str
    job: str
    trainer: str | None
    leaving: bool
    set_aside: bool
    joined_s: float
    ends_s: float | None = None


class SetAsideStatus(Told, frozen=True):
    """A node that is not used for a while.

    Parameters
    ----------
    node : its name in the pool
    trainer : the trainer that does not use it; null: none does
    left_s : time until it is tried again
    reason : what failed there, in one line
    """

    node: str
    trainer: str | None
    left_s: float
    reason: str


class PilotStatus(Told, frozen=True):
    """One pilot that registered.

    Parameters
    ----------
    node : its name in the pool
    host : its host's name; empty if not reported yet after a restart of the coordinator
    pilot : its own name, which is new in each life of it
    job : the batch scheduler's id of its job; empty if there is none
    pid : the process id of its agent on its host; null if not reported yet
    connected : whether it is connected now
    notice : why it is about to leave; empty: it stays
    heard_ago_s : time since it was last heard from
    joined_s : when it joined
    """

    node: str
    host: str
    pilot: str
    job: str
    pid: int | None
    connected: bool
    notice: str
    heard_ago_s: float
    joined_s: float


class KeeperStatus(Told, frozen=True):
    """The pool's jobs in the queue, and what prevents submitting more.

    Parameters
    ----------
    scheduler : its name, such as `slurm`
    wanted_nodes : how many nodes the pool should have
    pending : queued jobs, without those that are leaving
    running : running jobs, without those that are leaving
    waited_s : how long the first queued job has been waiting; null: none is queued
    expected_unix_s : when the scheduler expects the first of them to start, in seconds since 1970; null: unknown
    leaving : jobs that were cancelled, preempted or suspended, or that may be over
    suspended : how many of those are suspended
    waits_for : why most queued jobs are waiting, in the scheduler's words; empty: unknown
    others : other users' jobs that count against the site's limit
    idle_nodes : idle nodes that no job is waiting for; null: unknown
    planned_nodes : nodes that are idle until another job starts on them
    endings : number of jobs that ended, by kind of end, such as `preempted`
    trouble : what is wrong with the scheduler; empty: nothing
    held_back : why no more jobs are submitted; empty: no reason
    """

    scheduler: str = ""
    wanted_nodes: int = 0
    pending: int = 0
    running: int = 0
    waited_s: float | None = None
    expected_unix_s: float | None = None
    leaving: int = 0
    suspended: int = 0
    waits_for: str = ""
    others: int = 0
    idle_nodes: int | None = None
    planned_nodes: int = 0
    endings: dict[str, int] = {}
    trouble: str = ""
    held_back: str = ""


class TimeSummary(Told, frozen=True):
    """How long something took, over all its runs.

    Parameters
    ----------
    median : in the unit of the field that holds it
    max : the longest, in the same unit
    """

    median: float
    max: float


class SolveStatus(Told, frozen=True):
    """How plans are made.

    Parameters
    ----------
    count : plans made
    failed : problems for which the planner gave no plan
    last_status : of the last plan: proved optimal, the best one found within the time limit, or the present allocation
        kept; null: none
    planner : the planner of the last plan; null: none
    build_s : time to build the problem; null before the first plan
    solve_s : time to solve it; null before the first plan
    answer_s : time from the request to the plan, including processes and queues; null before the first plan
    """

    count: int
    failed: int
    last_status: PlanStatus | None
    planner: str | None
    build_s: TimeSummary | None
    solve_s: TimeSummary | None
    answer_s: TimeSummary | None


class DecisionStatus(Told, frozen=True):
    """A plan that changed what a trainer gets.

    Parameters
    ----------
    at_s : when
    text : what changed, in words
    """

    at_s: float
    text: str


class UtilisationStatus(Told, frozen=True):
    """The pool's efficiency, over the time in which it had trainers (FreeTrain eqs 17-18).

    Parameters
    ----------
    u : `work` / `static_work`; null: nothing to compare with
    eq_nodes : the mean number of nodes
    work : what the listed trainers did, computed from their curves and their time on each node count, in node-seconds
        at the speed of one node
    static_work : what they would have done on `eq_nodes` dedicated nodes; null: not computed, because there were too
        many different sets of trainers
    """

    u: float | None
    eq_nodes: float
    work: float
    static_work: float | None


class PoolStatus(Told, frozen=True):
    """All of ``pilot status``.

    Parameters
    ----------
    coordinator : the pool's name; unchanged by a restart of its coordinator
    site : the site's name
    endpoint : where the coordinator listens
    run_dir : the pool's run directory, on the coordinator's host
    only_nodes : the nodes that it may use, as given; empty: any
    objective : what its plans maximise
    up : whether a coordinator serves the pool; false: this was read from its journal and does not change any more
    began_unix_s : the time of day at 0 on the pool's clock, in seconds since 1970
    now_s : what the pool's clock shows
    draining : whether the pool is being shut down
    node_seconds : seconds that nodes were in the pool, summed over the nodes
    ended_kept : how many ended trainers are listed, the last ones; `pilot report` has them all
    charge_factor : what the site charges for a node-hour
    used_node_hours : as charged by the site, since the pool came up
    budget_node_hours : limit of these, after which it drains; null: no limit
    pool : its nodes, in the order of joining
    trainers : in the order of submission
    decisions : the last plans that changed something, newest last
    solves : how plans are made
    utilisation : the pool's efficiency
    keeper : its jobs in the queue
    trouble : why decisions do not take effect at the moment: there is no space for the journal. Training continues
    remarks : messages for the user that concern no trainer, newest last
    damage : what of the pool's files was damaged or lost when its coordinator last started
    """

    coordinator: str
    site: str
    endpoint: str
    run_dir: str
    only_nodes: str
    objective: str
    up: bool
    began_unix_s: float
    now_s: float
    draining: bool
    node_seconds: float
    ended_kept: int
    charge_factor: float
    used_node_hours: float
    budget_node_hours: float | None
    pool: list[NodeStatus]
    trainers: list[TrainerStatus]
    decisions: list[DecisionStatus]
    solves: SolveStatus
    utilisation: UtilisationStatus
    keeper: KeeperStatus
    trouble: str
    remarks: list[str]
    damage: list[str] = []

    def trainer(self, name: str) -> TrainerStatus:
        """The trainer of this name, which must exist."""
        return next(trainer for trainer in self.trainers if trainer.trainer == name)
