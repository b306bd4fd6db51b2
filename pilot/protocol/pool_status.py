"""What the coordinator reports about its pool: the answers of ``pilot status`` and ``pilot ls``, also with ``--json``.

docs/reference/json.md is generated from these names, types and docstrings. Times are in seconds on the pool's clock,
which is 0 when the pool began and keeps running while its coordinator is restarted.
"""

from __future__ import annotations

import msgspec

from pilot.core.curves.curve_model import Estimate
from pilot.core.plan.problem import PlanStatus
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.trainer import Phase


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the coordinator's reports. A reader ignores fields that it does not know."""


class TrainerStatus(Answer, frozen=True):
    """One trainer."""

    trainer: str  #: its name
    uid: str  #: its unique identity across pools and names, 32 hexadecimal digits; its checkpoints carry it
    phase: Phase  #: its current phase
    reason: str  #: why it is in this phase; of a failed trainer its exception, in one line, and its log; may be empty
    directory: str  #: its folder on the coordinator's host, with `logs/` and `checkpoints/`
    nodes: list[str]  #: the nodes that are training, rank 0 first; may be empty
    target: list[str]  #: the nodes that the last plan gave it
    warming: list[str]  #: the nodes on which its script has started but is not ready to train yet
    min_nodes: int  #: the fewest nodes on which it runs, as submitted
    max_nodes: int  #: the most nodes on which it runs, as submitted
    fixed_curve: bool  #: whether plans always use the submitted curve
    generation: int  #: number of its group, incremented at every regroup; 0 before the first
    step: int  #: optimizer steps done
    steps: int | None  #: total number of steps, if its loop counts steps; null: it does not, or has not started
    epoch: int  #: its current epoch, from 0
    epochs: int | None  #: total number of epochs, if its loop counts epochs; null: it does not, or has not started
    samples: int  #: samples used, over all epochs
    samples_per_s: float | None  #: its rate on its current nodes; null if there are none or nothing was measured yet
    measured_samples_per_s: dict[int, float]  #: rates by number of nodes, as measured
    #: its rates by number of nodes as plans assume them, measured or estimated; empty: none yet
    scaling: list[Estimate]
    #: the pause for a change to more nodes as the planner assumes it: measured; otherwise as measured for the pool's
    #: other trainers; otherwise as submitted or assumed
    rescale_up_s: float
    rescale_down_s: float  #: the same for a change to fewer nodes
    #: the latest metrics that the script reported, such as `loss`, and the learning rate; null for one that is not a
    #: finite number. With `sync=`, `round` is the number of the round, and `exchange_s` and `inner_step_s` are what
    #: the last exchange and an inner step before it took
    metrics: dict[str, float | None]
    elapsed_s: float  #: since it first trained (before that: since it was submitted), until now or its end
    left_s: float | None  #: time to the end of its loop at its current rate; null: not known. A script may end earlier
    waits: str  #: what it is waiting for, in words; empty: nothing
    rescales_up: int  #: planned changes to more nodes
    rescales_down: int  #: planned changes to fewer nodes
    preemptions: int  #: nodes preempted with notice while they belonged to it
    losses: int  #: nodes lost without notice while they belonged to it
    worker_deaths: int  #: training processes that ended unexpectedly
    lost_steps: int  #: completed steps that had to be repeated because no rank, or no complete replica, survived
    redone_steps: int  #: all steps that were repeated
    longest_stall_s: float  #: the longest pause between two steps
    held: str  #: why it gets no nodes, for example because a user holds it; empty: plans may include it
    node_seconds: float  #: time that it had workers on nodes, summed over the nodes
    used_node_hours: float  #: the same as charged by the site: hours on nodes times the charge factor
    budget_node_hours: float | None  #: limit of these, after which it stops; null: no limit
    checkpoints_kept: int | None  #: how many of its newest checkpoints are kept; null: the site's number, or not known
    submitted_s: float  #: when it was submitted
    started_s: float | None  #: when it first trained; null: not yet
    ended_s: float | None  #: when it ended; null: not yet
    remarks: list[str]  #: messages for the user, newest last
    #: how far the check of its script is: `off`, `waiting`, `running`, `passed`, `differs` or `unchecked`
    check: ProofState
    check_text: str  #: what it found, or why nothing was checked, in words; empty: nothing to say
    warnings: list[str] = []  #: what is wrong with it now, in words; what is over is not among them
    #: how many of `nodes` are of each type, slow ones apart as `TYPE/slow`; empty: all nodes are alike
    nodes_by_type: dict[str, int] = {}
    #: the samples of a step of the first process on each of `nodes`, as last measured; empty: equal, or not known
    shares: dict[str, float] = {}
    #: its place among the trainers that wait for nodes, from 1, in the order of submission; null: it does not wait. One
    #: that needs fewer nodes may start before an earlier one
    place: int | None = None
    #: when it is expected to start; null: it does not wait, or this cannot be foretold
    expected_start_s: float | None = None
    prognosis: str = ""  #: both in words, or why there is no such time; empty: it does not wait


