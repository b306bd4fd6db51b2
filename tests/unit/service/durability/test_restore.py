"""From which of its files a pool is restored, and the reports about damaged ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from pilot import __version__
from pilot.cli.main import run
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError
from pilot.core.events import Event, PoolChanged, TrainerSubmitted
from pilot.core.ids import Generation, NodeId, TrainerId, TrainerUid
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir import segments
from pilot.rundir.entries import Decision, sealed
from pilot.rundir.journal import FORMAT, Header, header_line, read
from pilot.rundir.rundir import RunDir
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.durability.restore import (
    REFUSED_MAX,
    Books,
    Restored,
    lost_generations,
    lost_trainers,
    restore,
    taken,
)
from pilot.service.requests.launch_store import LaunchStore
from tests.unit.service.stage import LAUNCH

HEADER = Header(FORMAT, __version__, "pool-1", 1.7e9, {}, {})
EVENTS: list[Event] = [
    PoolChanged(joined=(NodeId("n1"), NodeId("n2"))),
    *(TrainerSubmitted(TrainerSpec(TrainerId(name))) for name in "abcdef"),
]
NAMES = list("abcdef")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of three segments: with a and b, with c and d, with e and f."""
    made = tmp_path / "journal.jsonl"
    writer, core = JournalWriter.create(made, HEADER), Coordinator()
    books = Books.beside(core)
    for seq, event in enumerate(EVENTS, 1):
        commands = core.handle(float(seq), event)
        books.note(float(seq), event, commands)
        writer.decided(float(seq), event, commands)
        if seq in (3, 5):
            writer.end_segment(float(seq), *taken(core, books, seq))
    writer.close()
    return made


def restored(path: Path) -> Restored:
    return restore(read(path), Coordinator)


def names(found: Restored) -> list[str]:
    assert list(found.books.monitor.trainers) == list(found.core.trainers)
    return list(found.core.trainers)


def snapshot(path: Path) -> Path:
    (found,) = segments.folder(path).glob("*.snapshot")
    return found


@pytest.mark.parametrize(
    ("damage", "left", "flaw"),
    [
        (lambda _: None, NAMES, ""),
        (lambda path: segments.closed(path, 5)[0].unlink(), NAMES, ""),  # there is the snapshot
        (
            lambda path: snapshot(path).write_bytes(b"damage"),
            NAMES,
            "is damaged; the whole journal was replayed instead",
        ),
        *(
            (lambda path, n=n: (snapshot(path).unlink(), segments.closed(path, 5)[n].unlink()), left, "are missing: ")
            for n, left in ((0, list("cdef")), (1, list("abef")))
        ),
    ],
)
def test_damage_costs_only_what_no_other_file_has(
    path: Path, damage: Callable[[Path], object], left: list[str], flaw: str
) -> None:
    damage(path)
    found = restored(path)
    assert names(found) == left
    assert bool(found.missing) == (left != NAMES)
    assert any(flaw in line for line in found.flaws) if flaw else found.flaws == []


def test_an_entry_that_is_repeated_elsewhere_is_applied_once(path: Path) -> None:
    """Also one that the snapshot has already."""
    decisions = list(read(path).decisions)
    with path.open("ab") as file:
        for decision in decisions[:3] + decisions[-1:]:
            file.write(decision.line())
    found = restored(path)
    assert (names(found), found.missing, found.refused) == (NAMES, [], [])
    snapshot(path).unlink()
    found = restored(path)
    assert (names(found), found.missing, found.refused) == (NAMES, [], [])


def test_what_cannot_be_applied_after_a_gap_does_not_keep_the_pool_down(path: Path) -> None:
    """However much it is; in an undamaged journal, so many of them are of another version."""
    again = EVENTS[1]
    more = [Decision(7 + number, 9.0, again, ()) for number in range(1, REFUSED_MAX + 3)]
    whole = path.read_bytes()
    path.write_bytes(whole + b"".join(decision.line() for decision in more))
    with pytest.raises(JournalError, match=f"more than {REFUSED_MAX} entries of the journal cannot be applied"):
        restored(path)
    path.write_bytes(whole + b"".join(decision.line() for decision in more[1:]))
    found = restored(path)
    assert names(found) == NAMES
    assert found.flaws[0].startswith("entry 8 of the journal is missing")
    assert found.flaws[1].startswith("because of that, entry 9 (TrainerSubmitted) cannot be applied: trainer a was")
    assert found.flaws[1].endswith(f", and {REFUSED_MAX} more")


