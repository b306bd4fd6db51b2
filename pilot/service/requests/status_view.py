"""The answers of ``pilot status``, ``ls``, ``nodes`` and others, from the core, the monitor and the roster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median

from msgspec.structs import replace

from pilot import planners
from pilot.core.coordinator import Coordinator
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.plan.explain import explain, rate_sentences, speed_sentences
from pilot.core.plan.objective import scaling_efficiency, worth_sentence
from pilot.core.plan.prognosis import Prognosis
from pilot.core.trainer.budget import hours
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.trainer import Trainer
from pilot.history.monitor import Monitor
from pilot.history.utilisation import Best, WorkAccount, utilisation
from pilot.history.words import duration, node_count, round_words
from pilot.protocol.pool_status import (
    DecisionStatus,
    HeldNode,
    KeeperStatus,
    NodeStatus,
    PilotStatus,
    PoolStatus,
    SolveStatus,
    TimeSummary,
    TrainerHistory,
    TrainerStatus,
    UtilisationStatus,
)
from pilot.protocol.remaining_work import BY_SESSION, Goal
from pilot.protocol.requests import (
    Explained,
    NodeList,
    PilotList,
    StudyList,
    StudyStatus,
    Submitted,
    TrainerList,
    TrialList,
)
from pilot.service.agents.node_remarks import differences
from pilot.service.agents.roster import Roster
from pilot.service.requests import mixed_view, study_store, warnings
from pilot.service.requests.launch_store import LaunchStore
from pilot.service.requests.study_store import StudyStore
from pilot.service.requests.waiting import Waiting, place_in_queue, remarks


@dataclass(frozen=True, slots=True)
class About:
    """Facts about a pool that the core lacks: its identity, whether it is up, its jobs, why its decisions must wait,
    and damage at its start."""

    coordinator: str
    site: str
    endpoint: str
    run_dir: str
    began_unix_s: float
    keeper: KeeperStatus
    objective: str
    only_nodes: str = ""
    up: bool = True
    trouble: str = ""
    damage: list[str] = field(default_factory=list)
    keepers: list[KeeperStatus] = field(default_factory=list)


@dataclass(slots=True)
class PoolView:
    """Answers read-only requests about a pool. ``roster`` is None if the pool is down."""

    core: Coordinator
    monitor: Monitor
    launches: LaunchStore
    study_store: StudyStore
    about: Callable[[], About]
    clock: Callable[[], float]
    roster: Roster | None = None

    def trainers(self) -> TrainerList:
        """All trainers, in the order of submission."""
        return TrainerList(trainers=self._trainers(self.about().keeper))

    def status(self, use: UtilisationStatus | None = None) -> PoolStatus:
        """The pool, the trainers, the decisions. ``use`` is U, if it was computed in advance."""
        about, core, monitor, now_s = self.about(), self.core, self.monitor, self._now_s()
        return PoolStatus(
            **asdict(about),
            now_s=now_s,
            draining=core.draining,
            node_seconds=monitor.node_seconds,
            ended_kept=core.config.ended_kept,
            charge_factor=core.config.charge_factor,
            used_node_hours=hours(core.usage.until(now_s), core.config.charge_factor),
            budget_node_hours=core.config.budget_node_hours,
            pool=self._pool(),
            trainers=self._trainers(about.keeper),
            decisions=[DecisionStatus(at_s=at_s, text=text) for at_s, text in monitor.decisions],
            solves=_solves(monitor),
            utilisation=use or utilisation_of(account(core, monitor)),
            warnings=[*warnings.of_pool(core, now_s, about.keeper), *self._node_remarks()],
            remarks=[*monitor.pool_remarks, *self._node_remarks()],
        )

    def account(self) -> WorkAccount:
        """The data for computing U."""
        self._now_s()
        return account(self.core, self.monitor)

    def nodes(self) -> NodeList:
        """The nodes in the pool, and those set aside."""
        now_s = self._now_s()
        aside = [*warnings.set_aside(self.core, now_s), *self.about().keeper.set_aside]
        return NodeList(now_s=now_s, nodes=self._pool(), set_aside=aside, remarks=self._node_remarks())

    def pilots(self) -> PilotList:
        """The pilots that registered."""
        now_s, known = self.clock(), self.roster.pilots.values() if self.roster is not None else ()
        return PilotList(
            pilots=[
                PilotStatus(
                    node=pilot.node,
                    host=pilot.hello.host if pilot.hello else "",
                    pilot=pilot.hello.pilot if pilot.hello else "",
                    job=pilot.job or "",
                    pid=pilot.hello.pid if pilot.hello else None,
                    connected=pilot.here,
                    notice=pilot.leaving,
                    heard_ago_s=now_s - pilot.heard_s,
                    joined_s=pilot.joined_s,
                )
                for pilot in known
            ]
        )

    def history(self, name: str) -> TrainerHistory:
        """The history of the trainer of this name."""
        about, monitor, now_s = self.about(), self.monitor, self._now_s()
        trainer = trainer_of(self.core, name)
        record, of = monitor.trainers[trainer.id], self._trainer_view(about.keeper)
        gone = [HeldNode(node=s.node, job=s.job, from_s=s.start_s, until_s=s.end_s) for s in record.spans]
        here = [
            HeldNode(node=node, job=monitor.jobs.get(node, ""), from_s=since_s, until_s=None)
            for node, since_s in record.held_since_s.items()
        ]
        return TrainerHistory(
            began_unix_s=about.began_unix_s,
            now_s=now_s,
            charge_factor=self.core.config.charge_factor,
            trainer=of(trainer),
            held_nodes=gone + here,
        )

    def explain(self, name: str) -> Explained:
        """Why the trainer of this name has its nodes or waits, or why it ended."""
        about = self.about()
        row = self._trainer_view(about.keeper)(trainer_of(self.core, name))  # as of now
        found = _explained(about.objective, self.core, self.monitor, TrainerId(name))
        waits = "; ".join(filter(None, [row.prognosis, row.waits])) if row.place is not None else ""
        return replace(found, sentences=[*found.sentences, f"It waits: {waits}."]) if waits else found

    def submitted(self, name: TrainerId) -> Submitted:
        """The answer to the submission of this trainer, with its place if it does not start at once."""
        row = self._trainer_view(self.about().keeper)(self.core.trainers[name])
        answer, place, at_s = Submitted(trainer=name, directory=row.directory), row.place, row.expected_start_s
        if place is None or at_s == self.monitor.now_s:
            return answer
        return replace(answer, place=place, expected_start_s=at_s, prognosis=row.prognosis, waits=row.waits)

    def studies(self) -> StudyList:
        """All studies, in the order of submission."""
        return StudyList(studies=[self.study(name) for name in self.core.studies])

    def study(self, name: str) -> StudyStatus:
        """The study of this name."""
        return study_store.status(self.core, self.study_store, study_store.find(self.core, name), self.clock())

    def trials(self, name: str) -> TrialList:
        """A study and its trials."""
        return study_store.trials(self.core, self.study_store, study_store.find(self.core, name), self.clock())

    def _now_s(self) -> float:
        self.monitor.advance(self.clock())
        return self.monitor.now_s

    def _pool(self) -> list[NodeStatus]:
        pool, monitor = self.core.pool, self.monitor
        return [
            NodeStatus(
                node=node,
                host=node.partition(".")[0],
                job=monitor.jobs.get(node, ""),
                trainer=pool.occupant.get(node) or pool.owner.get(node),
                leaving=node in pool.leaving,
                set_aside=node in pool.aside,
                joined_s=monitor.joined_s.get(node, 0.0),
                ends_s=pool.ends.get(node),
                type=pool.kind_of(node),
            )
            for node in pool.nodes
        ]

    def _node_remarks(self) -> list[str]:
        if self.roster is None:
            return []
        return [*differences(self.roster.versions()), *mixed_view.slow_nodes(self.core, self.roster)]

    def _trainers(self, keeper: KeeperStatus) -> list[TrainerStatus]:
        self._now_s()
        return list(map(self._trainer_view(keeper), self.core.trainers.values()))

    def _trainer_view(self, keeper: KeeperStatus) -> Callable[[Trainer], TrainerStatus]:
        """A function that gives a trainer's status; what it needs of the pool is computed once."""
        waiting, queue = Waiting(self.core, self.monitor, keeper), self.core.prognoses(self._now_s())
        return lambda trainer: self._trainer(trainer, waiting.of(trainer), queue.get(trainer.id))

    def _trainer(self, trainer: Trainer, waits: str, queued: Prognosis | None) -> TrainerStatus:
        core, monitor, launches = self.core, self.monitor, self.launches
        costs, charge_factor = core.costs, core.config.charge_factor
        record = monitor.trainers[trainer.id]
        training = trainer.group.members if trainer.group is not None else ()
        rate, goal = record.samples_per_s if training else None, Goal.of(record.metrics)
        budget_s = trainer.usage.budget_s
        ran_until_s = monitor.now_s if record.ended_s is None else record.ended_s
        return TrainerStatus(
            trainer=trainer.id,
            uid=trainer.spec.uid,
            phase=trainer.phase,
            reason=trainer.reason,
            directory=str(launches.shown(trainer.spec)),
            nodes=list(training),
            target=list(trainer.target),
            warming=[n for n in trainer.workers if not trainer.ready_on(n)],
            min_nodes=trainer.spec.min_nodes,
            max_nodes=trainer.spec.max_nodes,
            fixed_curve=trainer.spec.fixed_curve,
            generation=trainer.generation,
            step=trainer.step,
            steps=goal.iterations,
            epoch=trainer.epoch,
            epochs=goal.epochs,
            samples=trainer.samples,
            samples_per_s=rate,
            measured_samples_per_s=dict(sorted(trainer.measured.rates.items())),
            scaling=[] if trainer.measured.guessed else list(trainer.measured.estimates(ran_until_s)),
            rescale_up_s=trainer.measured.rescale_s(costs, up=True),
            rescale_down_s=trainer.measured.rescale_s(costs, up=False),
            metrics={name: value for name, value in record.metrics.items() if name not in BY_SESSION},
            elapsed_s=ran_until_s - (record.submitted_s if record.started_s is None else record.started_s),
            left_s=goal.left_s(trainer.epoch, trainer.step, trainer.samples, rate),
            waits=waits,
            prognosis=place_in_queue(queued) if queued else "",
            place=queued.place if queued else None,
            expected_start_s=queued.at_s(monitor.now_s) if queued else None,
            **asdict(trainer.counts),
            redone_steps=record.redone_steps,
            longest_stall_s=record.longest_stall_s,
            held=trainer.held,
            node_seconds=record.held_node_seconds(monitor.now_s),
            used_node_hours=hours(trainer.usage.until(monitor.now_s), charge_factor),
            budget_node_hours=None if budget_s is None else hours(budget_s, charge_factor),
            checkpoints_kept=launches.checkpoints_kept(trainer.spec),
            submitted_s=record.submitted_s,
            started_s=record.started_s,
            ended_s=record.ended_s,
            warnings=[*warnings.of_trainer(core, monitor, trainer), *mixed_view.of_shares(self.roster, trainer)],
            nodes_by_type=mixed_view.by_type(core, training),
            shares=mixed_view.shares(self.roster, trainer),
            remarks=remarks(trainer, monitor),
            check=trainer.proof.state,
            check_text=trainer.proof.text,
        )


