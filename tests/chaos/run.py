"""One chaos run: trainers under a storm, then calm, then what must hold."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pilot.core.ids import TrainerId
from pilot.core.invariants import violations
from pilot.io.journal import Contents, read
from pilot.live.monitor import Monitor
from pilot.live.settings import fresh_core
from tests.chaos.storm import MOST_PILOTS, Storm
from tests.pools import TRAIN, Pool

EPOCH_SAMPLES = 1797
STEP_S = 0.03
CALM_LIMIT_S = 300.0
TRAINERS = {"one": ("--min-nodes", "1"), "two": ("--min-nodes", "2"), "three": ("--min-nodes", "1", "--max-nodes", "3")}

Say = Callable[[str], None]


def chaos(pool: Pool, seed: int, seconds: float, epochs: int, say: Say) -> list[str]:
    """Storm over ``pool`` for ``seconds``; what does not hold afterwards, in words."""
    reference = _reference(pool, epochs)
    pool.up()
    names = [
        pool.submit(TRAIN, "--epochs", str(epochs), "--step-s", str(STEP_S), "--save", str(pool.folder / f"{name}.pt"),
                    options=("--name", name, *options))
        for name, options in TRAINERS.items()
    ]  # fmt: skip
    storm = Storm(pool, seed, say)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        storm.gust()
    say("calm: pilots come, the trainers finish")
    return _calm(pool) or [*_journal(pool, names, epochs), *_parameters(pool, names, reference)]


def _reference(pool: Pool, epochs: int) -> Path:
    """The same script, alone and undisturbed."""
    path = pool.folder / "reference.pt"
    command = [sys.executable, TRAIN, "--epochs", str(epochs), "--step-s", "0", "--save", path]
    subprocess.run(command, check=True, cwd=pool.folder)
    return path


def _calm(pool: Pool) -> list[str]:
    deadline = time.monotonic() + CALM_LIMIT_S
    while True:
        living = [a for a in pool.agents if a.poll() is None]
        for _ in range(MOST_PILOTS // 2 - len(living)):
            pool.agent()
        trainers = pool.status()["trainers"]
        if failed := [f"{t['trainer']} {t['phase']}: {t['reason']}" for t in trainers if t["phase"] == "failed"]:
            return failed
        if all(t["phase"] == "finished" for t in trainers):
            return []
        if time.monotonic() > deadline:
            return [f"no end within {CALM_LIMIT_S:g} s: {t['trainer']} {t['phase']} at {t['step']}" for t in trainers]
        time.sleep(0.5)


def _journal(pool: Pool, names: list[str], epochs: int) -> list[str]:
    """The journal replays with all invariants after each event, and each ledger has every sample once per epoch."""
    contents = read(pool.run_dir / "journal.jsonl")
    monitor, wrong = Monitor.of(contents.decisions), _replayed(contents)
    sizes = dict.fromkeys(range(epochs), EPOCH_SAMPLES)
    for name in names:
        verdict = monitor.trainers[TrainerId(name)].ledger.exactly_once(sizes)
        wrong += [] if verdict.proved else [f"ledger of {name}: {verdict.text}"]
    return wrong


def _replayed(contents: Contents) -> list[str]:
    core = fresh_core(contents)
    for decision in contents.decisions:
        if tuple(core.handle(decision.now_s, decision.event)) != decision.commands:
            return [f"entry {decision.seq} of the journal does not replay"]
        if found := violations(core):
            return [f"after entry {decision.seq}: {line}" for line in found]
    return []


def _parameters(pool: Pool, names: list[str], reference: Path) -> list[str]:
    """In float64 and with a fixed global batch the parameters are those of the undisturbed run."""
    expected = torch.load(reference)
    wrong = []
    for name in names:
        path = pool.folder / f"{name}.pt"
        if not path.exists():
            wrong.append(f"{name} saved no parameters")
            continue
        for key, value in torch.load(path).items():
            off = ((value - expected[key]).abs().max() / expected[key].abs().max()).item()
            if not off < 1e-9:
                wrong.append(f"{name}: {key} is off by {off:.1e} (relative)")
    return wrong
