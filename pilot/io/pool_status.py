"""What the coordinator tells of its pool: the answers of ``pilot status`` and ``pilot ls``, also with ``--json``.

Names, types and docstrings are what docs/json.md says of the JSON; it is generated from them. Moments are in seconds on
the pool's clock: 0 when the pool began, and it goes on while its coordinator is restarted.
"""

from __future__ import annotations

import msgspec

from pilot.core.curve_learned import Estimate
from pilot.core.problem import PlanStatus
from pilot.core.trainer import Phase


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what the coordinator tells. A reader passes over fields that it does not know."""


class TrainerStatus(Told, frozen=True):
    """One trainer.

    Parameters
    ----------
    trainer : its name
    uid : tells it from all others, of whatever pool and name: 32 hexadecimal digits; its checkpoints carry them
    phase : where it stands
    reason : why it stands there; of a failed trainer with the last lines of its traceback; may be empty
    directory : its folder on the coordinator's host, with `logs/` and `checkpoints/`
    nodes : the nodes that train, rank 0 first; empty where none does
    target : the nodes that the last plan gave it
    warming : the nodes on which its script has been started and is not ready to train yet
    min_nodes : the fewest nodes on which it runs, as submitted
    max_nodes : the most nodes on which it runs, as submitted
    fixed_curve : whether it is planned with the submitted curve, whatever is measured
    generation : number of its group; every regroup raises it; 0 before the first
    step : optimizer steps done
    steps : so many in all, where its loop counts steps; null: it does not, or has not begun
    epoch : the epoch that it is in, from 0
    epochs : so many in all, where its loop counts epochs; null: it does not, or has not begun
    samples : samples used, over all epochs
    samples_per_s : its rate on the nodes that train now; null where none does or nothing was measured yet
    measured_samples_per_s : rates by number of nodes, as measured
    scaling : what plans can know of its rate by number of nodes, measured or estimated; empty: nothing yet
    rescale_up_s : how long a change to more nodes pauses it, as the planner has it: measured, else as the pool's other
        trainers measured it, else as submitted or assumed
    rescale_down_s : how long a change to fewer nodes pauses it, in the same way
    metrics : the last ones that the script reported, such as `loss`, and the learning rate; null for one that is not a
        finite number
    elapsed_s : since it first trained (before that: since it was submitted), until now or its end
    left_s : to the end of its loop at its present rate; null: not known. A script may end earlier
    waits : what it waits for now, in words; empty: nothing
    rescales_up : changes to more nodes, by plan
    rescales_down : changes to fewer nodes, by plan
    preemptions : nodes that were taken with notice while they belonged to it
    losses : nodes that were lost without notice while they belonged to it
    worker_deaths : training processes that ended when they should not
    lost_steps : steps that were done and had to be done again because no rank survived
    redone_steps : steps that were done again, in all
    longest_stall_s : the longest pause between two steps
    held : why it gets no nodes, such as that a user holds it; empty: plans may have it
    node_seconds : seconds that it had workers on nodes, summed over the nodes
    used_node_hours : the same, as the site charges it: hours on nodes times the charge factor
    budget_node_hours : what these may come to, then it stops; null: no limit is set
    checkpoints_kept : the newest ones that it keeps; null: as many as the site says, or not known
    submitted_s : when it was submitted
    started_s : when it first trained; null: not yet
    ended_s : when it ended; null: not yet
    remarks : what a person should see, newest last
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


class HeldNode(Told, frozen=True):
    """A node on which a trainer had a worker.

    Parameters
    ----------
    node : its name in the pool: the host's and the pilot's
    job : the batch scheduler's id of its job; empty where there is none
    from_s : since when
    until_s : until when; null: it still has
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
    now_s : what the pool's clock shows
    charge_factor : what the site charges for a node-hour
    trainer : where it stands
    held_nodes : what it held when: the newest 200 that it gave back, and those that it has
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
    job : the batch scheduler's id of its job; empty where there is none
    trainer : whose worker runs on it or is planned for it; null: it is free
    leaving : whether it was given notice
    set_aside : whether it gets no work for a time, because trainers failed on it that work elsewhere
    joined_s : when it joined
    """

    node: str
    host: str
    job: str
    trainer: str | None
    leaving: bool
    set_aside: bool
    joined_s: float