class HeldNode(Answer, frozen=True):
    """A node on which a trainer had a worker."""

    node: str  #: its name in the pool: the host's and the pilot's
    job: str  #: the batch scheduler's id of its job; empty if there is none
    from_s: float  #: since when
    until_s: float | None  #: until when; null: it still has one


class TrainerHistory(Answer, frozen=True):
    """The answer of ``pilot status NAME``."""

    began_unix_s: float  #: the time of day at 0 on the pool's clock, in seconds since 1970
    now_s: float  #: the current time on the pool's clock
    charge_factor: float  #: what the site charges for a node-hour
    trainer: TrainerStatus  #: its current status
    held_nodes: list[HeldNode]  #: which nodes it had when: the newest 200 that it gave back, and its current ones


class NodeStatus(Answer, frozen=True):
    """One node of the pool."""

    node: str  #: its name in the pool: the host's and the pilot's
    host: str  #: its host's name
    job: str  #: the batch scheduler's id of its job; empty if there is none
    trainer: str | None  #: the trainer whose worker runs on it or is planned for it; null: it is free
    leaving: bool  #: whether it got a preemption notice
    set_aside: bool  #: whether it is not used for a while, because trainers failed on it that work elsewhere
    joined_s: float  #: when it joined
    ends_s: float | None = None  #: when it will have left, on the pool's clock; null: that is not known
    #: its type: as the site calls it, or made from its hardware; with `/slow` if it counts as slow for its type; empty:
    #: not known
    type: str = ""


class SetAsideStatus(Answer, frozen=True):
    """A node that is not used for a while."""

    node: str  #: its name in the pool
    trainer: str | None  #: the trainer that does not use it; null: none does
    left_s: float  #: time until it is tried again
    reason: str  #: what failed there, in one line


class PilotStatus(Answer, frozen=True):
    """One pilot that registered."""

    node: str  #: its name in the pool
    host: str  #: its host's name; empty if not reported yet after a restart of the coordinator
    pilot: str  #: its own name, which is new in each life of it
    job: str  #: the batch scheduler's id of its job; empty if there is none
    pid: int | None  #: the process id of its agent on its host; null if not reported yet
    connected: bool  #: whether it is connected now
    notice: str  #: why it is about to leave; empty: it stays
    heard_ago_s: float  #: time since it was last heard from
    joined_s: float  #: when it joined


class KeeperStatus(Answer, frozen=True):
    """The pool's jobs in the queue, and what prevents submitting more."""

    scheduler: str = ""  #: its name, such as `slurm`
    wanted_nodes: int = 0  #: how many nodes the pool should have
    pending: int = 0  #: queued jobs, without those that are leaving
    running: int = 0  #: running jobs, without those that are leaving
    waited_s: float | None = None  #: how long the first queued job has been waiting; null: none is queued
    #: when the scheduler expects the first of them to start, in seconds since 1970; null: unknown
    expected_unix_s: float | None = None
    leaving: int = 0  #: jobs that were cancelled, preempted or suspended, or that may be over
    suspended: int = 0  #: how many of those are suspended
    waits_for: str = ""  #: why queued jobs are waiting, in the scheduler's words, and how many; empty: unknown
    others: int = 0  #: other users' jobs that count against the site's limit
    idle_nodes: int | None = None  #: idle nodes that no job is waiting for; null: unknown
    planned_nodes: int = 0  #: nodes that are idle until another job or a reservation begins on them
    endings: dict[str, int] = {}  #: number of jobs that ended, by kind of end, such as `preempted`
    trouble: str = ""  #: what is wrong with the scheduler; empty: nothing
    held_back: str = ""  #: why no more jobs are submitted; empty: no reason
    set_aside: list[SetAsideStatus] = []  #: nodes for which no jobs are submitted, because pilots failed there
    type: str = ""  #: the type of nodes that these jobs are for; empty: of all types, or the site names none


