"""What the script of a composition does with a batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tests.equivalence.composed.choices import Nothing
from tests.equivalence.composed.covering import MICRO, Composition
from tests.equivalence.loops import DATA, TensorDataset

HALF = TensorDataset(*(tensor[::2] for tensor in DATA.tensors))


class Steps:
    """See the module; ``names``: the optimizers are stepped by name."""

    chosen: Composition
    session: Any
    model: Any
    critic: nn.Module
    parameters: list[nn.Parameter]
    start: list[torch.Tensor]
    optimizer: Any
    optimizers: list[Any]
    scheduler: Any
    scaler: Any
    rates: list[Any]
    other: Nothing
    names: bool
    passed: int

    def _batch(self, batch: Any, number: int) -> None:
        session, chosen = self.session, self.chosen
        x, y, *others = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        self._zero_grad("before", "to zero")
        self._set_rates(number)
        if chosen["model"] == "unused layer":
            self.model.use_extra.fill_(session.steps % 2 == 0)
        if self.names:
            stepped = self._step_critic(x)
            if chosen["optimizer"] == "by names, in turns" and session.steps % 2:
                return self._stepped() if stepped else None
        loss = self._loss(x, y, *others)
        if chosen["gradients"] == "by hand":
            self._set_gradients(loss)
        else:
            self._backward(loss)
        stepped = self._step(loss, self._weight(x))
        self._zero_grad("after the step")
        if stepped or chosen["batches"] not in MICRO:
            self.other.stepped(session.state.get("applied", 0))
        if stepped:
            self._stepped()
        return None

    def _set_rates(self, number: int) -> None:
        by = {"rate by steps": self.session.steps, "rate by number": number}.get(self.chosen["by hand"])
        if by is not None:
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=False):
                group["lr"] = rate / (1 + by)

    def _step_critic(self, x: torch.Tensor) -> bool:
        loss = (self.critic(x) - self.model(x).detach()).square().mean()
        self._backward(loss)
        stepped: bool = self.session.step(loss, "critic", **self._weight(x))
        self._zero_grad("before", "to zero")
        return stepped

    def _backward(self, loss: torch.Tensor) -> None:
        if self.chosen["scaler"] == "overflows" and self.session.steps == 5:
            loss = loss * math.inf
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def _set_gradients(self, loss: torch.Tensor) -> None:
        trained = [p for p in self.parameters if p.requires_grad]
        for p, g in zip(trained, torch.autograd.grad(loss, trained, allow_unused=True), strict=True):
            if g is not None:
                p.grad = g if p.grad is None else p.grad + g

    def _zero_grad(self, *when: str) -> None:
        if self.chosen["zeroed"] in when:
            for one in self.optimizers:
                one.zero_grad(set_to_none=self.chosen["zeroed"] != "to zero")

    def _weight(self, x: torch.Tensor) -> dict[str, Any]:
        return {"weight": self._weights(x).sum()} if self.chosen["weight"] == "of samples" else {}

    def _weights(self, x: torch.Tensor) -> torch.Tensor:
        return 1.0 + (x[:, 0] > 0)

    def _loss(self, x: torch.Tensor, y: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        output = self.model(x)
        each = (output - y).square().sum(1) + self.other.penalties(x, output)
        for other in others:
            each = each + 0.1 * (self.model(other) - output.detach()).square().sum(1)
        if self.names:
            for p in self.critic.parameters():
                p.requires_grad_(False)
            each = each + 0.1 * self.critic(output.expand(-1, 3)).square().sum(1)
            for p in self.critic.parameters():
                p.requires_grad_(True)
        if self.chosen["gradients"] == "penalty":
            inputs = x.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(self.model(inputs).sum(), inputs, create_graph=True, allow_unused=True)
            each = each if slope is None else each + 0.1 * slope.square().sum(1)
        weights = self._weights(x) if self.chosen["weight"] == "of samples" else torch.ones_like(each)
        loss = (weights * each).sum() / weights.sum()
        if self.chosen["other"] == "distance to the start":
            for p, start in zip(self.parameters, self.start, strict=True):
                loss = loss + 0.01 * (p - start).square().sum()
        return loss * (1 + 0.1 * self.session.state.get("drawn", 0.0))

    def _step(self, loss: torch.Tensor, weight: dict[str, Any]) -> bool:
        session, name = self.session, {"name": "model"} if self.names else {}
        match self.chosen["gradients"]:
            case "clipped":
                session.clip_grad_norm(0.3)
            case "decayed":
                with torch.no_grad():
                    self.parameters[-1].mul_(0.99)
            case "summed and clipped" | "summed and scaled" | "summed and noisy" as what:
                if session.sum(loss, **name, **weight):
                    self._use_gradients(what)
                return session.step(**name)
        return session.step(loss, **name, **weight)

    def _use_gradients(self, what: str) -> None:
        if self.scaler is not None:
            for one in [self.optimizer] if self.names else self.optimizers:
                self.scaler.unscale_(one)
        if what == "summed and clipped":
            nn.utils.clip_grad_norm_(self.parameters, 0.3)
            return
        for p in self.parameters:
            if p.grad is not None and what == "summed and scaled":
                p.grad.mul_(1 / (1 + self.session.steps))
            elif p.grad is not None:
                p.grad.add_(torch.randn_like(p), alpha=0.1)

    def _stepped(self) -> None:
        session, state, chosen = self.session, self.session.state, self.chosen
        self.passed += 1
        state["applied"] = state.get("applied", 0) + 1
        match chosen["state"]:
            case "tensors":
                norm = self.parameters[-1].detach().norm()
                state["norm"] = state.get("norm", torch.zeros_like(norm)).mul(0.9) + norm
            case "lists":
                state.setdefault("history", []).append(session.steps)
            case "drawn":
                generator = torch.Generator()
                generator.set_state(state.get("generator", torch.Generator().manual_seed(5).get_state()))
                state["drawn"] = torch.rand((), generator=generator).item()
                state["generator"] = generator.get_state()
        if chosen["by hand"] == "clamped":
            with torch.no_grad():
                self.parameters[-1].clamp_(-0.05, 0.05)
        if chosen["by hand"] == "momenta scaled":
            for its in self.optimizer.state.values():
                for name in ("momentum_buffer", "exp_avg"):
                    if isinstance(its.get(name), torch.Tensor):
                        its[name].mul_(0.9)
        if chosen["schedule"] == "tracked":
            self.scheduler.step()
        if chosen["evaluated"].endswith("between steps") and session.steps % 2 == 0:
            self._evaluate()
        if chosen["end"] == "stopped" and session.steps == 8:  # odd ones are not evaluated: nor is the last
            session.stop()

    # --- between them

    def _evaluate(self) -> None:
        state = self.session.state
        loss = self.session.evaluate(DATA, self._measures, batch_size=3)["loss"]
        if loss > state.get("best", math.inf) + 1e-9:  # several ranks' sums round otherwise
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.9
        state["best"] = min(loss, state.get("best", math.inf))

    def _evaluate_twice(self) -> None:
        """And go back to the best weights."""
        state = self.session.state
        losses = [self.session.evaluate(data, self._measures, batch_size=2)["loss"] for data in (DATA, HALF)]
        if min(losses) <= state.get("best", math.inf):
            state["best"] = min(losses)
            state["weights"] = {f"{i}": p.detach().clone() for i, p in enumerate(self.parameters)}
        else:
            with torch.no_grad():
                for p, best in zip(self.parameters, state["weights"].values(), strict=True):
                    p.copy_(best)

    def _evaluate_halves(self) -> None:
        """So that a rank that comes in the middle of an epoch evaluates more often than the others."""
        for size in (2, 4):
            self.session.evaluate(HALF, self._measures, batch_size=size)

    def _measures(self, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": (self.model(batch[0]) - batch[1]).square().mean()}

    def _measure(self) -> float:
        self.model.eval()
        with torch.no_grad():
            loss = self._measures(DATA.tensors)["loss"].item()
        self.model.train()
        return loss
