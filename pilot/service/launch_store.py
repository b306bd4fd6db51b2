"""How each submitted script is started; the core knows everything else about a trainer."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from pilot.core.errors import JournalError, PilotError, UserError
from pilot.core.ids import TrainerId
from pilot.core.spec import TrainerSpec
from pilot.io import script_code, trainer_folder
from pilot.io.files import publish, replace_link
from pilot.io.rundir import RunDir
from pilot.io.submission import LaunchSpec

SPEC = "spec.json"
"""The file in a trainer's folder with how its script is started."""


class LaunchStore:
    """The launches by trainer, in memory and as ``spec.json`` (mode 0600, because an environment may contain a secret).

    A trainer's folder is named after the trainer and the first digits of its uid, so no later trainer has the same one;
    ``trainers/<name>``, which people type, is a link to the folder of the newest trainer of this name.
    ``checkpoint_dir`` is where the site wants checkpoints and logs; None: in the run directory. They can always be
    found there, by links if necessary.
    """

    def __init__(self, rundir: RunDir, pool: str, checkpoint_dir: str | None) -> None:
        self._rundir = rundir
        self._root = Path(checkpoint_dir) / pool if checkpoint_dir is not None else rundir.trainers
        self._launches: dict[TrainerId, LaunchSpec] = {}

    def launch(self, trainer: TrainerSpec) -> LaunchSpec:
        """How its script is started, read from disk after a restart; :class:`JournalError` if that is unreadable."""
        if trainer.trainer not in self._launches:
            self._launches[trainer.trainer] = self._read(trainer)
        return self._launches[trainer.trainer]

    def checkpoints_kept(self, trainer: TrainerSpec) -> int | None:
        """How many checkpoints its user wants to keep; None: not specified, or not known now."""
        known = self._launches.get(trainer.trainer)
        return known.checkpoints_kept if known is not None else None

    def forget(self, trainer: TrainerId) -> None:
        """It has ended, and nothing of it will be started again."""
        self._launches.pop(trainer, None)

    def shown(self, trainer: TrainerSpec) -> Path:
        """Its folder as users find it, by name."""
        return self._rundir.trainer(trainer.trainer)

    def directory(self, trainer: TrainerSpec) -> Path:
        """The trainer's own folder, with ``checkpoints/`` and ``logs/``."""
        return self._root / trainer_folder.name(trainer.trainer, trainer.uid)

    def add(self, trainer: TrainerSpec, launch: LaunchSpec, start: Sequence[str] = ()) -> None:
        """Record a submission, before it is in the journal. ``start``: the files of the checkpoint it starts from.

        Raises
        ------
        UserError : the folder of another trainer has its name
        PilotError : writing failed
        """
        name = trainer.trainer
        link = self._rundir.trainer(name)
        try:
            if link.is_dir() and not link.is_symlink():
                raise UserError(f"{link} is the folder of another trainer; choose another --name")
            self._launches[name] = self._write(trainer, launch, start)
        except OSError as error:
            with suppress(PilotError):
                self.remove(trainer)
            where = f" ({error.filename})" if error.filename else ""
            raise PilotError(
                f"cannot record the submission of {name}: {error.strerror}{where}", transient=True
            ) from None

    def change(self, trainer: TrainerSpec, launch: LaunchSpec) -> None:
        """Start its workers according to ``launch`` from now on; :class:`PilotError` if that cannot be recorded."""
        try:
            self._launches[trainer.trainer] = self._publish(trainer, launch)
        except OSError as error:
            why = error.strerror
            raise PilotError(f"cannot record how {trainer.trainer} continues: {why}", transient=True) from None

    def remove(self, trainer: TrainerSpec) -> None:
        """Remove its folder, with its checkpoints and logs; :class:`PilotError` if that fails."""
        link, here = self._rundir.trainer(trainer.trainer), self._spec(trainer).parent
        try:
            if link.is_symlink() and link.readlink() == Path(here.name):
                link.unlink()
            for folder in (self.directory(trainer), here):
                if folder.exists():
                    shutil.rmtree(folder)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            raise PilotError(f"cannot remove all files of {trainer.trainer}: {reason}", transient=True) from None

    def _write(self, trainer: TrainerSpec, launch: LaunchSpec, start: Sequence[str]) -> LaunchSpec:
        here, directory = self._spec(trainer).parent, self.directory(trainer)
        for folder in (here, directory):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            trainer_folder.mark(folder, trainer.uid)
        for name in ("checkpoints", "logs"):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
            if not (here / name).exists():
                (here / name).symlink_to(directory / name)
        trainer_folder.start_from(directory, start)
        kept = self._publish(trainer, launch)
        replace_link(self._rundir.trainer(trainer.trainer), here.name)
        return kept

    def _publish(self, trainer: TrainerSpec, launch: LaunchSpec) -> LaunchSpec:
        """Write it to disk, with the code in a file of its own; returns what to keep in memory."""
        if launch.code:
            publish(self.directory(trainer) / script_code.NAME, launch.code)
            launch = msgspec.structs.replace(launch, code=b"", code_taken=True)
        publish(self._spec(trainer), msgspec.json.format(msgspec.json.encode(launch)) + b"\n")
        return launch

    def _read(self, trainer: TrainerSpec) -> LaunchSpec:
        path = self._spec(trainer)
        try:
            return msgspec.json.decode(path.read_bytes(), type=LaunchSpec)
        except (OSError, msgspec.DecodeError) as error:
            raise JournalError(f"cannot read what was submitted as {trainer.trainer} from {path}: {error}") from None

    def _spec(self, trainer: TrainerSpec) -> Path:
        return self._rundir.trainers / trainer_folder.name(trainer.trainer, trainer.uid) / SPEC