def test_a_snapshot_that_may_be_readable_elsewhere_is_not_given_up_for_a_damaged_journal(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header_line(structs.replace(read(path).header, version="0.0.9")) + b"".join(lines[1:]))
    assert names(restored(path)) == NAMES, "the journal is whole"
    segments.closed(path, 5)[0].unlink()
    with pytest.raises(JournalError, match=r"entries 1 to 3 .* use the version that wrote it, 0\.0\.9"):
        restored(path)


def test_a_submission_that_is_missing_takes_nothing_else_with_it(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[2]]))
    found = restored(path)
    assert names(found) == list("abcdf")
    assert found.missing == [f"entry 6 of the journal is missing: {path}"]
    again = restored(path)
    assert segments.state_bytes(again.core) == segments.state_bytes(found.core)


# --- facts in the folders of trainers that a damaged journal lacks ---------------------------------------------------


def spec(name: str, digit: str) -> TrainerSpec:
    return TrainerSpec(TrainerId(name), uid=TrainerUid(digit * 32))


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def test_the_highest_generation_is_that_of_any_file_or_of_the_journal(rundir: RunDir) -> None:
    core, launches = Coordinator(), LaunchStore(rundir, "pool", None)
    for name, digit in (("a", "1"), ("b", "2"), ("c", "3")):
        launches.add(spec(name, digit), LAUNCH)
        core.handle(0.0, TrainerSubmitted(spec(name, digit)))
    folder = rundir.trainer(TrainerId("a")) / "checkpoints"
    for file in (
        "g000002-s00000007.h5",
        "g000003-s00000009.part0of2.h5",
        "g000001-s00000001.next",
        "g9.h5",
        f"g{9**30}-s00000001.h5",
        "x",
    ):
        (folder / file).touch()
    named = {TrainerId("b"): Generation(4), TrainerId("gone"): Generation(8)}
    assert lost_generations(core, launches, named) == (("a", 3), ("b", 4))
    for file in (".g000005-s00000009.h5.12-34@host.tmp", "g000006-s00000009.h5.doubtful"):
        (folder / file).touch()
        assert lost_generations(core, launches, {}) == (("a", int(file.partition("-")[0].strip(".g"))),)


def test_a_folder_that_cannot_be_read_now_is_no_reason_not_to_start(
    rundir: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    core, launches = Coordinator(), LaunchStore(rundir, "pool", None)
    launches.add(spec("a", "1"), LAUNCH)
    core.handle(0.0, TrainerSubmitted(spec("a", "1")))
    folder = rundir.trainer(TrainerId("a")) / "checkpoints"
    folder.rmdir()
    folder.touch()
    assert lost_generations(core, launches, {}) == ()
    assert "checkpoints: Not a directory" in caplog.text


def test_a_trainer_is_named_that_only_its_folder_knows(rundir: RunDir) -> None:
    core, launches = Coordinator(), LaunchStore(rundir, "pool", None)
    for name, digit in (("kept", "1"), ("my-net", "2"), ("earlier", "3")):
        launches.add(spec(name, digit), LAUNCH)
    core.handle(0.0, TrainerSubmitted(spec("kept", "1")))
    began_s = (rundir.trainer(TrainerId("kept")) / "spec.json").stat().st_mtime
    of_an_earlier_pool = rundir.trainer(TrainerId("earlier")) / "spec.json"
    os.utime(of_an_earlier_pool, (began_s - 1, began_s - 1))
    told = lost_trainers(rundir, core, began_s)
    assert ": my-net-22222222; " in told
    assert "\n" not in told
    core.handle(1.0, TrainerSubmitted(spec("my-net", "4")))
    assert lost_trainers(rundir, core, began_s) == "", "it was submitted again"


# --- another format --------------------------------------------------------------------------------------------------


EARLIER = {"version": "0.0.9", "coordinator": "p", "started_unix_s": 1.7e9, "settings": {}, "site": {"name": "local"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The run directory of a pool of an earlier version that was shut down."""
    (tmp_path / "journal.jsonl").write_bytes(sealed({"journal": FORMAT - 1, **EARLIER}))
    return tmp_path


def refusal(printed: str) -> str:
    (line,) = printed.splitlines()
    assert f"journal.jsonl:1: not a journal of format {FORMAT} (its first line says {FORMAT - 1})" in line
    return line


@pytest.mark.parametrize("command", ["events", "status", "ls", "report"])
def test_commands_about_a_past_pool(root: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([command, "--run-dir", str(root)]) == 2
    refusal(capsys.readouterr().err)


def test_the_coordinator_says_how_a_new_pool_starts(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (root / "journal.jsonl").read_bytes()
    assert run(["up", "--site", "local", "--run-dir", str(root)]) == 2
    line = refusal(capfd.readouterr().err)
    assert line.endswith("; pilot up --fresh starts a new pool and keeps this one aside")
    assert (root / "journal.jsonl").read_bytes() == before
