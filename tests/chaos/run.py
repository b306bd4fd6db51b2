"""One chaos run: trainers in a storm, then calm, then the invariants."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import torch

from pilot.core.commands import FormGroup
from pilot.core.events import GroupFormed
from pilot.core.ids import Generation, TrainerId
from pilot.history.ledger import proof
from pilot.history.trainer_progress import ledgers
from pilot.protocol.pool_status import PoolStatus
from pilot.rundir.journal import Contents, read
from pilot.service.settings import fresh_core
from tests.chaos.place import Place, place
from tests.chaos.record import Note
from tests.chaos.storm import Storm
from tests.invariants import violations
from tests.pools import TRAIN, Pool

STEP_S = 0.03
CALM_LIMIT_S = 600.0
PROGRESS_LIMIT_S = 120.0
"""A trainer with nodes makes a step within this time, whatever happens: regroups take seconds, longer on a loaded
machine.
"""

TRAINERS = {"one": ("--min-nodes", "1"), "two": ("--min-nodes", "2"), "three": ("--min-nodes", "1", "--max-nodes", "3")}
CALM_PILOTS = sum(int(options[options.index("--min-nodes") + 1]) for options in TRAINERS.values())
"""Enough for each trainer's minimum number of nodes."""

_ENDED = ("finished", "cancelled")


def chaos(pool: Pool, seed: int, seconds: float, epochs: int, note: Note, *, root: bool = False) -> list[str]:
    """Unleash the storm on ``pool`` for ``seconds``; describes what is violated during it or afterwards.

    ``root``: include what only root can do, cut networks and full disks.
    """
    expected = reference(pool, epochs)
    with place(pool, lan=root) as here:
        names = _submitted(pool, epochs)
        for name in names if root else []:
            here.small_disk(name)
        wrong = _storm(here, seed, seconds, note) or calm(here)
        return wrong or [*journal_holds(pool, names, epochs), *parameters_off(pool, names, expected)]


def _submitted(pool: Pool, epochs: int) -> list[str]:
    return [
        pool.submit(TRAIN, "--epochs", str(epochs), "--step-s", str(STEP_S), "--save", str(pool.folder / f"{name}.pt"),
                    options=("--name", name, *options))
        for name, options in TRAINERS.items()
    ]  # fmt: skip


def _storm(here: Place, seed: int, seconds: float, note: Note) -> list[str]:
    storm, progress = Storm(here, seed, note), Progress()
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            storm.gust()
            if wrong := progress.missing(here.pool.status(), time.monotonic() - storm.without_s):
                return wrong
    finally:
        storm.die_down()
    note("calm: pilots come, the trainers finish")
    return []


class Progress:
    """Whether each trainer with nodes keeps making steps."""

    def __init__(self) -> None:
        self._since_s: dict[str, tuple[tuple[int, bool], float]] = {}

    def missing(self, status: PoolStatus, now_s: float) -> list[str]:
        """The trainers that have had nodes for too long without a step, or have failed.

        ``now_s`` counts only time with a coordinator: without one, workers pause when their lease ends.
        """
        wrong = [f"{t.trainer} failed: {t.reason}" for t in status.trainers if t.phase == "failed"]
        for trainer in status.trainers:
            name, seen = trainer.trainer, (trainer.step, bool(trainer.nodes))
            known, since_s = self._since_s.get(name, (seen, now_s))
            if seen != known or not seen[1] or trainer.phase in _ENDED:
                since_s = now_s
            self._since_s[name] = (seen, since_s)
            if now_s - since_s > PROGRESS_LIMIT_S:
                wrong.append(f"{name} has had nodes for {now_s - since_s:.0f} s and made no step: {trainer}")
        return wrong


def reference(pool: Pool, epochs: int) -> Path:
    """The same script, alone and undisturbed."""
    path = pool.folder / "reference.pt"
    command = [sys.executable, TRAIN, "--epochs", str(epochs), "--step-s", "0", "--save", path]
    subprocess.run(command, check=True, cwd=pool.folder)
    return path


def calm(here: Place, limit_s: float = CALM_LIMIT_S) -> list[str]:
    """Without further disturbance, each trainer that was not cancelled finishes."""
    deadline = time.monotonic() + limit_s
    while True:
        for _ in range(CALM_PILOTS - len(here.living())):
            here.agent()
        trainers = here.pool.status().trainers
        if failed := [f"{t.trainer} {t.phase}: {t.reason}" for t in trainers if t.phase == "failed"]:
            return failed
        if all(t.phase in _ENDED for t in trainers):
            return []
        if time.monotonic() > deadline:
            return [f"no end within {limit_s:g} s: {t.trainer} {t.phase} at {t.step}" for t in trainers]
        time.sleep(0.5)


def journal_holds(pool: Pool, names: list[str], epochs: int) -> list[str]:
    """The journal replays with all invariants holding after each event, and each ledger has every sample once per
    epoch.
    """
    contents = read(pool.run_dir / "journal.jsonl")
    ledger, wrong = ledgers(contents.decisions), _replayed(contents)
    for name in names:
        verdict = proof(ledger[TrainerId(name)], epochs)
        wrong += [] if verdict.proved else [f"ledger of {name}: {verdict.text}"]
    return wrong


def _replayed(contents: Contents) -> list[str]:
    core, held = fresh_core(contents), dict[tuple[TrainerId, Generation], bool]()
    for decision in contents.decisions:
        if tuple(core.handle(decision.now_s, decision.event)) != decision.commands:
            return [f"entry {decision.seq} of the journal does not replay"]
        for command in decision.commands:
            if isinstance(command, FormGroup):
                trainer = core.trainers[command.trainer]
                held[trainer.id, command.generation] = any(trainer.holds_state(n) for n in command.members)
        of = (event.trainer, event.generation) if isinstance(event := decision.event, GroupFormed) else None
        if of is not None and event.resumed is not None and held[of]:
            return [f"entry {decision.seq}: {event.trainer} resumed from a checkpoint though a rank held its state"]
        if found := violations(core):
            return [f"after entry {decision.seq}: {line}" for line in found]
    return []


def parameters_off(pool: Pool, names: list[str], reference: Path) -> list[str]:
    """In float64 and with a fixed global batch, the parameters equal those of the undisturbed run."""
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