class SetAsideStatus(Told, frozen=True):
    """A node that gets no work for a time.

    Parameters
    ----------
    node : its name in the pool
    trainer : the trainer that does without it; null: all do
    left_s : after so long it is tried again
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
    host : its host's name; empty where it has not said it yet, after the coordinator was restarted
    pilot : its own name, of this life of it
    job : the batch scheduler's id of its job; empty where there is none
    pid : the process id of its agent on its host; null where it has not said it yet
    connected : whether it is connected now
    notice : why it is about to leave; empty: it stays
    heard_ago_s : how long ago it was heard of last
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
    """Our jobs in the queue, and what keeps us from more.

    Parameters
    ----------
    scheduler : its name, such as `slurm`
    wanted_nodes : the nodes that there should be
    pending : our jobs that wait, without those that are leaving
    running : our jobs that run, without those that are leaving
    waited_s : for how long the first of those that wait has; null: none waits
    expected_unix_s : when the scheduler expects the first of them to start, in seconds since 1970; null: it does
        not say
    leaving : our jobs that were cancelled, preempted or suspended, or of which nobody knows whether they are over
    suspended : those of them that are suspended
    waits_for : why most of those that wait do, in the scheduler's words; empty where it does not say
    others : jobs of others that count against the site's cap
    idle_nodes : nodes that nobody has or waits for; null where the scheduler does not tell
    planned_nodes : nodes that idle until another job starts on them
    endings : how many jobs have ended in which way, such as `preempted`
    trouble : what the scheduler does not do; empty where there is none
    held_back : why no more jobs are submitted; empty where there is no reason
    """

    scheduler: str
    wanted_nodes: int
    pending: int
    running: int
    waited_s: float | None
    expected_unix_s: float | None
    leaving: int
    suspended: int
    waits_for: str
    others: int
    idle_nodes: int | None
    planned_nodes: int
    endings: dict[str, int]
    trouble: str
    held_back: str


class TimeSummary(Told, frozen=True):
    """How long something took, over all times that it was done.

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
    count : plans that were made
    failed : questions that the planner did not answer
    last_status : of the last plan: proved optimal, the best one known when the time was up, or all is kept; null: none
    planner : the planner of the last plan; null: none
    build_s : to build the problem; null before the first plan
    solve_s : to solve it; null before the first plan
    answer_s : from the question to the plan, processes and queues included; null before the first plan
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
    """What the pool was worth, over the time in which it had trainers (FreeTrain eqs 17-18).

    Parameters
    ----------
    u : `work` / `static_work`; null where there is nothing to compare with
    eq_nodes : the mean number of nodes
    work : what the listed trainers did, by their curves and the time that they trained on so many nodes, in
        node-seconds at the speed of one node
    static_work : what they would have done on `eq_nodes` dedicated nodes; null: not reckoned, as there were more
        different sets of trainers than can be reckoned while one waits
    """

    u: float | None
    eq_nodes: float
    work: float
    static_work: float | None


class PoolStatus(Told, frozen=True):
    """All of ``pilot status``.

    Parameters
    ----------
    coordinator : the pool's name; it stays when its coordinator is restarted
    site : the site's name
    endpoint : where the coordinator listens
    run_dir : the pool's run directory, on the coordinator's host
    up : whether a coordinator serves the pool; false: this was read from its journal, and nothing changes any more
    began_unix_s : the time of day at 0 on the pool's clock, in seconds since 1970
    now_s : what the pool's clock shows
    draining : whether the pool is being shut down
    node_seconds : seconds that nodes were in the pool, summed over the nodes
    ended_kept : so many trainers that have ended are listed, the last ones; `pilot report` tells of all
    charge_factor : what the site charges for a node-hour
    used_node_hours : as the site charges them, since the pool came up
    budget_node_hours : of these it may use so many, then it drains; null: no limit is set
    pool : its nodes, in the order of joining
    trainers : in the order of submission
    decisions : the last plans that changed something, newest last
    solves : how plans are made
    utilisation : what the pool was worth
    keeper : its jobs in the queue
    trouble : why nothing that is decided takes effect for now: there is no room for the journal. Trainers train on
    remarks : what a person should see and is about no trainer, newest last
    """

    coordinator: str
    site: str
    endpoint: str
    run_dir: str
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

    def trainer(self, name: str) -> TrainerStatus:
        """The trainer of this name, which must be there."""
        return next(trainer for trainer in self.trainers if trainer.trainer == name)
