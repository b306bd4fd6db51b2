"""``make mutants [MUTANTS=300] [SEED=1] [MINUTES=90]``: does a test fail for each small mistake in the deciding code?

Each mutant is one mistake in one module; the tests of that module run in a forked process until the first fails.
Neither mutmut (which skips code outside functions, such as the table of rules) nor cosmic-ray (which edits the files in
place and starts a cold pytest for every mutant) can draw 300 of them and run them in this time.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib.machinery
import importlib.util
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutations import Mutant, mutants

CORE = ["tests/transcripts/test_transcripts.py", "tests/unit/core/test_by_hand.py",
        "tests/unit/core/trainer/test_trainer.py", "tests/transcripts/test_plays.py", "tests/property/test_core.py",
        "tests/property/test_tables.py", "tests/property/test_snapshot.py"]  # fmt: skip
"""The fast ones first: most mutants are killed by one of them."""

ASSIGNMENT = "tests/property/test_assign.py"
FOLDERS = ("tests/unit/core", "tests/unit/history", "tests/unit/research/sim", "tests/property")
NEAREST = {
    "assign": ["test_node_types"],
    "bookkeeping": ["test_planning", "test_profiles", "test_checkpoint_interval"],
    "commands": ["test_problem"],
    "config": ["test_problem"],
    "coordinator": ["test_arrivals"],
    "ids": ["test_problem"],
    "planning": ["test_arrivals", "test_node_types", "test_measured", "test_problem", "test_huawei", "test_driver"],
    "pool": ["test_assign"],
    "problem": ["test_objective", "test_explain"],
    "profile": ["test_profiles"],
    "profiles": ["test_worth"],
    "spec": ["test_problem", "test_curve"],
    "study": ["test_studies"],
    "transitions": ["test_trainer"],
}
"""Tests of a module besides those that bear its name."""

BESIDE = {
    "explain": ["test_problem"],
    "ledger": ["test_ledger_proof", "test_rounds_ledger"],
    "rounds_ledger": [],
}
"""Modules of the core that decide nothing: only these tests are needed."""


def _tests_of(path: Path) -> list[str]:
    """The test files that a mistake in this module of the core may fail."""
    names = [f"test_{path.stem}", *NEAREST.get(path.stem, ()), *BESIDE.get(path.stem, ())]
    nearest = [str(place) for name in names for folder in FOLDERS for place in sorted(Path(folder).rglob(f"{name}.py"))]
    return nearest if path.stem in BESIDE else list(dict.fromkeys((*nearest, *CORE, ASSIGNMENT)))


TESTS = {
    **{str(path): _tests_of(path) for path in sorted(Path("pilot/core").rglob("*.py"))},
    **{path: _tests_of(Path(path)) for path in ("pilot/history/ledger.py", "pilot/history/rounds_ledger.py")},
    "pilot/protocol/remaining_work.py": ["tests/unit/protocol/test_remaining_work.py"],
    "pilot/protocol/run_identity.py": [
        "tests/unit/protocol/test_run_identity.py", "tests/unit/history/test_ledger_proof.py",
    ],
    "pilot/research/gpu_packing.py": ["tests/property/test_gpus.py"],
    "pilot/provisioning/scaling_policy.py": [
        "tests/unit/provisioning/test_scaling_policy.py", "tests/unit/provisioning/test_keeper.py",
    ],
    "pilot/train/data/order.py": ["tests/unit/train/test_order.py", "tests/unit/train/test_loader.py"],
    "pilot/train/data/sampler.py": [
        "tests/unit/train/test_sampler.py", "tests/unit/train/test_order.py", "tests/unit/train/test_loader.py",
    ],
    "pilot/train/state/shares.py": ["tests/unit/train/test_shares.py"],
}  # fmt: skip
WARM = ("click", "hypothesis", "hypothesis.strategies", "msgspec", "numpy", "psutil", "pytest", "torch")
LIMIT_S = 900.0
"""A mutant that takes this long hangs without using CPU time; if it uses it, see ``plugin``."""

KILLED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Verdict:
    """``killed``: how; empty if no test failed."""

    mutant: Mutant
    killed: str
    took_s: float


def main() -> int:
    """Exit status 1 if fewer are killed than required; equivalent ones do not count."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    known = [mutant for path in TESTS if arguments.only in path for mutant in mutants(path)]
    drawn = random.Random(arguments.seed).sample(known, min(arguments.count, len(known)))
    tried = [mutant for mutant in drawn if (mutant.path, mutant.what) not in EQUIVALENT]
    print(f"{len(tried)} of {len(known)} mutants, {len(drawn) - len(tried)} more are equivalent", flush=True)
    _warm_up()
    if not _pass(dict.fromkeys(test for mutant in tried for test in TESTS[mutant.path])):
        print("without any mistake the tests do not pass")
        return 2
    verdicts = _run(tried, arguments.at_once, time.monotonic() + 60 * arguments.minutes)
    return _told(verdicts, len(tried))


