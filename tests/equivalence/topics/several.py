"""Several models and optimizers, tracked objects, and changes of the trained set. Of those that train, the tests are in
files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session
from tests.equivalence.refusing import Refusals
from tests.equivalence.rows import Elsewhere, Row, Topic


def elsewhere(module: str, scripts: dict[str, str], refused: dict[str, tuple[str, str]] | None = None) -> list[Row]:
    """Rows tested in ``module``: the name by script; for a refused one, also what to do instead."""
    rows = [(script, name, "") for script, name in scripts.items()]
    rows += [(script, *words) for script, words in (refused or {}).items()]
    return [Elsewhere(name=name, test=f"{module}:{script}", instead=instead) for script, name, instead in rows]


SEVERAL = elsewhere(
    "test_several",
    {
        "gan": "a GAN: two models, two optimizers with names, a scheduler",
        "several_critics": "a GAN whose generator has its turn in each second batch",
        "normed": "a GAN with a spectral norm",
        "frozen_norm": "a GAN whose generator has a batch norm in evaluation mode",
        "toggled": "each of two parts frozen while the other one trains",
        "together": "one loss, two optimizers over parts of one model",
        "all_at_once": "two backwards, two optimizers stepped at once",
        "bare_parameter": "a parameter that is in the optimizer and in no module",
        "sums_used": "session.sum of one of two optimizers",
    },
)
TRACKED = elsewhere(
    "test_tracked",
    {
        "average_after": "swa_utils.AveragedModel (EMA), tracked",
        "average_before": "an EMA teacher in the loss, tracked",
        "counter": "an object with state_dict, tracked",
        "own_scheduler": "a scheduler that the script steps, tracked",
        "slow_weights": "an optimizer around the session's (Lookahead), tracked",
        "learns_from_rollouts": "data made in the loop (rollouts), tracked",
        "forward_changes": "a module whose forward replaces and scales its tensors",
    },
)
GROWING = elsewhere(
    "test_growing",
    {
        "in_the_model": "a model's buffer that grows between epochs (exemplars)",
        "tracked": "a tracked module's buffer that grows between epochs (rollouts)",
    },
)
CHANGES = elsewhere(
    "test_trained_set",
    {
        "unfrozen": "a layer unfrozen at an epoch's beginning",
        "pruned_further": "a layer pruned further at an epoch's beginning, by importance_scores=",
        "layer_by_layer": "one group more in each epoch",
        "frozen_later": "a layer frozen and unfrozen, alternately",
        "by_name": "an optimizer of named parameters, add_param_group",
    },
)
REFUSED = Refusals()


@REFUSED.script("a parameter in two optimizers", "number 0 of group 0 of .* '1'.* is number 2 .* '0' as well", "in one")
def in_two_optimizers() -> None:
    model = fresh(mlp)
    session(model, [torch.optim.SGD(model.parameters(), lr=1), torch.optim.SGD(model[2].parameters(), lr=1)])


@REFUSED.script(
    "a scheduler without its optimizer's name",
    "pass the schedulers as a dict with the same names",
    "a dict by the same names",
)
def scheduler_without_name() -> None:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    session({"a": model}, {"a": optimizer}, torch.optim.lr_scheduler.StepLR(optimizer, 1), schedule="step")


@REFUSED.script("a list of models", "a dict of several by name", "a dict of them by name")
def list_of_models() -> None:
    model = fresh(mlp)
    session([model], torch.optim.SGD(model.parameters(), lr=1))


@REFUSED.script("no optimizer", "needs an optimizer", "one")
def no_optimizer() -> None:
    session(fresh(mlp), {})


class Two:
    """Two models that use each other, and a session for both."""

    def __init__(self) -> None:
        self.one, self.other = nn.Linear(3, 1, dtype=torch.float64), nn.Linear(1, 1, dtype=torch.float64)
        optimizers = {name: torch.optim.SGD(getattr(self, name).parameters(), lr=0.1) for name in ("one", "other")}
        self.session = session({"one": self.one, "other": self.other}, optimizers)
        self.optimizers = optimizers

    def batches(self, **options: Any) -> Any:
        loader = self.session.loader(DATA, global_batch_size=BATCH, **options)
        for _ in self.session.epochs(1):
            yield from loader

    def zero_grad(self) -> None:
        self.one.zero_grad()
        self.other.zero_grad()


@REFUSED.made("gradients of another optimizer, without its zero_grad", "zero_grad", "zero_grad of both", Two)
def uses_the_others_gradients(two: Two) -> None:
    for x, _ in two.batches():
        two.zero_grad()
        two.other(two.one(x)).sum().backward()
        two.session.step(name="one")
        two.other(x[:, :1]).sum().backward()
        two.session.step(name="other")


@REFUSED.made("one of two optimizers stepped by the script", r"optimizer.step\(\)", "session.step(loss, name)", Two)
def steps_one_itself(two: Two) -> None:
    for x, _ in two.batches():
        two.zero_grad()
        two.one(x).sum().backward()
        two.optimizers["one"].step()
        two.session.step(name="other")


@REFUSED.made("a step by a name that no optimizer has", "the names are 'one', 'other'", "one of the names", Two)
def unknown_name(two: Two) -> None:
    for _ in two.batches():
        two.session.step(name="third")


@REFUSED.made("optimizers by name, micro_batch_size", "micro_batch_size needs", "stepped at once", Two)
def in_micro_batches(two: Two) -> None:
    for _ in two.batches(micro_batch_size=1):
        two.session.step()


@REFUSED.made("a batch in which none of the optimizers is stepped", "without calling session.step", "session.step", Two)
def steps_none(two: Two) -> None:
    for x, _ in two.batches():
        two.one(x).sum().backward()


class Counter:
    """The script's own object."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def tracking() -> Any:
    model = fresh(mlp)
    ours = session(model, torch.optim.SGD(model.parameters(), lr=0.05))
    ours.loader(DATA, global_batch_size=BATCH)
    return ours


