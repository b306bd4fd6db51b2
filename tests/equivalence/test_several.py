"""Several models and optimizers: stepped together, or each by name, one after the other per batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pilot.core.errors import UserError
from pilot.train.ranks import script_end
from tests.equivalence.loops import (
    BATCH,
    DATA,
    EPOCHS,
    Result,
    an_epoch,
    assert_equal,
    fresh,
    linear,
    mlp,
    session,
    tensors,
)
from tests.equivalence.rows import on_ranks
from tests.equivalence.topics.several import Two


def plain_critic() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))


def normed_critic() -> nn.Module:
    return nn.Sequential(spectral_norm(nn.Linear(1, 4)), nn.Tanh(), nn.Linear(4, 1))


def normed_generator() -> nn.Module:
    return nn.Sequential(mlp(), nn.BatchNorm1d(1).eval())


def wide() -> nn.Module:
    return nn.Linear(3, 2)


def narrow() -> nn.Module:
    return nn.Linear(2, 1)


def gan(
    made: Callable[..., Any], *, normed: bool = False, critics: int = 1, generators: Callable[[], nn.Module] = mlp
) -> Result:
    """As in the textbook: two backwards for the critic, whose gradients then also receive the generator's."""
    critic, generator = fresh(normed_critic if normed else plain_critic), fresh(generators)
    steps_critic = torch.optim.Adam(critic.parameters(), lr=0.02, betas=(0.5, 0.9))
    steps_generator = torch.optim.SGD(generator.parameters(), lr=0.05, momentum=0.9)
    decay = torch.optim.lr_scheduler.ExponentialLR(steps_critic, 0.95)
    session = made(
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
            if number % critics == critics - 1:
                steps_generator.zero_grad()
                loss = critic(fake).square().mean()
                loss.backward()
                session.clip_grad_norm(0.1)
                session.step(loss, "generator")
    return tensors(
        critic=critic, generator=generator, a=steps_critic, b=steps_generator, decay=decay, state=session.state
    )


def several_critics(made: Callable[..., Any]) -> Result:
    """The generator has its turn only in every second batch."""
    return gan(made, critics=2)


def normed(made: Callable[..., Any]) -> Result:
    """State changed by forward (the power iteration's vectors) changes as often as in the plain loop."""
    return gan(made, normed=True)


def frozen_norm(made: Callable[..., Any]) -> Result:
    """The generator's graph outlives the critic's step, and so do the buffers that it has saved."""
    return gan(made, generators=normed_generator)


def averaged_critic(made: Callable[..., Any]) -> Result:
    """The generator's graph goes through an average of the critic, and outlives the critic's step."""
    critic, generator = fresh(plain_critic), fresh(mlp)
    average = AveragedModel(critic, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizers = {
        "critic": torch.optim.Adam(critic.parameters(), lr=0.02),
        "generator": torch.optim.SGD(generator.parameters(), lr=0.05),
    }
    session = made({"critic": critic, "generator": generator}, optimizers)
    loader = session.loader(DATA, global_batch_size=BATCH)
    session.track("average", average)
    for _ in session.epochs(EPOCHS):
        for noise, real in loader:
            optimizers["generator"].zero_grad()
            fooled = average(generator(noise)).square().mean()
            optimizers["critic"].zero_grad()
            critic(real).square().mean().backward()
            session.step(name="critic")
            fooled.backward()
            session.step(fooled, "generator")
            average.update_parameters(critic)
    return tensors(critic=critic, generator=generator, average=average)


def toggled(made: Callable[..., Any]) -> Result:
    """Each part is frozen while the other one trains."""
    one, other = fresh(wide), fresh(narrow)
    optimizers = {"one": torch.optim.SGD(one.parameters(), lr=0.1), "other": torch.optim.Adam(other.parameters())}
    session = made({"one": one, "other": other}, optimizers)
    loader = session.loader(DATA, global_batch_size=BATCH)
    for _ in session.epochs(EPOCHS):
        for x, y in loader:
            for name, model, rest in (("one", one, other), ("other", other, one)):
                model.requires_grad_(True)
                rest.requires_grad_(False)
                optimizers[name].zero_grad(set_to_none=name == "one")
                mse_loss(other(one(x)), y).backward()
                session.step(name=name)
    return tensors(one=one, other=other)


def together(made: Callable[..., Any]) -> Result:
    """One loss, two optimizers over parts of one model, stepped together; a scheduler each."""
    model = fresh(mlp)
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.01)]
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 3) for one in optimizers]
    session = made(model, optimizers, schedulers, schedule="step")
    loader = session.loader(DATA, global_batch_size=BATCH)
    for _ in session.epochs(EPOCHS):
        an_epoch(session, loader, model, model)
    return tensors(model=model, a=optimizers[0], b=optimizers[1], schedules=schedulers[1])