def _explained(objective: str, core: Coordinator, monitor: Monitor, name: TrainerId) -> Explained:
    trainer = trainer_of(core, name)
    if trainer.outcome is not None:
        return Explained(trainer=name, sentences=[f"{name} {trainer.outcome}: {trainer.reason}"], decision=None)
    found = explain(*monitor.last, name) if monitor.last is not None and not trainer.held else None
    sentences = [f"{name} was not part of the last plan."]
    if found is not None:
        sentences = found.sentences() if found.pinned else [*found.sentences(), worth_sentence(objective)]
    if name in core.arrivals.trainers and trainer.target:
        held = node_count(len(trainer.target))
        sentences = [
            f"{name} started on {held}, the fewest that it can use; a plan that may give it more follows shortly."
        ]
    if (turn_s := core.aging.until_s.get(name, 0.0) - monitor.now_s) > 0 and name in core.turns():
        sentences.append(f"It had waited for long, so it keeps its minimum for another {duration(turn_s)}.")
    if trainer.held:
        sentences = [f"{name} is {trainer.held}; pilot release {name} gives it nodes again."]
    if trainer.stops:
        sentences = [f"{name} stops: {trainer.held}."]
    if trainer.shelved:
        later = "" if trainer.complete else " It continues if its study promotes it."
        sentences = [f"{name} is a trial without nodes: {trainer.shelved}.{later}"]
    elif trainer.profile.pin is not None or (trainer.profile.wanted and not trainer.profile.lasting):
        sentences = [*sentences, _profile(trainer)]
    if (stays := trainer.stays_at()) is not None:
        sentences.append(f"{stays[1][:1].upper()}{stays[1][1:]}.")
    elif trainer.proof.state is ProofState.UNCHECKED:
        sentences.append(f"Its script is {trainer.proof.text}.")
    measured = trainer.measured
    rates = rate_sentences(
        measured.estimates(monitor.now_s), guessed=measured.guessed, known_from=trainer.spec.known_from
    )
    rates += speed_sentences(core.speeds(trainer), trainer.speeds.reference)
    record = monitor.trainers[name]
    of_rounds = round_words(record.metrics)
    rates += [f"It trains in rounds; {of_rounds}."] if of_rounds else []
    by_itself = record.progress_s is not None and not BY_SESSION.intersection(record.metrics)
    saves = core.checkpoint_interval(trainer).sentence(in_rounds=bool(of_rounds))
    saves = "Its script saves its own checkpoints." if by_itself else saves
    return Explained(trainer=name, sentences=[*sentences, *rates, saves], decision=found)


