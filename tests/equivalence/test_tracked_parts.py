"""A script is not told of what other objects have whose values are in a tracked object's state (an adapter's), and told
of what is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pilot.core.errors import UserError
from tests.equivalence.keeping import said

State = dict[str, Any]


class Average:
    """Of a library, or of the script's: not what ``session.track`` takes."""

    def __init__(self) -> None:
        self.updates, self.constant, self.losses = 0, 3, [0.0]
        self.options = {"rate": 1.0}
        self.module = nn.Linear(2, 1)
        self.mean, self.shadow = torch.zeros(2), {"weight": torch.zeros(2), "bias": torch.zeros(2)}

    def update(self) -> None:
        self.updates += 1
        self.losses.append(float(self.updates))
        self.options["rate"] /= 2
        self.mean += 1
        for one in (*self.module.parameters(), *self.shadow.values()):
            one.detach().add_(1)

    def values(self) -> State:
        return {"updates": self.updates, "losses": [*self.losses], "options": dict(self.options)}

    def tensors(self) -> State:
        return {"mean": self.mean, "module": self.module.state_dict(), **self.shadow}

    def state_dict(self) -> State:
        return self.values() | self.tensors()


class Adapter:
    """``saved``: what of it is in the state."""

    def __init__(self, average: Any, saved: Callable[[Any], State]) -> None:
        self.average, self.saved, self.own = average, saved, 0

    def state_dict(self) -> State:
        return self.saved(self.average)

    def load_state_dict(self, state: State) -> None:
        """No node joins here."""


class Renaming(Adapter):
    """It reads what it saves."""

    def state_dict(self) -> State:
        its, copies = self.average, {name: one.clone() for name, one in self.average.shadow.items()}
        state = {"n": its.updates, "history": its.losses, "o": its.options, "of": its.module.state_dict()}
        return {**state, "m": its.mean.clone(), "copies": copies}


