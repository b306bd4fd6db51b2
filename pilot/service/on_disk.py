"""What the files of trainers say that a damaged journal does not: higher generations, and trainers that it lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pilot.checkpoint.names import highest_generation
from pilot.checkpoint.own_directory import held
from pilot.core.coordinator import Coordinator
from pilot.core.errors import CheckpointError
from pilot.core.ids import NO_GENERATION, Generation, TrainerId
from pilot.core.spec import TrainerSpec
from pilot.io.rundir import RunDir
from pilot.service.launch_store import SPEC, LaunchStore

log = logging.getLogger(__name__)


def lost_generations(
    core: Coordinator, launches: LaunchStore, named: Mapping[TrainerId, Generation]
) -> tuple[tuple[TrainerId, Generation], ...]:
    """The trainers of which the journal (``named``) or a file has a higher generation than ``core`` knows, and that."""
    found: list[tuple[TrainerId, Generation]] = []
    for trainer in core.trainers.values():
        highest = max(named.get(trainer.id, NO_GENERATION), _on_disk(launches, trainer.spec))
        if highest > trainer.generation:
            found.append((trainer.id, highest))
    return tuple(found)


def _on_disk(launches: LaunchStore, trainer: TrainerSpec) -> Generation:
    try:
        with held(launches.directory(trainer) / "checkpoints", trainer.uid) as place:
            return Generation(highest_generation(place))
    except FileNotFoundError:
        return NO_GENERATION
    except CheckpointError as error:  # its workers will wait until it can be read, or say so
        log.warning("%s", error)
        return NO_GENERATION


def lost_trainers(rundir: RunDir, core: Coordinator, began_unix_s: float) -> str:
    """Which trainers have a folder and are not in the journal of this pool, in a line with what to do; "": none.

    ``began_unix_s``: when the pool began. Earlier pools have left folders, too.
    """
    lost: list[str] = []
    try:
        for folder in sorted(rundir.trainers.iterdir()):
            name, spec = TrainerId(folder.name.rpartition("-")[0]), folder / SPEC
            known = not name or name in core.trainers or name in core.past or folder.is_symlink()
            if not known and spec.exists() and spec.stat().st_mtime >= began_unix_s:
                lost.append(folder.name)
    except OSError as error:
        log.warning("cannot look for trainers that the journal lacks: %s", error)
    if not lost:
        return ""
    return (
        f"in {rundir.trainers}, but not in the journal: {', '.join(lost)}; either the submission was never confirmed, "
        "or it was lost: submit it again, with --from and a file in its checkpoints/ if it has trained"
    )
