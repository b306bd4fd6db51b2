"""Several models and optimizers: stepped together, or each by name, one after the other per batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.equivalence.loops import (
    BATCH,
    DATA,
    EPOCHS,
    Loop,
    Make,
    Result,
    SessionScript,
    fresh,
    linear,
    mlp,
    session,
    sgd,
    tensors,
)
from tests.equivalence.refusing import Refusals
from tests.equivalence.rows import Row, Topic


class Several:
    """The objects of a script with one optimizer by name for each of several models."""

    def __init__(
        self, make: Make, optimizers: dict[str, Callable[[Any], torch.optim.Optimizer]], **models: Any
    ) -> None:
        self.models = {name: model if isinstance(model, nn.Module) else fresh(model) for name, model in models.items()}
        self.optimizers = {name: kind(self.models[name].parameters()) for name, kind in optimizers.items()}
        self.session = make(self.models, self.optimizers)
        self.loader = self.session.loader(DATA, global_batch_size=BATCH)

    def batches(self) -> Any:
        for _ in self.session.epochs(EPOCHS):
            yield from self.loader

    def step_all(self, x: torch.Tensor) -> None:
        for name, model in self.models.items():
            self.optimizers[name].zero_grad()
            model(x).square().mean().backward()
            self.session.step(name=name)

    def tensors(self, **others: Any) -> Result:
        return tensors(**self.models, **{f"steps {name}": one for name, one in self.optimizers.items()}, **others)


def adam(lr: float = 0.02, **options: Any) -> Any:
    return partial(torch.optim.Adam, lr=lr, **options)


WIDE, NARROW = partial(nn.Linear, 3, 2), partial(nn.Linear, 2, 1)


def critic() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))


def normed_critic() -> nn.Module:
    return nn.Sequential(spectral_norm(nn.Linear(1, 4)), nn.Tanh(), nn.Linear(4, 1))


def normed_generator() -> nn.Module:
    return nn.Sequential(mlp(), nn.BatchNorm1d(1).eval())


def gan(
    make: Make, critics: Callable[[], nn.Module] = critic, generators: Callable[[], nn.Module] = mlp, every: int = 1
) -> Result:
    """As in the textbook: two backwards for the critic, whose gradients then also receive the generator's."""
    critic, generator = fresh(critics), fresh(generators)
    steps_critic, steps_generator = adam(betas=(0.5, 0.9))(critic.parameters()), sgd(generator.parameters())
    decay = torch.optim.lr_scheduler.ExponentialLR(steps_critic, 0.95)
    session = make(
        {"critic": critic, "generator": generator},
        {"critic": steps_critic, "generator": steps_generator},
        {"critic": decay},
        schedule="step",
    )
    loader = session.loader(DATA, global_batch_size=BATCH)
    for _ in session.epochs(EPOCHS):
        for noise, real in loader:
            number = session.steps
            steps_critic.zero_grad()
            critic(real).square().mean().backward()
            fake = generator(noise)
            loss = (critic(fake.detach()) - 1).square().mean()
            loss.backward()
            if session.step(loss, "critic"):
                session.state["critic"] = session.state.get("critic", 0) + 1
            if number % every == every - 1:
                steps_generator.zero_grad()
                loss = critic(fake).square().mean()
                loss.backward()
                session.clip_grad_norm(0.1)
                session.step(loss, "generator")
    return tensors(
        critic=critic, generator=generator, a=steps_critic, b=steps_generator, decay=decay, state=session.state
    )


def averaged_critic(make: Make) -> Result:
    """The generator's graph goes through an average of the critic, and outlives the critic's step."""
    its = Several(make, {"critic": adam(), "generator": sgd}, critic=critic, generator=mlp)
    average = AveragedModel(its.models["critic"], multi_avg_fn=get_ema_multi_avg_fn(0.9))
    its.session.track("average", average)
    for noise, real in its.batches():
        its.optimizers["generator"].zero_grad()
        fooled = average(its.models["generator"](noise)).square().mean()
        its.optimizers["critic"].zero_grad()
        its.models["critic"](real).square().mean().backward()
        its.session.step(name="critic")
        fooled.backward()
        its.session.step(fooled, "generator")
        average.update_parameters(its.models["critic"])
    return its.tensors(average=average)