def all_at_once(made: Callable[..., Any]) -> Result:
    """Named optimizers whose backwards are all run before any step: stepped without a name."""
    actor, critic = fresh(linear), fresh(linear)
    optimizers = {"actor": torch.optim.SGD(actor.parameters(), lr=0.1), "critic": torch.optim.Adam(critic.parameters())}
    session = made({"actor": actor, "critic": critic}, optimizers)
    loader = session.loader(DATA, global_batch_size=BATCH)
    for _ in session.epochs(EPOCHS):
        for x, y in loader:
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            mse_loss(critic(x) + actor(x), y).backward()
            (critic(x).detach() - actor(x)).square().mean().backward()
            session.step()
    return tensors(actor=actor, critic=critic)


def bare_parameter(made: Callable[..., Any]) -> Result:
    """A temperature outside any module."""
    model, scale = fresh(linear), nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.Adam([*model.parameters(), scale], lr=0.01)
    session = made(model, optimizer)
    loader = session.loader(DATA, global_batch_size=BATCH)
    for _ in session.epochs(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(scale * model(x), y)
            loss.backward()
            session.step(loss)
    return tensors(model=model, scale=[scale], optimizer=optimizer)


def sums_used(made: Callable[..., Any]) -> Result:
    """The script changes the gradient sums of one of two."""
    one, other = fresh(linear), fresh(linear)
    optimizers = {"one": torch.optim.SGD(one.parameters(), lr=0.1), "other": torch.optim.SGD(other.parameters(), lr=1)}
    session = made({"one": one, "other": other}, optimizers)
    loader = session.loader(DATA, global_batch_size=BATCH)
    for _ in session.epochs(EPOCHS):
        for x, y in loader:
            one.zero_grad()
            mse_loss(one(x), y).backward()
            if session.sum(name="one"):
                nn.utils.clip_grad_value_(one.parameters(), 0.1)
            session.step(name="one")
            other.zero_grad()
            mse_loss(other(x), one(x).detach()).backward()
            session.step(name="other")
    return tensors(one=one, other=other)


class Total:
    """A tracked counter."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


def counted(made: Callable[..., Any]) -> Result:
    """What a batch's beginning, and what is between its steps, count and decide by: a tracked counter, and some in
    ``session.state``. Each has its turn in some batches.
    """
    models = {name: fresh(linear) for name in ("one", "two", "three")}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.01) for name, model in models.items()}
    total = Total()
    session = made(models, optimizers)
    session.track("total", total)
    session.state["turns"] = 0
    loader = session.loader(DATA, global_batch_size=BATCH)
    for _ in session.epochs(EPOCHS):
        for x, y in loader:
            total.number += 1
            session.state["turns"] += 1
            session.state["begun"] = session.state.get("begun", 0) + 1
            last = total.number % 2 == 0
            scales = {"one": 1 / total.number, "two": 1 / session.state["begun"], "three": 1 / session.state["turns"]}
            for name, model in models.items():
                if name == "three" and not last:
                    continue
                optimizers[name].zero_grad()
                loss = scales[name] * mse_loss(model(x), y) / session.state.get("between", 1)
                loss.backward()
                session.step(loss, name)
                session.state["between"] = session.state.get("between", 1) + 1
                session.state["turns"] += 2
                if name == "two":
                    last = last and session.state["turns"] % 3 != 1 + total.number % 2
                    total.number += 2
    return tensors(**models, state=session.state, total=total)


SCRIPTS = [
    gan,
    several_critics,
    normed,
    frozen_norm,
    averaged_critic,
    toggled,
    together,
    all_at_once,
    bare_parameter,
    sums_used,
    counted,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.__name__ for script in SCRIPTS])
def test_equal_to_the_plain_loop(script: Callable[[Callable[..., Any]], Result]) -> None:
    assert_equal(script)


def test_ranks_that_step_different_optimizers_are_refused_with_both_names() -> None:
    def script() -> None:
        two = Two()
        for x, _ in two.batches():
            two.zero_grad()
            two.other(two.one(x)).sum().backward()
            two.session.step(name="one" if two.session.rank == 0 else "other")

    with pytest.raises(UserError, match="rank 0 steps 'one' and rank 1 steps 'other'"):
        on_ranks(script, 2, [])


def test_an_evaluation_right_after_the_last_of_several_steps_is_divided_among_the_ranks() -> None:
    def script() -> int:
        model, seen = fresh(linear), [0]
        made = session(model, {"a": torch.optim.SGD(model.parameters(), lr=0.1)})
        loader = made.loader(DATA, global_batch_size=BATCH)

        def measures(batch: Any) -> dict[str, float]:
            seen[0] += len(batch[0])
            return {"loss": 1.0}

        for _ in made.epochs(1):
            for x, y in loader:
                model.zero_grad()
                mse_loss(model(x), y).backward()
                made.step(name="a")
                if made.steps == 2:
                    made.evaluate(DATA, measures, batch_size=1)
        return seen[0]

    assert sum(on_ranks(script, 2, [])) == len(DATA)


def test_a_break_right_after_the_last_of_several_steps_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_end, "_left", [])
    model = fresh(linear)
    made = session(model, {"a": torch.optim.SGD(model.parameters(), lr=0.1)})
    loader = made.loader(DATA, global_batch_size=BATCH)
    for _ in made.iterations(5):
        x, y = loader.next()
        model.zero_grad()
        mse_loss(model(x), y).backward()
        made.step(name="a")
        break
    script_end.script_ended()
    assert made._training.position.stopped
