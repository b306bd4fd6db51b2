"""Runs a test's body up to the end of one of its scripts, without pytest: in a thread that is a rank, or as a program.

What the test asserts does not matter: its run ends when the script has ended. Each run has the test's module (and the
helpers) anew, as each process would.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import tempfile
import threading
from collections import namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
import torch

import pilot.train
from pilot.train.data import rng
from pilot.train.ranks import script_end
from pilot.train.ranks.group import Alone
from tests.equivalence import rows
from tests.unit.train import storm

ROOT = Path(__file__).parents[2]
STEPS = 6
"""Of an epoch of most scripts: so many iterations are an epoch."""
PER_EPOCH = "steps of the first epoch"
HERE = threading.local()
World = storm.World
_numbers = itertools.count()
_session = sys.modules["pilot.train.session"]
_group_of = _session.group_of
_finish, _epochs, _iterations = (getattr(pilot.train.Session, n) for n in ("_finish", "epochs", "iterations"))
_at_good_end = script_end.at_good_end
_Captured = namedtuple("_Captured", "out err")  # plain


class Done(BaseException):
    """The script has ended; the rest of the test does not matter."""


class Replay:
    """``row``: of recorded.jsonl. ``group``: makes the script's group. ``epochs``: at least so many (0: as the script
    has it). ``fresh``: whether it gets its test's module anew.
    """

    def __init__(self, row: dict[str, Any], group: Callable[..., Any], epochs: int, *, fresh: bool = True) -> None:
        self.row, self.group, self.epochs, self.fresh = row, group, epochs, fresh
        self.count, self.in_script = -1, False
        self.session: Any = None
        self.result: Any = None
        self.left: list[Callable[[], None]] = []
        self.patches: list[pytest.MonkeyPatch] = []

    def go(self) -> Any:
        """The script's result, see :func:`result_of`; None if it has no loop."""
        HERE.run = self
        rng.seed_all(0)
        try:
            self._body()
            self.end(certainly=True)
        except (Done, script_end.Released):
            pass
        except Exception as error:
            if self.result is None and not self._is_tests_own(error):
                raise
            self._close()
        if self.result is None and self.session is not None and hasattr(self.session, "_turns"):
            self.result = result_of(self.session)
        return self.result

    def _is_tests_own(self, error: Exception) -> bool:
        """Whether the test's own expectation failed, after the script's loop."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        name = self.row["test"].partition("[")[0].rpartition("::")[2]
        return (
            isinstance(error, AssertionError | ValueError)
            and trace is not None
            and trace.tb_frame.f_code.co_name == name
            and self.session is not None
            and hasattr(self.session, "_turns")
        )

    def next(self) -> None:
        """The test begins another script."""
        self.end()
        self.count += 1
        if self.count > self.row["number"]:
            raise Done

    def end(self, *, certainly: bool = False) -> None:
        """End the test if its script has ended."""
        turns = getattr(self.session, "_turns", None)
        if turns is None:
            return
        loop = turns()
        if loop is not None and loop.gi_frame is not None and not certainly and self.result is None:
            return
        self._close()
        raise Done

    def _close(self) -> None:
        """A script that left its loop by ``break`` has ended."""
        turns = getattr(self.session, "_turns", None)
        loop = turns() if turns is not None else None
        if loop is not None:
            loop.close()
        while self.left:
            self.left.pop()()

    # --- the test's arguments ----------------------------------------------------------------------------------------

    def _body(self) -> None:
        path, _, name = self.row["test"].partition("[")[0].partition("::")
        module = (_module_anew if self.fresh else importlib.import_module)(path.removesuffix(".py").replace("/", "."))
        test: Any = module
        for part in name.split("::"):
            test = getattr(test() if isinstance(test, type) else test, part)
        given = _given(module, test, self.row["index"])
        for one in list(vars(module).values()):
            if _is_autouse(one) and one.__name__ not in ("many_sessions", "sound_looks"):
                self._fixture(module, one.__name__, given)
        arguments = {name: self._fixture(module, name, given) for name in _arguments(test)}
        test(**arguments)

    def _fixture(self, module: Any, name: str, given: dict[str, Any]) -> Any:
        if name in given:
            return given[name]
        if name in ("capsys", "capfd"):
            return self
        if name == "tmp_path":
            return Path(tempfile.mkdtemp())
        if name == "monkeypatch":
            self.patches.append(pytest.MonkeyPatch())
            return self.patches[-1]
        function = getattr(module, name)._get_wrapped_function()
        found = function(**{one: self._fixture(module, one, given) for one in _arguments(function)})
        return next(found) if hasattr(found, "gi_frame") else found

    # --- as capsys ---------------------------------------------------------------------------------------------------

    def readouterr(self) -> Any:
        self.end()
        return _Captured("", "")

    def disabled(self) -> Any:
        return nullcontext()


def _arguments(function: Any) -> tuple[str, ...]:
    names = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
    return tuple(name for name in names if name != "self")


def _is_autouse(one: Any) -> bool:
    marker = getattr(one, "_fixture_function_marker", None)
    return marker is not None and bool(marker.autouse)


def _given(module: Any, test: Any, index: int) -> dict[str, Any]:
    """The values of a test's ``index``-th parametrization. The mark next to it changes last."""
    given = {}
    marks = [*getattr(test, "pytestmark", ()), *getattr(module, "pytestmark", ())]
    for mark in reversed([mark for mark in marks if mark.name == "parametrize"]):
        names, values = [*mark.args, *mark.kwargs.values()][:2]
        names = [one.strip() for one in names.split(",")] if isinstance(names, str) else list(names)
        index, own = divmod(index, len(values := list(values)))
        value = values[own]
        value = value.values if hasattr(value, "marks") else (value,) if len(names) == 1 else value
        given |= dict(zip(names, value, strict=True))
    return given


