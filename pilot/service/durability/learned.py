"""Measurements of one user's trainers on one site, for later pools: ``pilot/.learned/<site>/`` in the user's state
directory.

One file per trainer, named by its uid and published by rename, so that several pools may write at once. The newest
:data:`KEPT` stay. An unreadable or damaged file is ignored, which costs one more profile.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec

from pilot.core.curves.curve import RATES
from pilot.core.curves.curve_model import ON_SUMMIT, MeasuredRate, Priors, priors_of
from pilot.core.curves.points import for_another
from pilot.core.ids import TrainerUid
from pilot.core.trainer.spec import NODES_MAX, TrainerSpec
from pilot.core.trainer.trainer import Trainer
from pilot.host import private_folder
from pilot.host.files import publish, read_regular

log = logging.getLogger(__name__)

KEPT = 200
COUNTS_MOST = 1000
BYTES_MOST = 200_000

Nodes = Annotated[int, msgspec.Meta(ge=1, le=NODES_MAX)]
Rate = Annotated[float, msgspec.Meta(ge=RATES[0], le=RATES[1])]
Error = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measured rates of one trainer."""

    script: str  #: absolute path of its script
    #: number of nodes (increasing), samples per second on them, relative error of the rate (one standard deviation)
    points: Annotated[list[tuple[Nodes, Rate, Error]], msgspec.Meta(min_length=2, max_length=COUNTS_MOST)]

    def known(self) -> tuple[MeasuredRate, ...]:
        """The points for the model: by node count, each once, whoever wrote the file."""
        return tuple(MeasuredRate(*point) for point in sorted({point[0]: point for point in self.points}.values()))


@dataclass(slots=True)
class Learned:
    """The measurements of a site."""

    folder: Path | None  #: where they are stored; None: nowhere
    site: str  #: its name
    found: dict[str, Measurement] = field(default_factory=dict)  #: by uid, oldest first
    written_s: dict[str, float] = field(default_factory=dict)  #: by uid, when (Unix time)
    priors: Priors = ON_SUMMIT  #: the expectation of a trainer on this site before it is measured
    #: on how many node counts each trainer was measured and whether it had ended, at the last :meth:`changes`
    stored: dict[TrainerUid, tuple[int, bool]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path | None, site: str) -> Learned:
        """Read all files that are readable."""
        learned = cls(folder, site)
        for path in _oldest_first(folder):
            with suppress(OSError, msgspec.DecodeError):
                content = read_regular(path, BYTES_MOST)
                learned.found[path.stem] = msgspec.json.decode(content, type=Measurement)
                learned.written_s[path.stem] = path.stat().st_mtime
        scripts = {measurement.script: measurement.known() for measurement in learned.found.values()}
        if scripts:  # each script counts once, however often it ran
            learned.priors = priors_of(list(scripts.values()), ON_SUMMIT, rounds=5)
        return learned

    def with_known(self, spec: TrainerSpec) -> TrainerSpec:
        """``spec`` with the rates of the newest trainer with the same script, unless it has a curve or asks to be
        measured."""
        if spec.curve is not None or spec.reprofile or not spec.script:
            return spec
        uid = next((uid for uid in reversed(self.found) if self.found[uid].script == spec.script), None)
        if uid is None:
            return spec
        known = for_another(self.found[uid].known(), time.time() - self.written_s.get(uid, 0.0))
        return replace(spec, known=known, known_from=f"an earlier trainer on {self.site}")

    def changes(self, trainers: Iterable[Trainer]) -> list[tuple[TrainerUid, Measurement]]:
        """The measurements to write, of trainers measured on two node counts or more: those with a new count, and those
        that have ended since the last call."""
        found = []
        for trainer in trainers:
            counts, uid = trainer.measured.counts, trainer.spec.uid
            state = counts, trainer.outcome is not None
            if counts > 1 and trainer.spec.script and self.stored.get(uid) != state:
                self.stored[uid] = state
                found.append((uid, measurement(trainer.spec, trainer.measured.own)))
        return found

    def write(self, measured: Sequence[tuple[TrainerUid, Measurement]]) -> None:
        """Store measurements and drop all but the newest; runs in a thread. If writing fails, that is logged."""
        if self.folder is None or not measured:
            return
        try:
            private_folder.make(self.folder)
            for uid, measurement in measured:
                publish(self.folder / f"{uid}.json", msgspec.json.encode(measurement) + b"\n")
            for path in _oldest_first(self.folder)[:-KEPT]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot store what trainers measured in %s: %s", self.folder, error.strerror)


def measurement(spec: TrainerSpec, points: Sequence[MeasuredRate]) -> Measurement:
    """The measurement of a trainer with at least two ``points``."""
    rows = [(int(p.nodes), p.per_s, min(p.error, 1.0)) for p in points]
    return Measurement(spec.script, rows[:COUNTS_MOST])


def _oldest_first(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    with suppress(OSError), os.scandir(folder) as entries:
        found = [(e.stat().st_mtime_ns, e.name) for e in entries if e.name.endswith(".json") and e.name[0] != "."]
        return [folder / name for _, name in sorted(found)]
    return []