class TimeSummary(Answer, frozen=True):
    """The duration of something, over all its runs."""

    median: float  #: in the unit of the field that holds it
    max: float  #: the longest, in the same unit


class SolveStatus(Answer, frozen=True):
    """Statistics of the plans."""

    count: int  #: plans made
    failed: int  #: problems for which the planner gave no plan
    #: of the last plan: proved optimal, the best one found within the time limit, or the present allocation kept; null:
    #: none
    last_status: PlanStatus | None
    planner: str | None  #: the planner of the last plan; null: none
    build_s: TimeSummary | None  #: time to build the problem; null before the first plan
    solve_s: TimeSummary | None  #: time to solve it; null before the first plan
    #: time from the request to the plan, including processes and queues; null before the first plan
    answer_s: TimeSummary | None


class DecisionStatus(Answer, frozen=True):
    """A plan that changed what a trainer gets."""

    at_s: float  #: when
    text: str  #: what changed, in words


class UtilisationStatus(Answer, frozen=True):
    """The pool's efficiency, over the time in which it had trainers (FreeTrain eqs 17-18)."""

    u: float | None  #: `work` / `static_work`; null: nothing to compare with
    eq_nodes: float  #: the mean number of nodes
    #: what the listed trainers did, computed from their curves and their time on each node count, in node-seconds at
    #: the speed of one node
    work: float
    #: what they would have done on `eq_nodes` dedicated nodes; null: not computed, because there were too many
    #: different sets of trainers
    static_work: float | None


class PoolStatus(Answer, frozen=True):
    """All of ``pilot status``."""

    coordinator: str  #: the pool's name; unchanged by a restart of its coordinator
    site: str  #: the site's name
    endpoint: str  #: where the coordinator listens
    run_dir: str  #: the pool's run directory, on the coordinator's host
    only_nodes: str  #: the nodes that it may use, as given; empty: any
    objective: str  #: what its plans maximise
    #: whether a coordinator serves the pool; false: this was read from its journal and does not change any more
    up: bool
    began_unix_s: float  #: the time of day at 0 on the pool's clock, in seconds since 1970
    now_s: float  #: what the pool's clock shows
    draining: bool  #: whether the pool is being shut down
    node_seconds: float  #: seconds that nodes were in the pool, summed over the nodes
    ended_kept: int  #: how many ended trainers are listed, the last ones; `pilot report` has them all
    charge_factor: float  #: what the site charges for a node-hour
    used_node_hours: float  #: as charged by the site, since the pool came up
    budget_node_hours: float | None  #: limit of these, after which it drains; null: no limit
    pool: list[NodeStatus]  #: its nodes, in the order of joining
    trainers: list[TrainerStatus]  #: in the order of submission
    decisions: list[DecisionStatus]  #: the last plans that changed something, newest last
    solves: SolveStatus  #: how plans are made
    utilisation: UtilisationStatus  #: the pool's efficiency
    keeper: KeeperStatus  #: its jobs in the queue
    #: why decisions do not take effect at the moment: there is no space for the journal. Training continues
    trouble: str
    remarks: list[str]  #: messages for the user that concern no trainer, newest last
    keepers: list[KeeperStatus] = []  #: its jobs in the queue for each type of nodes; empty: the site names no types
    damage: list[str] = []  #: what of the pool's files was damaged or lost when its coordinator last started
    warnings: list[str] = []  #: what is wrong with the pool now, in words; what is over is not among them

    def trainer(self, name: str) -> TrainerStatus:
        """Return the trainer of this name, which must exist."""
        return next(trainer for trainer in self.trainers if trainer.trainer == name)