def _profile(trainer: Trainer) -> str:
    if trainer.profile.pin is None:
        return f"{trainer.id} is waiting to be profiled, until nodes are idle or another trainer can lend some."
    lender = f", with nodes borrowed from {trainer.profile.lender}" if trainer.profile.lender else ""
    return f"{trainer.id} is {trainer.profile.sentence()}{lender}."


def trainer_of(core: Coordinator, name: str) -> Trainer:
    """The trainer of this name; :class:`UserError` if there is none."""
    trainer = core.trainers.get(TrainerId(name))
    if outcome := core.past.get(TrainerId(name)):
        raise UserError(f"trainer {name} ended long ago ({outcome.value}); see 'pilot report'")
    if trainer is None:
        known = ", ".join(core.trainers) or "none"
        raise UserError(f"no trainer named {name!r}; there are: {known}")
    return trainer


def account(core: Coordinator, monitor: Monitor) -> WorkAccount:
    """The data for computing U: a copy, so that it can be computed in a thread."""
    monitor.advance(monitor.now_s)
    return WorkAccount(
        specs=tuple(t.spec for t in core.trainers.values()),
        curves={t.id: scaling_efficiency(t.spec, t.measured.curve) for t in core.trainers.values()},
        seconds_on={name: dict(record.seconds_on) for name, record in monitor.trainers.items()},
        open_for_s={there: open_for.seconds for there, open_for in monitor.open_for_s.items()},
        open_node_seconds=sum(open_for.node_seconds for open_for in monitor.open_for_s.values()),
        max_parallel=core.parallel_most,
    )


def utilisation_of(account: WorkAccount) -> UtilisationStatus:
    """U; None if there were too many different sets of trainers to compute it quickly."""
    found = utilisation(account, best_for(account))
    return UtilisationStatus(u=found.u, eq_nodes=found.eq_nodes, work=found.work, static_work=found.static_work)


def best_for(account: WorkAccount) -> Best | None:
    """The planner that divides static nodes; None if there were too many different sets of trainers."""
    return planners.make("dp") if () not in account.open_for_s else None


def _solves(monitor: Monitor) -> SolveStatus:
    plan, times = monitor.last[1] if monitor.last is not None else None, monitor.solves
    return SolveStatus(
        count=monitor.solved,
        failed=monitor.failed_solves,
        last_status=plan.status if plan is not None else None,
        planner=plan.planner if plan is not None else None,
        build_s=_summary([t.build_s for t in times]),
        solve_s=_summary([t.solve_s for t in times]),
        answer_s=_summary([t.answer_s for t in times]),
    )


def _summary(values: list[float]) -> TimeSummary | None:
    return TimeSummary(median=median(values), max=max(values)) if values else None