def told(adapter: Any, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The names, of parts of what the adapter has, in what a script is told that updates that."""
    average = adapter.average

    def script(ours: Any, loader: Any, step: Any) -> None:
        ours.track("average", adapter)
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                average.update()

    lines = said(script, capsys)
    names = {name for line in lines for name in line.partition("in its loop (")[2].partition(")")[0].split(", ")}
    return {name.rpartition("average.")[2] for name in names}


@pytest.mark.parametrize(
    "adapter",
    [
        Adapter(Average(), Average.state_dict),
        Adapter(Average(), lambda its: {"its": its.state_dict()}),
        Adapter(Average(), lambda its: vars(its) | {"module": its.module.state_dict()}),
        Renaming(Average(), Average.state_dict),
    ],
)
def test_not_of_what_is_in_its_state(adapter: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(adapter, capsys) == set()


@pytest.mark.parametrize(
    ("name", "its"),
    [
        ("updates", {"updates"}),
        ("losses", {"losses"}),
        ("options", {"options['rate']"}),
        ("mean", {"mean"}),
        ("module", {"module.weight", "module.bias"}),
        ("weight", {"shadow['weight']"}),
    ],
)
def test_of_what_is_not_there(name: str, its: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    def saved(average: Any) -> State:
        return {key: value for key, value in average.state_dict().items() if key != name}

    adapter = Adapter(Average(), saved)
    assert told(adapter, capsys) == its


def test_of_what_is_there_by_another_value(capsys: pytest.CaptureFixture[str]) -> None:
    """As it was when the adapter was made."""
    first = Average().values()
    adapter = Adapter(Average(), lambda its: first | its.tensors())
    assert told(adapter, capsys) - {"..."} == {"updates", "losses", "options['rate']"}


class Two(Average):
    """Has another one, whose count may be the one that is in the state."""

    def __init__(self) -> None:
        super().__init__()
        self.other = Counter()

    def update(self) -> None:
        super().update()
        self.other.updates += 1


class Counter:
    """Of updates."""

    updates = 0


def test_of_two_that_are_alike_if_only_one_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    adapter = Adapter(Two(), Average.state_dict)
    assert "other.updates" in told(adapter, capsys)


def test_a_dict_and_a_list_of_the_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    class Kept:
        """Two variables."""

        def __init__(self) -> None:
            self.counts, self.losses = counts, losses

        def state_dict(self) -> State:
            return {"counts": self.counts, "losses": [*self.losses]}

        def load_state_dict(self, state: State) -> None:
            """No node joins here."""

    counts: dict[str, int] = {"seen": 0}
    losses, others = [0.0], [0.0]

    def script(ours: Any, loader: Any, step: Any) -> None:
        ours.track("kept", Kept())
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                counts["seen"] += 1
                losses.append(1.0)
                others.append(1.0)

    (line,) = said(script, capsys)
    assert "others" in line
    assert "losses" not in line
    assert "seen" not in line


class Shadows(Average):
    """Of the model's parameters, by their names."""

    def __init__(self, names: State) -> None:
        super().__init__()
        self.shadow = {name: one.clone() for name, one in names.items()}
        self.backup = {name: one.clone() for name, one in names.items()}

    def update(self) -> None:
        for one in self.shadow.values():
            one.add_(1)


def train_with(saved: Callable[[Any], State]) -> Callable[[Any, Any, Any], None]:
    def script(ours: Any, loader: Any, step: Any) -> None:
        shadows = Shadows(ours._training.model.state_dict())
        ours.track("average", Adapter(shadows, saved))
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                shadows.update()

    return script


@pytest.mark.parametrize(
    "saved",
    [
        lambda its: dict(its.shadow),
        lambda its: {"tensors": [*its.shadow.values()]},
        lambda its: {"shadow": {name: one.clone() for name, one in its.shadow.items()}},
    ],
)
def test_an_average_by_the_models_names_that_is_there(
    saved: Callable[[Any], State], capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(train_with(saved), capsys) == []


def test_one_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"shadows\.shadow, an average"):
        said(train_with(lambda its: dict(its.backup)), capsys)


class Own:
    """An average that is tracked, and counts its updates."""

    def __init__(self) -> None:
        self.module = nn.Linear(2, 1)
        self.updates, self.calls, self.decay, self.last = 0, 0, 0.9, 0.0

    def update(self) -> None:
        self.updates += 1
        self.calls += 1  # which nothing reads
        self.last = self.decay * (1 - 0.5**self.updates)
        for one in self.module.parameters():
            one.detach().mul_(self.last)

    def state_dict(self) -> State:
        return self.module.state_dict()

    def load_state_dict(self, state: State) -> None:
        """No node joins here."""


class Turned(Own):
    """A count that is set back, in a base class whose functions would have it in its state."""

    def update(self) -> None:
        self.updates += 1
        if self.updates >= 4:
            self.updates = 0
            for one in self.module.parameters():
                one.detach().mul_(self.decay)


class Base(Turned):
    def state_dict(self) -> State:
        return dict(vars(self))


class Within(Base):
    def state_dict(self) -> State:
        return self.module.state_dict() | {"lr": 0, "params": [0, 1, 2, 3]}


class Read(Own):
    """By the script."""

    def update(self) -> None:
        self.last *= 0.9


class Saved(Own):
    """By the count's own name."""

    def state_dict(self) -> State:
        return {"updates": self.updates, "module": self.module.state_dict()}


class Packed(Own):
    """By a method, as another value."""

    def packed(self) -> torch.Tensor:
        return torch.tensor(2 * self.updates)

    def state_dict(self) -> State:
        return {"n": self.packed(), "module": self.module.state_dict()}


class Whole(Own):
    """All that it has."""

    def state_dict(self) -> State:
        return {name: one for name, one in vars(self).items() if not isinstance(one, nn.Module)}


class Derived(Own):
    """From what the state has."""

    def load_state_dict(self, state: State) -> None:
        self.updates = int(state["bias"][0])


def train_with_own(one: Any) -> Callable[[Any, Any, Any], None]:
    def script(ours: Any, loader: Any, step: Any) -> None:
        ours.track("average", one)
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                one.update()

    return script


def test_of_a_number_of_its_own_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(train_with_own(Own()), capsys)
    assert "in its loop (average.updates), and" in line


@pytest.mark.parametrize("kind", [Turned, Within])
def test_of_a_count_that_is_set_back(kind: type[Own], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(train_with_own(kind()), capsys)
    assert "in its loop (average.updates), and" in line


def test_of_a_number_that_the_script_reads(capsys: pytest.CaptureFixture[str]) -> None:
    one = Read()
    one.last = 1.0

    def script(ours: Any, loader: Any, step: Any) -> None:
        ours.track("average", one)
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x * one.last, y)
                one.update()

    (line,) = said(script, capsys)
    assert "in its loop (average.last), and" in line


@pytest.mark.parametrize("kind", [Saved, Packed, Whole, Derived])
def test_not_of_a_number_of_its_own_that_is_there(kind: type[Own], capsys: pytest.CaptureFixture[str]) -> None:
    assert said(train_with_own(kind()), capsys) == []


def test_not_of_variables_that_a_tracked_object_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        best, rows, seen = 0.0, 0, [0]

        class Kept:
            def state_dict(self) -> State:
                return {"best": best, "seen": seen, "rows": rows}

            def load_state_dict(self, state: State) -> None:
                nonlocal best, rows
                best, rows, seen[:] = state["best"], state["rows"], state["seen"]

        ours.track("kept", Kept())
        for _ in ours.epochs(2):
            for x, y in loader:
                best, rows = max(best, x.max().item()), rows + len(x)
                seen[0] += 1
                step(x, y)

    assert "\n".join(said(script, capsys)) == ""


def test_of_variables_that_it_does_not_give_back(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        best, rows = 0.0, 0

        class Kept:
            def state_dict(self) -> State:
                return {"best": best, "rows": rows}

            def load_state_dict(self, state: State) -> None:
                nonlocal rows
                rows = state["rows"]

        ours.track("kept", Kept())
        for _ in ours.epochs(2):
            for x, y in loader:
                best, rows = max(best, x.max().item()), rows + len(x)
                step(x, y)

    told = " ".join(said(script, capsys))
    assert all(name in told for name in ("Kept.state_dict.best", ", best)"))


def test_not_of_what_objects_around_a_tracked_one_have(capsys: pytest.CaptureFixture[str]) -> None:
    class Loop:
        def __init__(self) -> None:
            self.average, self.step, self.other = Average(), 0, 0

        def kept(self) -> Any:
            loop = self

            class Kept:
                def state_dict(self) -> State:
                    return {"m": loop.average.mean, "step": loop.step, "rates": loop.average.options}

                def load_state_dict(self, state: State) -> None:
                    loop.step = state["step"]

            return Kept()

    def script(ours: Any, loader: Any, step: Any) -> None:
        loop = Loop()
        ours.track("kept", loop.kept())
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                loop.step, loop.other = loop.step + 1, loop.other + 1
                loop.average.mean += 1
                loop.average.options["rate"] /= 2

    (line,) = said(script, capsys)
    assert "in its loop (loop.other)" in line