@REFUSED.made("session.track in the loop", "before session.epochs, once", "before session.epochs", tracking)
def tracks_late(ours: Any) -> None:
    for _ in ours.epochs(1):
        ours.track("late", Counter())


@REFUSED.made("two objects tracked by one name", "once per name", "two names", tracking)
def tracks_twice(ours: Any) -> None:
    ours.track("counter", Counter())
    ours.track("counter", Counter())


@REFUSED.made("tracking what has no state_dict", "needs an object with state_dict", "`session.state`", tracking)
def tracks_a_number(ours: Any) -> None:
    ours.track("number", 3)


@REFUSED.made(
    "tracking a state that cannot be saved",
    r"counter.state_dict\(\)\['seen'\]\[0\] is of type object",
    "tensors, numbers, ...",
    tracking,
)
def tracks_what_does_not_fit(ours: Any) -> None:
    count = Counter()
    count.seen = [object()]  # type: ignore[list-item]  # it does not fit
    ours.track("counter", count)
    for _ in ours.epochs(1):
        pass


class Takes(Counter):
    """Its state_dict has what its load_state_dict does not take."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["counter"])


@REFUSED.made(
    "tracking a state that its object cannot load",
    r"load_state_dict does not take what its state_dict gave \(KeyError: 'counter'\)",
    "a load_state_dict that takes it",
    tracking,
)
def tracks_what_cannot_be_loaded(ours: Any) -> None:
    ours.track("counter", Takes())


def frozen() -> Any:
    model = fresh(mlp)
    model[0].requires_grad_(False)
    return model


class Loop:
    """A script's objects."""

    def __init__(self) -> None:
        self.model = frozen()
        self.optimizer = torch.optim.SGD(self.model[2].parameters(), lr=0.1)
        self.session = session(self.model, self.optimizer)
        self.loader = self.session.loader(DATA, global_batch_size=BATCH)

    def passes(self, change: Callable[[int], None]) -> None:
        for epoch in self.session.epochs(3):
            change(epoch)
            for x, y in self.loader:
                self.optimizer.zero_grad()
                mse_loss(self.model(x), y).backward()
                self.session.step()


@REFUSED.made(
    "a layer unfrozen that no optimizer has",
    "0.weight was unfrozen but the optimizer does not have it",
    "add_param_group",
    Loop,
)
def unfreezes_what_nobody_steps(loop: Loop) -> None:
    loop.passes(lambda _: loop.model[0].requires_grad_(True))


@REFUSED.made(
    "add_param_group with a parameter made later",
    "number 0 of group 1 of the optimizer was added after the session was created",
    "before the session",
    Loop,
)
def adds_a_new_parameter(loop: Loop) -> None:
    loop.passes(lambda _: loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}))


@REFUSED.made(
    "another parameter in the place of one",
    r"another parameter has taken the place of 0.bias .* \(register_buffer\)",
    "written into it",
    Loop,
)
def replaces_a_parameter(loop: Loop) -> None:
    def replace(epoch: int) -> None:
        if epoch:
            loop.model[0].bias = nn.Parameter(loop.model[0].bias * 0.9)

    loop.passes(replace)


TOPIC = Topic(
    70,
    "Several models and optimizers, what is tracked, what is trained",
    [*SEVERAL, *TRACKED, *GROWING, *CHANGES, *REFUSED],
)