def toggled(make: Make) -> Result:
    its = Several(make, {"one": partial(sgd, lr=0.1), "other": adam()}, one=WIDE, other=NARROW)
    one, other = its.models.values()
    for x, y in its.batches():
        for name, model, rest in (("one", one, other), ("other", other, one)):
            model.requires_grad_(True)
            rest.requires_grad_(False)
            its.optimizers[name].zero_grad(set_to_none=name == "one")
            mse_loss(other(one(x)), y).backward()
            its.session.step(name=name)
    return its.tensors()


def together(make: Make) -> Result:
    """With a scheduler each."""
    model = fresh(mlp)
    optimizers = [sgd(model[0].parameters()), adam()(model[2].parameters())]
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 3) for one in optimizers]
    ours = make(model, optimizers, schedulers, schedule="step")
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(EPOCHS):
        for x, y in loader:
            model.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    return tensors(model=model, a=optimizers[0], b=optimizers[1], schedules=schedulers[1])


def all_at_once(make: Make) -> Result:
    """Named optimizers whose backwards are all run before any step: stepped without a name."""
    its = Several(make, {"actor": sgd, "critic": adam()}, actor=linear, critic=linear)
    actor, critic = its.models.values()
    for x, y in its.batches():
        for optimizer in its.optimizers.values():
            optimizer.zero_grad()
        mse_loss(critic(x) + actor(x), y).backward()
        (critic(x).detach() - actor(x)).square().mean().backward()
        its.session.step()
    return its.tensors()


def bare_parameter(make: Make) -> Result:
    """A temperature outside any module."""
    scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
    loop = Loop(make, linear, lambda its: torch.optim.Adam([*its, scale], lr=0.01))
    loop.train(body=lambda x, y: loop.step(x, y, factor=scale.square().sum()))
    return loop.tensors(scale=[scale])


def sums_used(make: Make) -> Result:
    its = Several(make, {"one": sgd, "other": sgd}, one=linear, other=linear)
    one, other = its.models.values()
    for x, y in its.batches():
        one.zero_grad()
        mse_loss(one(x), y).backward()
        if its.session.sum(name="one"):
            nn.utils.clip_grad_value_(one.parameters(), 0.1)
        its.session.step(name="one")
        other.zero_grad()
        mse_loss(other(x), one(x).detach()).backward()
        its.session.step(name="other")
    return its.tensors()


class Total:
    """A tracked counter."""

    number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


def counted(make: Make) -> Result:
    """Counts and decisions at a batch's beginning and between its steps: by a tracked counter, and in
    ``session.state``. Each optimizer has its turn in some batches.
    """
    names = ("one", "two", "three")
    its = Several(make, dict.fromkeys(names, sgd), **dict.fromkeys(names, linear))
    total, state = Total(), its.session.state
    its.session.track("total", total)
    state["turns"] = 0
    for x, y in its.batches():
        total.number += 1
        state["turns"] += 1
        state["begun"] = state.get("begun", 0) + 1
        last = total.number % 2 == 0
        scales = {"one": 1 / total.number, "two": 1 / state["begun"], "three": 1 / state["turns"]}
        for name, model in its.models.items():
            if name == "three" and not last:
                continue
            its.optimizers[name].zero_grad()
            loss = scales[name] * mse_loss(model(x), y) / state.get("between", 1)
            loss.backward()
            its.session.step(loss, name)
            state["between"] = state.get("between", 1) + 1
            state["turns"] += 2
            if name == "two":
                last = last and state["turns"] % 3 != 1 + total.number % 2
                total.number += 2
    return its.tensors(state=state, total=total)