@cache
def _code(path: Path) -> CodeType:
    return compile(path.read_text(), str(path), "exec")


def _module_anew(name: str) -> Any:
    """A module of tests, with the helpers whose objects scripts change."""
    of_tests = ("tests.equivalence.test_", "tests.equivalence.keeping", "tests.equivalence.hidden")
    before = {one: sys.modules.pop(one) for one in list(sys.modules) if one.startswith(of_tests) and "__of" not in one}
    path = ROOT / f"{name.replace('.', '/')}.py"
    alias = f"{name}__of{next(_numbers)}"
    module: Any = ModuleType(alias)
    module.__file__, sys.modules[alias] = str(path), module
    exec(_code(path), vars(module))
    sys.modules.update(before)
    return module


# --- what is replaced ------------------------------------------------------------------------------------------------


class Once:
    """Instead of a world that a test makes: its script runs once, in this thread."""

    def __init__(self, script: Callable[[], Any], *_: Any, **__: Any) -> None:
        self.run_of = HERE.run
        self.run_of.next()
        self.script, self.number = script, self.run_of.count
        self.generations: list[Any] = []
        self.kept = self.ended = None

    def run(self) -> list[Any]:
        self.run_of.in_script = True
        try:
            result = self.script()
        finally:
            self.run_of.in_script = False
        if self.number == self.run_of.row["number"]:
            self.run_of.end(certainly=True)
        return [result]


def _dispatch(
    environment: Any, seat: Any, training: Any, exchanges: Any, resized: Callable[[int], None], ties: Any
) -> Any:
    run = HERE.run
    if not run.in_script:
        run.next()
    if run.count != run.row["number"]:
        return Alone(training, resized)
    run.session = resized.__self__  # type: ignore[attr-defined]  # the session's method
    return run.group(environment, seat, training, exchanges, resized, ties)


def _raised(epochs: bool) -> Callable[..., Any]:
    def loop(self: Any, count: int, **measures: Any) -> Any:
        run = HERE.run
        if self is run.session and isinstance(count, int):
            count = max(count, run.epochs * (1 if epochs else STEPS))
        return (_epochs if epochs else _iterations)(self, count, **measures)

    return loop


def _finished(self: Any) -> None:
    _finish(self)
    if self is HERE.run.session:
        HERE.run.result = result_of(self)


def install() -> None:
    """From now on, sessions are those of a :class:`Replay`."""
    session: Any = pilot.train.Session
    _session.group_of = storm.group_of = rows.group_of = _dispatch  # type: ignore[attr-defined]  # replaced for a replay
    storm.World = rows.World = Once  # type: ignore[assignment, misc]  # replaced for a replay
    session._finish, session.epochs, session.iterations = _finished, _raised(epochs=True), _raised(epochs=False)


def install_threads() -> None:
    """The same for ranks that are threads: what is the process's is each one's own; nobody looks at the code."""
    script_end.at_good_end = lambda call: HERE.run.left.append(call)
    _session.Looks, _session.tell_if_paired = _NoLooks, lambda _loop: None  # type: ignore[attr-defined]  # replaced for a replay
    pilot.train.script.refusal.note = lambda _text: None  # type: ignore[attr-defined]  # replaced for a replay


class _NoLooks:
    def __init__(self, _training: Any) -> None:
        pass

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


def result_of(session: Any) -> dict[str, Any]:
    """What was trained, by name; and how long."""
    training, found = session._training, {}
    parameters = {name for name, _ in training.model.named_parameters(remove_duplicate=False)}
    for name, value in training.model.state_dict().items():
        found[f"{'parameter' if name in parameters else 'buffer'} {name}"] = value
    for stepper in training.steppers:
        for of, optimizer in stepper.optimizers.items():
            state = optimizer.state_dict()
            for number, values in state["state"].items():
                if isinstance(values, dict):
                    found |= {f"optimizer {of} {number} {name}": value for name, value in values.items()}
            for number, group in enumerate(state["param_groups"]):
                found |= {f"optimizer {of} group {number} {name}": group[name] for name in ("lr",) if name in group}
    found = {name: torch.as_tensor(v).detach().clone() for name, v in found.items() if _is_number(v)}
    first = max((row.step_end for row in training.ledger.rows if row.epoch == 0), default=0)
    return found | {"steps": training.position.step, "epochs": training.position.epoch, PER_EPOCH: first}


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor | int | float)