def _warm_up() -> None:
    """Load what every child needs and no mutant changes; the garbage collector ignores it from then on."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.dont_write_bytecode = False
    sys.pycache_prefix = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, sys.pycache_prefix, ignore_errors=True)
    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _run(tried: Sequence[Mutant], at_once: int, deadline_s: float) -> list[Verdict]:
    """Run until all have been tried or the time is up."""
    waiting, running, verdicts = list(reversed(tried)), dict[int, tuple[Mutant, int, float]](), list[Verdict]()
    while running or (waiting and time.monotonic() < deadline_s):
        while waiting and len(running) < at_once and time.monotonic() < deadline_s:
            mutant = waiting.pop()
            pid, pipe = _fork(TESTS[mutant.path], mutant)
            running[pipe] = (mutant, pid, time.monotonic())
        for pipe in _ended(running):
            mutant, pid, began_s = running.pop(pipe)
            took_s = time.monotonic() - began_s
            if took_s > LIMIT_S:
                os.killpg(pid, signal.SIGKILL)
            verdict = Verdict(mutant, _how(pid, pipe, took_s), took_s)
            verdicts.append(verdict)
            if len(verdicts) % 25 == 0:
                print(f"{len(verdicts)} of {len(tried)} tried", flush=True)
            if not verdict.killed:
                print(f"survived {mutant.path}:{mutant.line}: {mutant.what}", flush=True)
    return verdicts


def _ended(running: dict[int, tuple[Mutant, int, float]]) -> list[int]:
    """The pipes of those that have ended or hang."""
    ready, _, _ = select.select(list(running), [], [], 1.0)
    return [p for p, (_, _, began_s) in running.items() if p in ready or time.monotonic() - began_s > LIMIT_S]


def _how(pid: int, pipe: int, took_s: float) -> str:
    os.close(pipe)
    _, status = os.waitpid(pid, 0)
    if took_s > LIMIT_S or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)):
        return "it hung"
    return "" if status == 0 else "a test failed" if os.waitstatus_to_exitcode(status) == 1 else "it broke the tests"


def _pass(tests: Iterable[str]) -> bool:
    """Whether all tests pass."""
    pid, pipe = _fork(tests)
    os.close(pipe)
    return os.waitpid(pid, 0)[1] == 0


def _fork(tests: Iterable[str], mutant: Mutant | None = None) -> tuple[int, int]:
    """The pid of the process that runs the tests, and a pipe that closes with it."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(ours)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        if mutant is not None:
            sys.meta_path.insert(0, _Instead(mutant))
        os._exit(_tests(tests))
    os.close(theirs)
    return pid, ours


def _tests(tests: Iterable[str]) -> int:
    import pytest

    options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin"]
    return int(pytest.main([*options, *tests]))


class _Instead(importlib.machinery.PathFinder):
    """Imports the mutant instead of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = mutant.path.removesuffix(".py").replace("/", ".")

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        loader = self if name == self._name else None
        return importlib.util.spec_from_loader(name, loader, origin=self._mutant.path) if loader else None

    def create_module(self, _: object) -> None:
        """Creates an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.source(), self._mutant.path, "exec"), vars(module))  # our own source


def _told(verdicts: Sequence[Verdict], drawn: int) -> int:
    survivors = [v.mutant for v in verdicts if not v.killed]
    ways = Counter(v.killed for v in verdicts if v.killed)
    share = 1 - len(survivors) / max(1, len(verdicts))
    print(f"\n{len(verdicts)} of {drawn} tried, {share:.1%} killed: {dict(ways)}")
    for mutant in sorted(survivors, key=lambda m: (m.path, m.line)):
        print(f"survived {mutant.path}:{mutant.line}: {mutant.what}")
    return 0 if share >= KILLED_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
