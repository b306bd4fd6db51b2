"""Hours of a pool in a mild storm: one trainer lasts throughout, others come, finish and are followed by the next."""

from __future__ import annotations

import time
from pathlib import Path

from tests.chaos.place import Place, place
from tests.chaos.record import Note
from tests.chaos.run import TRAINERS, Progress, calm, journal_holds, parameters_off, reference
from tests.chaos.storm import Storm
from tests.pools import TRAIN, Pool
from tests.soak.samples import Sampler

GUST_EVERY_S = 120.0
_CHECK_EVERY_S = 15.0
STEP_S = 0.1
EPOCHS = 300
"""For a trainer that others follow: about a quarter of an hour, faults included."""

CALM_LIMIT_S = 2400.0

_LASTING, *_FOLLOWED = TRAINERS
_FOR_EVER = 10**6


def soak(pool: Pool, seed: int, seconds: float, samples: Path, note: Note, *, root: bool) -> list[str]:
    """Run for ``seconds``; return the violations. The samples are appended to a CSV file as they are taken."""
    expected = reference(pool, EPOCHS)
    with place(pool, lan=root) as here:
        waves = _Waves(pool, note)
        for trainer in (waves.lasting, *waves.running.values()) if root else ():
            here.small_disk(trainer)
        sampler = Sampler(pool, waves.lasting, samples)
        try:
            violations = _storm(here, waves, seed, seconds, note)
        finally:
            sampler.close()
        pool.pilot("cancel", waves.lasting)
        violations += calm(here, CALM_LIMIT_S)
        return [*violations, *journal_holds(pool, waves.all, EPOCHS), *parameters_off(pool, waves.all, expected)]


class _Waves:
    """The trainers: when one has finished, the next one like it is submitted."""

    def __init__(self, pool: Pool, note: Note) -> None:
        self._pool, self._note, self.all = pool, note, list[str]()
        self.lasting = self._submit(_LASTING, _LASTING, _FOR_EVER)
        self.running = {kind: self._next(kind) for kind in _FOLLOWED}

    def follow(self, finished: set[str]) -> None:
        """Submit successors of those that have finished."""
        for kind, trainer in self.running.items():
            if trainer in finished:
                self.running[kind] = self._next(kind)
                self._note(f"{trainer} has finished, {self.running[kind]} follows")

    def _next(self, kind: str) -> str:
        name = f"{kind}-{len(self.all)}"
        trainer = self._submit(kind, name, EPOCHS, "--save", str(self._pool.folder / f"{name}.pt"))
        self.all.append(trainer)
        return trainer

    def _submit(self, kind: str, name: str, epochs: int, *arguments: str) -> str:
        given = ("--epochs", str(epochs), "--step-s", str(STEP_S), *arguments)
        return self._pool.submit(TRAIN, *given, options=("--name", name, *TRAINERS[kind]))


def _storm(here: Place, waves: _Waves, seed: int, seconds: float, note: Note) -> list[str]:
    storm, progress = Storm(here, seed, note), Progress()
    gust_s = began_s = time.monotonic()
    try:
        while (now_s := time.monotonic()) < began_s + seconds:
            if now_s >= gust_s:
                storm.gust()
                gust_s += GUST_EVERY_S * storm.dice.uniform(0.5, 1.5)
            status = here.pool.status()
            waves.follow({t.trainer for t in status.trainers if t.phase == "finished"})
            if wrong := progress.missing(status, time.monotonic()):
                return wrong
            time.sleep(_CHECK_EVERY_S)
    finally:
        storm.die_down()
    note("calm: pilots come, the lasting trainer is cancelled, the others finish")
    return []
