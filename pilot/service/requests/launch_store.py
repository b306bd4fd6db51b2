"""The launch of each submitted script; the core knows everything else about a trainer."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pilot.core.commands import Outcome
from pilot.core.errors import JournalError, PilotError, UserError
from pilot.core.ids import TrainerId, TrainerUid
from pilot.core.trainer.spec import TrainerSpec
from pilot.host import private_folder
from pilot.host.files import publish, replace_link
from pilot.rundir import trainer_folder
from pilot.rundir.rundir import RunDir
from pilot.submission import script_code
from pilot.submission.submission import LaunchSpec

SPEC = "spec.json"
"""The file in a trainer's folder with how its script is started."""


class LaunchStore:
    """The launches by trainer, in memory and as ``spec.json`` (mode 0600, because an environment may contain a secret).

    A trainer's folder is named after the trainer and the first digits of its uid, so no later trainer has the same one;
    ``trainers/<name>``, which people type, is a link to the folder of the newest trainer of this name.
    ``checkpoint_dir`` is where the site wants checkpoints and logs; None: in the run directory. They can always be
    found there, by links if necessary. Others may be able to rename what is in ``checkpoint_dir``, so the pool's folder
    there and all in it is made by us, and used only while it is held (:mod:`pilot.host.private_folder`).
    """

    def __init__(self, rundir: RunDir, pool: str, checkpoint_dir: str | None) -> None:
        self._rundir = rundir
        self._root = Path(checkpoint_dir) / pool if checkpoint_dir is not None else rundir.trainers
        self._launches: dict[TrainerId, LaunchSpec] = {}

    def launch(self, trainer: TrainerSpec) -> LaunchSpec:
        """A trainer's launch, read from disk after a restart; :class:`JournalError` if it is unreadable."""
        if trainer.trainer not in self._launches:
            self._launches[trainer.trainer] = self._read(trainer)
        return self._launches[trainer.trainer]

    def checkpoints_kept(self, trainer: TrainerSpec) -> int | None:
        """The number of checkpoints that its user wants to keep; None: not specified, or not known now."""
        known = self._launches.get(trainer.trainer)
        return known.checkpoints_kept if known is not None else None

    def forget(self, trainer: TrainerId) -> None:
        """Drop the launch of a trainer that has ended from memory."""
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
        with _reported(f"cannot record the submission of {name}"):
            try:
                if link.is_dir() and not link.is_symlink():
                    raise UserError(f"{link} is the folder of another trainer; choose another --name")
                self._launches[name] = self._write(trainer, launch, start)
            except OSError:
                with suppress(PilotError):
                    self.remove(trainer)
                raise

    def change(self, trainer: TrainerSpec, launch: LaunchSpec) -> None:
        """Start its workers according to ``launch`` from now on; :class:`PilotError` if that cannot be recorded."""
        with (
            _reported(f"cannot record how {trainer.trainer} continues"),
            trainer_folder.home(self.directory(trainer), trainer.uid) as folder,
        ):
            self._launches[trainer.trainer] = self._publish(trainer, launch, folder)

    def remove(self, trainer: TrainerSpec) -> None:
        """Remove its folder, with its checkpoints and logs; :class:`PilotError` if that fails."""
        link, here = self._rundir.trainer(trainer.trainer), self._spec(trainer).parent
        with _reported(f"cannot remove all files of {trainer.trainer}"):
            if link.is_symlink() and link.readlink() == Path(here.name):
                link.unlink()
            for root in dict.fromkeys((here.parent, self._root)):
                _remove(root, here.name)

    def _write(self, trainer: TrainerSpec, launch: LaunchSpec, start: Sequence[str]) -> LaunchSpec:
        here, directory = self._spec(trainer).parent, self.directory(trainer)
        with _made(here, trainer.uid), _made(directory, trainer.uid) as folder:
            for name in ("checkpoints", "logs"):
                (folder / name).mkdir(mode=0o700, exist_ok=True)
                if not (here / name).exists():
                    (here / name).symlink_to(directory / name)
            trainer_folder.start_from(folder, start, self._rundir.trainers)
            kept = self._publish(trainer, launch, folder)
        replace_link(self._rundir.trainer(trainer.trainer), here.name)
        return kept

    def _publish(self, trainer: TrainerSpec, launch: LaunchSpec, folder: Path) -> LaunchSpec:
        """Write it to disk, with the code in a file of its own in ``folder``; returns what to keep in memory.

        Others may be able to replace that folder, so the code's hash is kept here.
        """
        if launch.code:
            digest = hashlib.sha256(launch.code).hexdigest()
            publish(script_code.archive_in(folder, digest), launch.code)
            launch = msgspec.structs.replace(launch, code=b"", code_sha256=digest)
        publish(self._spec(trainer), msgspec.json.format(msgspec.json.encode(launch)) + b"\n")
        for archive in script_code.archives_in(folder):
            if archive != script_code.archive_in(folder, launch.code_sha256):
                archive.unlink(missing_ok=True)
        return launch

    def _read(self, trainer: TrainerSpec) -> LaunchSpec:
        path = self._spec(trainer)
        try:
            return msgspec.json.decode(path.read_bytes(), type=LaunchSpec)
        except (OSError, msgspec.DecodeError) as error:
            raise JournalError(f"cannot read what was submitted as {trainer.trainer} from {path}: {error}") from None

    def _spec(self, trainer: TrainerSpec) -> Path:
        return self._rundir.trainers / trainer_folder.name(trainer.trainer, trainer.uid) / SPEC


@contextmanager
def _made(folder: Path, uid: TrainerUid) -> Iterator[Path]:
    """Make ``folder`` for trainer ``uid``, in a folder of ours, and hold it."""
    private_folder.make(folder.parent)
    with private_folder.held(folder.parent, follow=False) as pool:
        private_folder.make(pool / folder.name)
        with private_folder.held(pool / folder.name, folder, follow=False) as place:
            trainer_folder.mark(place, uid)
            yield place


def _remove(root: Path, name: str) -> None:
    """Remove folder ``name`` from ``root``, which must be ours; do nothing if there is none."""
    if (root / name).exists():
        with private_folder.held(root, follow=False) as pool:
            shutil.rmtree(name, dir_fd=private_folder.descriptor_of(pool))


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Raise an ``OSError`` as a :class:`PilotError` that says ``what`` failed, where and why."""
    try:
        yield
    except OSError as error:
        where = f" ({private_folder.shown(Path(error.filename))})" if error.filename else ""
        transient = not isinstance(error, private_folder.UnsafeFolder)
        raise PilotError(f"{what}: {error.strerror}{where}", transient=transient) from None


def name_is_taken(name: str, outcome: Outcome | None) -> str:
    """The refusal of a new trainer with the name of an existing one with this outcome (None: not ended)."""
    taken = f"a trainer named {name} already exists"
    if outcome is None:
        return f"{taken}, and it has not ended; choose another --name, or pilot cancel {name} first"
    resume = "" if outcome is Outcome.FINISHED else f"pilot resume {name} continues it, "
    verb = "has" if outcome in (Outcome.FINISHED, Outcome.FAILED) else "was"
    return (
        f"{taken} and {verb} {outcome}: {resume}--from {name} with another --name starts from its last "
        "checkpoint, --replace deletes it with its files"
    )
