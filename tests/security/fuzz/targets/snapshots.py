"""Snapshots and segments, as a restarting coordinator reads them: damage makes them useless, and that is said, but is
never believed."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from pilot.core.errors import JournalError
from pilot.rundir import segments
from pilot.rundir.journal import header_line, read
from pilot.service.durability.restore import restore
from tests.security.fuzz.mutate import changed_bytes, changed_value
from tests.security.fuzz.target import ACCEPTED, REFUSED, Target, Wrong, check_line
from tests.security.fuzz.targets.journals import Place, core, in_segments


def attempt(place: Place, rng: random.Random) -> str:
    """The original state is restored, with a remark; or what is missing is said, if a damaged segment is needed."""
    for file, data in place.files.items():
        file.write_bytes(data)
    (snapshot,) = segments.folder(place.path).glob("*.snapshot")
    match rng.randrange(4):
        case 0:
            snapshot.write_bytes(changed_bytes(rng, place.files[snapshot]))
        case 1:
            snapshot.unlink()
        case 2:
            snapshot.unlink()
            closed = rng.choice(segments.closed(place.path, 3))
            closed.write_bytes(changed_bytes(rng, place.files[closed]))
        case _:
            _signed_anew(place, snapshot, rng)
    try:
        restored = restore(read(place.path), core)
    except JournalError as error:
        check_line(str(error))
        return REFUSED
    for text in restored.flaws:
        check_line(text)
    if restored.missing:
        return "said"
    if segments.state_bytes(restored.core) != place.state:
        raise Wrong("what was restored is not what was known")
    return "replayed" if restored.remarks else ACCEPTED


def _signed_anew(place: Place, snapshot: Path, rng: random.Random) -> None:
    """Different content in the snapshot, and its digest in the journal's header: the core's state has its own
    digest.
    """
    plain = changed_value(rng, msgspec.msgpack.decode(place.files[snapshot], strict=False))
    try:
        data = msgspec.msgpack.encode(plain)
    except (TypeError, ValueError, OverflowError, RecursionError):
        data = b"none"
    snapshot.write_bytes(data)
    lines = place.files[place.path].splitlines(keepends=True)
    header = msgspec.structs.replace(read(place.path).header, snapshot=segments.digest(data))
    place.path.write_bytes(b"".join([header_line(header), *lines[1:]]))


TARGET = Target("snapshots", 500, 60, attempt, prepare=in_segments)
