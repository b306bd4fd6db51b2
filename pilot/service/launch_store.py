"""What users submitted: how each script is started, beside what the core knows of the trainer."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pilot.core.errors import JournalError, PilotError
from pilot.core.ids import TrainerId
from pilot.io.files import publish
from pilot.io.rundir import RunDir
from pilot.io.submission import LaunchSpec


class LaunchStore:
    """The launches by trainer, in memory and as ``spec.json`` (0600: an environment may hold a secret).

    ``checkpoint_dir`` is where the site wants the trainers' checkpoints and logs; None: in the run directory. There are
    links to them in the run directory, so that they are found there in any case.
    """

    def __init__(self, rundir: RunDir, pool: str, checkpoint_dir: str | None) -> None:
        self._rundir = rundir
        self._root = Path(checkpoint_dir) / pool if checkpoint_dir is not None else rundir.trainers
        self._launches: dict[TrainerId, LaunchSpec] = {}

    def __getitem__(self, trainer: TrainerId) -> LaunchSpec:
        return self._launches[trainer]

    def directory(self, trainer: TrainerId) -> Path:
        """The trainer's own folder: ``checkpoints/`` and ``logs/`` are in it."""
        return self._root / trainer

    def add(self, trainer: TrainerId, launch: LaunchSpec) -> None:
        """Record a submission, before the journal tells of it; :class:`PilotError` where the disk does not take it."""
        try:
            self._write(trainer, launch)
        except OSError as error:
            raise PilotError(f"cannot record the submission of {trainer}: {error.strerror}", transient=True) from None
        self._launches[trainer] = launch

    def _write(self, trainer: TrainerId, launch: LaunchSpec) -> None:
        here, directory = self._rundir.trainer(trainer), self.directory(trainer)
        for folder in (here, directory):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("checkpoints", "logs"):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
            if not (here / name).exists():
                (here / name).symlink_to(directory / name)
        publish(self._spec(trainer), msgspec.json.format(msgspec.json.encode(launch)) + b"\n")

    def load(self, trainer: TrainerId) -> None:
        """Read it back after a restart."""
        path = self._spec(trainer)
        try:
            self._launches[trainer] = msgspec.json.decode(path.read_bytes(), type=LaunchSpec)
        except (OSError, msgspec.DecodeError) as error:
            raise JournalError(f"cannot read what was submitted as {trainer} from {path}: {error}") from None

    def _spec(self, trainer: TrainerId) -> Path:
        return self._rundir.trainer(trainer) / "spec.json"
