"""What is trained, and its progress: everything that is sent in a rescale and saved in a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

from pilot.checkpoint import shards
from pilot.checkpoint.tree import Encoded, copied
from pilot.core.errors import UserError
from pilot.protocol.run_identity import ACCEPT, OPTIONS, RULES, SYNC, AcceptedChange, acceptable
from pilot.submission.seldom import FRESH, DiLoCo
from pilot.train.data import rng
from pilot.train.data.sampler import StepShare
from pilot.train.node.membership import Seat
from pilot.train.state import identity
from pilot.train.state.block import encoded, in_host_memory
from pilot.train.state.catch_up import CatchUp, put_user
from pilot.train.state.loading import Stateful, load, places_in, put_back, put_unsaved, unsaved
from pilot.train.state.outer import Outer
from pilot.train.state.progress import (
    END_OF_EPOCH,
    END_OF_LOOP,
    METRIC,
    STOP,
    Agreement,
    AgreementLog,
    Lineage,
    MetricReports,
    Place,
    Position,
    Sums,
)
from pilot.train.state.session_checks import admit, as_one, check_schedule
from pilot.train.state.sharding import Wanted, models_adopted, optimizers_adopted, rows_wanted, sharding_of
from pilot.train.state.shares import Shares
from pilot.train.state.state_transfer import Holding, Standing
from pilot.train.state.stepper import (
    LearningRate,
    Optimizers,
    Scalers,
    Schedulers,
    Stepper,
    Steppers,
    options_of,
    set_options,
    step_together,
)
from pilot.train.state.trained_set import TrainedSet

Models = nn.Module | dict[str, nn.Module]


class Training:
    """Models, their optimizers, the run's identity, position, ledger, agreements, learning-rate factor, tracked
    objects, and the script's own ``user`` dict.

    ``agreed_step``: up to this step all ranks held the same state (:mod:`pilot.train.steps.alarm`). ``changing``: what
    a forward pass changes (:mod:`pilot.train.steps.rollback`); ``phases``: what the script's own values were when each
    phase of the current batch began that counts. ``on_restore``: called when a state was taken over or
    rolled back. ``samples_per_tick``: samples of a step on one node, for a schedule that counts samples. ``reports``: a
    trial's reports of its study's metric. ``sharding``: the model's, if it is sharded. ``standing``: see
    :class:`~pilot.train.state.state_transfer.Standing`. ``catch_up``: what the script does again. ``accepted``: what
    may differ from a checkpoint, or between nodes. ``shares``: of the group's ranks. ``outer``: what nodes share if
    they synchronise seldom. ``is_alone``: nobody will take its state over.
    """

    def __init__(
        self,
        model: Models,
        optimizer: Optimizers,
        scheduler: Schedulers | None,
        schedule: str | None,
        rate: LearningRate,
        scaler: Scalers | None = None,
        sync: DiLoCo | None = None,
    ) -> None:
        self.steppers = Steppers(optimizer, scheduler, scaler)
        self.tracked: dict[str, Stateful] = {}
        check_schedule(self.steppers.schedulers.values(), schedule)
        self.model = as_one(model)
        admit(self.model, self.steppers)
        self.sharding = sharding_of(self.model, self.steppers, Seat.of(os.environ).size)
        self.trained = TrainedSet(self.model, self.steppers)
        self.identity = identity.of_training(self.model, self.steppers, self.trained)
        self.identity[RULES] = f"lr_rule={rate.rule}, schedule={schedule}"
        self.outer: Outer | None = None
        if sync is not None:
            self._check_sync(schedule)
            self.identity[SYNC] = str(sync)
            self.outer = Outer(sync, self.model, self.tracked, self.trained, self.steppers)
        self._schedule = schedule or ""
        self.rate = rate
        self.position = Position()
        self.ledger = Lineage()
        self.agreements = AgreementLog()
        self.shares = Shares()
        self.catch_up = CatchUp(self.call_on_restore)
        self.user: dict[str, Any] = {}
        self.changing: set[str] = set()
        self.phases: list[dict[str, Any]] = []
        self.on_restore: list[Callable[[], object]] = []
        self.agreed_step = 0
        self.accepted = acceptable(os.environ.get(ACCEPT, ""))
        self.changes: list[AcceptedChange] = []
        self._goals_taken: identity.Identity = {}
        self._options = options_of(self.steppers, scheduled=False)
        self.restoring = self.is_alone = False
        self.standing = Standing.NEW
        self.samples_per_tick = 1
        self.reports = MetricReports(os.environ.get(METRIC, ""))

    def _check_sync(self, schedule: str | None) -> None:
        """:class:`UserError` if this cannot be trained with ``sync=``."""
        instead = {
            "optimizers by name, which it steps separately: pass a list, or leave sync= out": self.steppers.by_name,
            "a sharded model: keep it whole on each process, or leave sync= out": self.sharding is not None,
            "schedule='samples': count 'step' (inner steps of the fastest node) or 'epoch'": schedule == "samples",
        }
        for what in (words for words, is_given in instead.items() if is_given):
            raise UserError(f"pilot.train.session: sync= cannot be combined with {what}")

    def ends_at(self, goal: str, count: int) -> None:
        """The script's loop begins, and ends at ``count``. The script may have taken over a state before that (it asked
        for its rank), to which it is compared now.
        """
        self.identity[goal] = str(count)
        changes = identity.changes(self._goals_taken, identity.goals(self.identity), self.accepted)
        self.changes += [AcceptedChange(self.position.step, *change) for change in changes]

    @property
    def is_anothers(self) -> bool:
        """Whether the state that it took over is another trainer's (:func:`pilot.train.state.identity.for_another`)."""
        return self.position.step > 0 and not self._goals_taken

    @property
    def shards(self) -> int:
        """How many processes of a node have a part of the state; 1: each has all of it."""
        return self.sharding.size if self.sharding is not None else 1

    @property
    def place(self) -> Place:
        """The two steps between which it is."""
        return self.position.epoch, self.position.step

    def holding(self, generation: int) -> Holding:
        """The state that this process has, last confirmed in ``generation``."""
        position, met = self.position, self.agreements.count(self.place)
        place = position.step, identity.fingerprint(self.identity), position.epoch, met, position.phase
        return Holding(generation, *place, self.catch_up.behind, self.standing, self.is_on_gpu, *self.shares.hello())

    @property
    def is_scheduled_by_step(self) -> bool:
        """Whether each step changes the learning rate."""
        return bool(self.steppers.schedulers) and self._schedule in ("step", "samples")

    @property
    def is_on_gpu(self) -> bool:
        """Whether what is trained is."""
        return any(parameter.device.type != "cpu" for parameter in self.trained.named.values())

    def shared(self) -> Callable[[str], bool]:
        """Which arrays of the state, by path, are the same on all ranks: the parameters and the optimizers' arrays."""
        names = {f"model/{name}" for name, _ in self.model.named_parameters(remove_duplicate=False)}
        return lambda path: path in names or path.startswith(("optimizer/", "parameters/"))

    def apply(self, generation: int, share: StepShare) -> None:
        """Apply a whole step, of all optimizers."""
        self.apply_phase(list(self.steppers), share)
        self.close(generation, share)

    def apply_phase(self, steppers: Sequence[Stepper], share: StepShare) -> None:
        """Step these at the learning rate for the group's size, each with its scheduler, unless the loss scaler skipped
        it."""
        for parameter in self.trained.empty:  # not summed: some ranks may have a gradient, and others none
            parameter.grad = None
        for stepper in step_together(steppers, self.rate.factor):
            for _ in range(self._ticks(share)):
                stepper.schedule()
        self.position.phase += 1

    def _ticks(self, share: StepShare) -> int:
        """How many times a step advances a scheduler: with ``samples``, as many times as one node would have
        stepped."""
        if self._schedule == "samples":
            return -(-share.cursor_end // self.samples_per_tick) - -(-share.cursor // self.samples_per_tick)
        return self._schedule == "step"

    def close(self, generation: int, share: StepShare) -> None:
        """No optimizer follows in this step: account for its samples, unless that is done at a round's end."""
        position = self.position
        if self.outer is None:
            self.ledger.add(generation, position.epoch, position.step, share.cursor, share.cursor_end)
            position.cursor = share.cursor_end
        position.step += 1
        position.phase, self.phases = 0, []
        position.epoch_steps += 1
        position.samples += share.total

    def skip_steps(self, count: int) -> None:
        """Advance schedules by ``count`` steps, which other nodes have done in a round and this one has not."""
        for _ in range(count * (self._schedule == "step")):
            for stepper in self.steppers:
                stepper.schedule()

    def clip(self, max_norm: float, steppers: Sequence[Stepper] | None = None) -> float:
        """Scale the gradients of these (None: all) so that their norm is at most ``max_norm``; returns the norm
        before."""
        parameters = []
        for stepper in self.steppers if steppers is None else steppers:
            stepper.unscale()
            parameters += self.trained.of(stepper)
        return shards.summed_up(nn.utils.clip_grad_norm_(parameters, max_norm))

    def metrics(self) -> dict[str, float]:
        """The metrics of the last step, for reports."""
        rates = {f"learning_rate{one.name and f'_{one.name}'}": one.effective_rate for one in self.steppers}
        scales = {f"loss_scale{name and f'_{name}'}": one.get_scale() for name, one in self.steppers.scalers.items()}
        return rates | scales

    def agree(self, topic: int, sums: Sums) -> None:
        """The ranks met about ``topic``."""
        self.agreements.add(Agreement(*self.place, topic, sums))
        self.passes(topic, sums)

    def passes(self, topic: int, sums: Sums) -> None:
        """The script goes on after a meeting about ``topic``, with what was agreed there."""
        if topic == END_OF_EPOCH:
            self.next_epoch(sums)
        self.position.left |= topic == END_OF_LOOP

    def next_epoch(self, measured: Sums) -> None:
        """The epoch is over; ``measured``: what the ranks agreed on at its end."""
        self.position.epoch += 1
        self.position.cursor = 0
        self.position.epoch_steps = 0
        self.position.at_end = False
        self.position.stopped = self.position.left = STOP in measured
        if not self.steppers.schedulers or self.is_scheduled_by_step:
            return
        if self._schedule == "epoch" or self._schedule in measured:
            measures = [] if self._schedule == "epoch" else [measured[self._schedule]]
            for stepper in self.steppers:
                stepper.schedule(*measures)
        elif not self.position.stopped:
            raise UserError(
                f"the scheduler needs session.report({self._schedule}=...) at each epoch's end, after the loop over the"
                " loader, see schedule="
            )

    def capture(self) -> dict[str, Any]:
        """The state from which the script runs what it does until its next batch; its tensors are not copied (see
        :func:`~pilot.checkpoint.tree.copied`).
        """
        if (since := self.catch_up.since) is None:
            return self._capture()
        if self.sharding is not None:
            models, optimizers = since["model"], since["optimizer"]
            adopted = {
                "model": models_adopted(models, self.model),
                "optimizer": optimizers_adopted(optimizers, self.steppers),
            }
            since = {**since, **adopted}
        return {**since, "minutes": self.agreements.rows()}

    def _capture(self) -> dict[str, Any]:
        state = {
            "identity": dict(self.identity),
            "changes": [list(astuple(change)) for change in self.changes],
            "position": asdict(self.position),
            "ledger": self.ledger.table(),
            "minutes": self.agreements.rows(),
            "rng": rng.capture(),
            "model": dict(self.model.state_dict()),
            "parameters": dict(self.trained.bare),
            "trained": self.trained.capture(),
            "unsaved": unsaved(self.model, self.tracked),
            "tracked": {name: one.state_dict() for name, one in self.tracked.items()},
            "changing": sorted(self.changing),
            "phases": list(self.phases),
            "reports": [list(row) for row in self.reports.rows],
            "user": self.user,
            "meeting": self.catch_up.meeting,
            "outer": self.outer.capture() if self.outer is not None else {},
            "behind": self.catch_up.behind or self.catch_up.meeting is not None,
            **self.steppers.capture(),
        }
        return state | {"on_device": places_in({part: state[part] for part in _OF_THE_SCRIPT})}

    def rows_wanted(self) -> Wanted | None:
        """Which rows of a checkpoint are this process's; None: all."""
        return rows_wanted(self.model, self.steppers) if self.sharding is not None else None

    def encoded(self) -> Encoded:
        """The result of :meth:`capture`, encoded to be saved or sent; :class:`UserError` names what cannot be
        stored."""
        return encoded(self.capture())

    def given(self, *, inner: bool) -> Encoded:
        """The same for a process that takes over the state: unless it needs them (``inner``), without the inner
        optimizers' states if nodes begin with fresh ones.
        """
        state = self.capture()
        fresh = self.outer is not None and self.outer.settings.inner == FRESH
        return encoded(self.steppers.without_state(state) if fresh and not inner else state)

    def keep(self) -> None:
        """Keep a copy of the state as it is now, from which the script runs what it does until its next batch."""
        if not self.is_alone:
            self.catch_up.since = self._on_device(in_host_memory(self._capture()))

    def repeats(self) -> None:
        """The script repeats a step, and will take the state as it is now again when it has the batch."""
        self.keep()
        assert self.catch_up.since is not None
        self.catch_up.took(self.catch_up.since, partial(self._adopt, self.catch_up.since, own_options=False))

    def reached_end(self) -> None:
        """The epoch has no more steps; what follows begins with a copy of the state."""
        self.catch_up.arrives()
        if not self.position.at_end:
            self.position.at_end, self.position.met = True, self.agreements.count(self.place)
        self.keep()

    def loop_begins(self, *, has_state: bool) -> None:
        """The script comes to its loop; ``has_state``: it took over a state before (it asked for its rank)."""
        if has_state:
            self.catch_up.loop_begins()
        if not self.position.begun and not self.catch_up.repeats:
            self.keep()

    def _on_device(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        state = put_back(state, state["on_device"])
        return state if self.sharding is None else {**state, "model": models_adopted(state["model"], self.model)}

    @torch.inference_mode(mode=False)
    def restore(self, state: Mapping[str, Any], *, saved: bool = False) -> None:
        """Take over a state from :meth:`capture` on this or another rank, or (``saved``) from a checkpoint, perhaps by
        way of another process of the node. Also if the script is evaluating in ``torch.inference_mode``: nobody could
        change the tensors that it makes.

        A rank that runs the same part of the script, from the same state, does by itself what others have done there;
        it takes over what they have agreed on.
        """
        if self._is_there(state):
            self.agreements = AgreementLog(state["minutes"])
            self.position.left |= bool(self.agreements.of(self.place, END_OF_LOOP))  # this rank has not come to that
            return
        changes = identity.changes(state["identity"], self.identity, self.accepted)
        if self.outer is None and state["position"].get("back"):
            raise UserError(
                "the checkpoint is from the middle of an epoch of which samples were put back to be dealt again, as"
                " only training with sync= does: resume with sync=, and remove it at an epoch's end"
            )
        self._goals_taken = identity.goals(state["identity"])
        state = self._on_device(state)
        own_options = any(name == OPTIONS for name, _, _ in changes)
        if self.outer is not None and not saved and (self.position.step or self.outer.settings.inner == FRESH):
            state = self.steppers.with_own_state(state)
        self._adopt(state, own_options=own_options)
        if self.outer is not None:
            self.outer.restore(state.get("outer", {}))
        self.changing |= set(state["changing"])
        self.position = Position(**state["position"])
        self.phases = list(state["phases"])
        self.agreed_step = self.position.step
        self.standing = Standing.NEW
        self.ledger = Lineage(state["ledger"].tolist())
        self.agreements = AgreementLog(state["minutes"])
        self.reports = MetricReports(self.reports.metric, state["reports"])
        self.changes = [AcceptedChange(*row) for row in state["changes"]]
        self.changes += [AcceptedChange(self.position.step, *change) for change in changes]
        begun = self.position.begun or state["behind"]  # before its first batch a script may evaluate
        self.catch_up.took(state, partial(self._adopt, state, own_options=own_options) if begun else None)
        if changes:
            self.keep()
        rng.restore(state["rng"])
        self.call_on_restore()

    def _is_there(self, state: Mapping[str, Any]) -> bool:
        """Whether the script runs what follows the same step as ``state``, and not for the second time."""
        at_first = self.catch_up.since is None and not self.position.step
        if at_first or self.catch_up.repeats or self.catch_up.behind:
            return False
        ours, theirs = (self.catch_up.since or {"position": asdict(self.position)})["position"], state["position"]
        same = all(ours[name] == theirs[name] for name in ("epoch", "step", "phase", "at_end"))
        return same and np.array_equal(self.ledger.table(), state["ledger"])

    @torch.inference_mode(mode=False)
    def _adopt(self, state: Mapping[str, Any], *, own_options: bool) -> None:
        """Load models, optimizers, tracked objects and the script's own values from ``state``."""
        put_user(self.user, state["user"])
        extras = {name: one for name, one in state["model"].items() if name.endswith(_EXTRA_STATE_KEY_SUFFIX)}
        load(state["model"] | copied(extras), into=self.model)  # a module may keep what it is given, and change it
        with torch.no_grad():
            for name, parameter in self.trained.bare.items():
                parameter.copy_(state["parameters"][name])
        self.trained.restore(state["trained"])
        self.put_stepped(state)
        if own_options:
            set_options(self.steppers, self._options)
        for name, one in self.tracked.items():
            load(copied(state["tracked"][name]), into=one)
        put_unsaved(state["unsaved"], self.model, self.tracked)

    def put_stepped(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` has of optimizers, schedulers and scalers."""
        if self.sharding is not None:
            state = {**state, "optimizer": optimizers_adopted(state["optimizer"], self.steppers)}
        self.steppers.restore(state)

    def call_on_restore(self) -> None:
        """Call the functions of ``session.on_restore``: the state was replaced."""
        self.restoring = True
        try:
            for function in self.on_restore:
                function()
        finally:
            self.restoring = False


_OF_THE_SCRIPT = ("user", "tracked", "phases")
"""Parts of the state whose tensors nobody else puts where they belong."""