ROWS: list[Row] = [
    SessionScript(name=name, run=script)
    for name, script in {
        "a GAN: two models, two optimizers with names, a scheduler": gan,
        "a GAN whose generator has its turn in each second batch": partial(gan, every=2),
        "a GAN with a spectral norm": partial(gan, critics=normed_critic),
        "a GAN whose generator has a batch norm in evaluation mode": partial(gan, generators=normed_generator),
        "a GAN whose generator learns from an average of the critic": averaged_critic,
        "each of two parts frozen while the other one trains": toggled,
        "one loss, two optimizers over parts of one model": together,
        "two backwards, two optimizers stepped at once": all_at_once,
        "a parameter that is in the optimizer and in no module": bare_parameter,
        "session.sum of one of two optimizers": sums_used,
        "three optimizers, each in some batches, by a tracked counter and counts in session.state": counted,
    }.items()
]
REFUSED = Refusals()


@REFUSED.script("a parameter in two optimizers", "number 0 of group 0 of .* '1'.* is number 2 .* '0' as well", "in one")
def in_two_optimizers() -> None:
    model = fresh(mlp)
    session(model, [sgd(model.parameters()), sgd(model[2].parameters())])


@REFUSED.script(
    "a scheduler without its optimizer's name",
    "pass the schedulers as a dict with the same names",
    "a dict by the same names",
)
def scheduler_without_name() -> None:
    model = fresh(mlp)
    optimizer = sgd(model.parameters())
    session({"a": model}, {"a": optimizer}, torch.optim.lr_scheduler.StepLR(optimizer, 1), schedule="step")


@REFUSED.script("a list of models", "a dict of several by name", "a dict of them by name")
def list_of_models() -> None:
    model = fresh(mlp)
    session([model], sgd(model.parameters()))


REFUSED.script("no optimizer", "needs an optimizer", "one")(lambda: session(fresh(mlp), {}))


class Two(Several):
    """Two models that use each other."""

    def __init__(self) -> None:
        one, other = nn.Linear(3, 1, dtype=torch.float64), nn.Linear(1, 1, dtype=torch.float64)
        super().__init__(session, {"one": sgd, "other": sgd}, one=one, other=other)
        self.one, self.other = one, other

    def backward(self, x: torch.Tensor) -> None:
        self.one.zero_grad()
        self.other.zero_grad()
        self.other(self.one(x)).sum().backward()


@REFUSED.made("gradients of another optimizer, without its zero_grad", "zero_grad", "zero_grad of both", Two)
def uses_the_others_gradients(two: Two) -> None:
    for x, _ in two.batches():
        two.backward(x)
        two.session.step(name="one")
        two.other(x[:, :1]).sum().backward()
        two.session.step(name="other")


@REFUSED.made("one of two optimizers stepped by the script", r"optimizer.step\(\)", "session.step(loss, name)", Two)
def steps_one_itself(two: Two) -> None:
    for x, _ in two.batches():
        two.backward(x)
        two.optimizers["one"].step()
        two.session.step(name="other")


REFUSED.made("a step by a name that no optimizer has", "the names are 'one', 'other'", "one of the names", Two)(
    lambda two: [two.session.step(name="third") for _ in two.batches()]
)


@REFUSED.script("optimizers by name, micro_batch_size", "micro_batch_size needs", "stepped at once")
def in_micro_batches() -> None:
    model = fresh(mlp)
    session({"a": model}, {"a": sgd(model.parameters())}).loader(DATA, global_batch_size=BATCH, micro_batch_size=1)


REFUSED.made("a batch in which none of the optimizers is stepped", "without calling session.step", "session.step", Two)(
    lambda two: [two.backward(x) for x, _ in two.batches()]
)
TOPIC = Topic(70, "Several models and optimizers", [*ROWS, *REFUSED])
