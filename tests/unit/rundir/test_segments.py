"""A journal in segments: read as one, each checked against the next, and never lost in between."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError
from pilot.core.events import Event, PoolChanged
from pilot.core.ids import NodeId
from pilot.host.files import publish
from pilot.rundir import segments
from pilot.rundir.journal import FORMAT, Contents, Header, header_line, read, read_more, replay
from pilot.service.durability.journal_writer import JournalWriter
from tests.resealed import changed

HEADER = Header(FORMAT, "0.1.0", "pool-1", 1.7e9, {}, {})
EVENTS: list[Event] = [PoolChanged(joined=(NodeId(f"n{number}"),)) for number in range(9)]
SNAPSHOT = b"what is known"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """Where there is no journal yet."""
    return tmp_path / "journal.jsonl"


def append(writer: JournalWriter, core: Coordinator, events: list[Event]) -> None:
    for event in events:
        writer.decided(core.now_s + 1, event, core.handle(core.now_s + 1, event)).result(10)


def end(writer: JournalWriter, core: Coordinator) -> None:
    writer.end_segment(core.now_s, segments.state_digest(core), SNAPSHOT)


@pytest.fixture
def path(new: Path) -> Path:
    """A journal of three segments with three entries each."""
    writer, core = JournalWriter.create(new, HEADER), Coordinator()
    for number in range(3):
        append(writer, core, EVENTS[3 * number : 3 * number + 3])
        if number < 2:
            end(writer, core)
    writer.close()
    return new


def closed(path: Path) -> list[Path]:
    return sorted(segments.folder(path).glob("*.gz"))


def test_it_is_read_as_one_and_replays(path: Path) -> None:
    contents = read(path)
    assert (contents.header.after, contents.last.last_seq, contents.last_s) == (6, 9, 9.0)
    assert [decision.event for decision in contents.decisions] == EVENTS
    assert replay(contents, Coordinator()) == ""
    assert [file.name for file in closed(path)] == ["000000000001.jsonl.gz", "000000000004.jsonl.gz"]


def test_only_the_newest_snapshot_is_kept_and_it_is_the_one_that_the_header_names(path: Path) -> None:
    header = read(path).header
    assert segments.read_snapshot(path, header.after, header.snapshot) == SNAPSHOT
    assert len(list(segments.folder(path).glob("*.snapshot"))) == 1
    (snapshot,) = segments.folder(path).glob("*.snapshot")
    snapshot.write_bytes(SNAPSHOT + b"!")
    with pytest.raises(JournalError, match=rf"{snapshot} is damaged"):
        segments.read_snapshot(path, header.after, header.snapshot)


def test_a_segment_without_entries_knows_the_time(new: Path) -> None:
    writer, core = JournalWriter.create(new, HEADER), Coordinator()
    append(writer, core, EVENTS[:2])
    end(writer, core)
    writer.close()
    contents = read(new)
    assert (contents.last.entries, contents.last_s, contents.last.last_seq) == ([], 2.0, 2)
    writer = JournalWriter.resume(new, contents)
    append(writer, core, EVENTS[2:])
    writer.close()
    assert [decision.event for decision in read(new).decisions] == EVENTS


def damage(file: Path, how: str) -> None:
    data = file.read_bytes()
    match how:
        case "cut off":
            file.write_bytes(data[: len(data) // 2])
        case "not compressed":
            file.write_bytes(b"damage")
        case "missing":
            file.unlink()


@pytest.mark.parametrize(("how", "left"), [("cut off", None), ("not compressed", 0), ("missing", 0)])
@pytest.mark.parametrize("number", [0, 1])
def test_of_a_damaged_segment_what_is_intact_is_read_and_the_rest_is_named(
    path: Path, how: str, left: int | None, number: int
) -> None:
    damage(closed(path)[number], how)
    contents = read(path)
    first, last = 3 * number + 1, 3 * number + 3
    seen = [decision.seq for decision in contents.decisions]
    known = [seq for seq in seen if first <= seq <= last]
    assert known == list(range(first, first + len(known)))
    assert len(known) < 3 and left in (None, len(known))
    assert [seq for seq in seen if seq not in known] == [seq for seq in range(1, 10) if not first <= seq <= last]
    (told,) = [text for segment in contents.segments for text in segment.missing]
    which = f"entries {first + len(known)} to {last} of the journal are"
    assert told.startswith(which if len(known) < 2 else f"entry {last} of the journal is")
    assert str(path.parent) in told
    assert replay(contents, Coordinator()) == told


def test_a_flipped_bit_in_a_closed_segment_is_survived_up_to_there(path: Path) -> None:
    file = closed(path)[1]
    whole = file.read_bytes()
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        contents = read(path)
        seen = [decision.seq for decision in contents.decisions]
        assert seen[:3] + seen[-3:] == [1, 2, 3, 7, 8, 9]
        assert seen == sorted(set(seen))
        missing = [text for segment in contents.segments for text in segment.missing]
        assert bool(missing) == (len(seen) < 9)
    assert len(seen) == 9, "the last bytes are gzip's own checksum"


def test_a_segment_that_was_changed_after_it_was_closed_is_told(path: Path) -> None:
    file = closed(path)[0]
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    lines[1] = changed(lines[1], b'"joined":["n', b'"joined":["m')
    file.write_bytes(gzip.compress(b"".join(lines)))
    contents = read(path)
    odd = [text for segment in contents.segments for text in segment.odd]
    assert odd == ["the segment that ends with entry 3 of the journal was changed after it was closed"]
    assert len(list(contents.decisions)) == 9
    assert replay(contents, Coordinator()) != ""


def test_where_all_closed_segments_are_missing_the_last_one_is_read(path: Path) -> None:
    for file in closed(path):
        file.unlink()
    contents = read(path)
    assert [decision.seq for decision in contents.decisions] == [7, 8, 9]
    (told,) = [text for segment in contents.segments for text in segment.missing]
    assert told.startswith("entries 1 to 6 of the journal are missing")


def test_a_segment_that_cannot_be_read_now_is_not_taken_for_lost(path: Path) -> None:
    file = closed(path)[0]
    file.unlink()
    file.mkdir()
    with pytest.raises(JournalError, match=r"cannot read the segment .* try again later") as told:
        list(read(path).decisions)
    assert told.value.transient


@pytest.mark.parametrize("number", [0, 1])
def test_the_header_of_a_closed_segment_is_not_needed(path: Path, number: int) -> None:
    file = closed(path)[number]
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    file.write_bytes(gzip.compress(b"".join([b"damage\n", *lines[1:]])))
    contents = read(path)
    assert [decision.event for decision in contents.decisions] == EVENTS
    assert replay(contents, Coordinator()) == ""


def test_a_replay_compares_the_states_too(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    header = msgspec.structs.replace(read(path).header, core="0" * 64)
    path.write_bytes(b"".join([header_line(header), *lines[1:]]))
    assert replay(read(path), Coordinator()) == "entry 6: the state after it is not the one that was recorded"


@pytest.mark.parametrize("step", ["snapshot", "segment", "journal"])
def test_a_crash_while_a_segment_ends_loses_nothing(new: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The disk fails at each file in turn; the next writer continues as if the first had never stopped."""
    writer, core = JournalWriter.create(new, HEADER), Coordinator()
    append(writer, core, EVENTS[:4])
    failing = {"snapshot": ".snapshot", "segment": ".gz", "journal": "journal.jsonl"}[step]

    def fails(where: Path, data: bytes, mode: int = 0o600) -> None:
        if where.name.endswith(failing):
            raise OSError(28, "No space left on device")
        publish(where, data, mode)

    with monkeypatch.context() as patched:
        patched.setattr("pilot.rundir.segments.publish", fails)
        patched.setattr("pilot.service.durability.journal_writer.publish", fails)
        end(writer, core)
        append(writer, core, EVENTS[4:6])
    contents = read(new)
    assert (contents.header.after, contents.last.last_seq) == (0, 6)
    assert [decision.event for decision in contents.decisions] == EVENTS[:6]
    end(writer, core)
    append(writer, core, EVENTS[6:])
    writer.close()
    contents = read(new)
    assert contents.header.after == 6
    assert replay(contents, Coordinator()) == ""


def test_where_the_new_segment_has_its_name_but_was_not_synced_it_is_written_to(
    new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, core = JournalWriter.create(new, HEADER), Coordinator()
    append(writer, core, EVENTS[:4])

    def fails_late(where: Path, data: bytes, mode: int = 0o600) -> None:
        publish(where, data, mode)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("pilot.service.durability.journal_writer.publish", fails_late)
        end(writer, core)
        append(writer, core, EVENTS[4:])
    writer.close()
    contents = read(new)
    assert isinstance(contents, Contents)
    assert (contents.header.after, contents.last.last_seq) == (4, 9)
    assert replay(contents, Coordinator()) == ""


def test_what_is_added_to_a_segment_is_read_alone(new: Path) -> None:
    writer, core = JournalWriter.create(new, HEADER), Coordinator()
    append(writer, core, EVENTS[:2])
    last = read(new).last
    append(writer, core, EVENTS[2:4])
    with new.open("ab") as file:
        file.write(b'{"seq": 5, "half')  # a line in the middle of being written
    more = read_more(new, last)
    assert more is not None
    assert [entry.seq for entry in more.entries] == [3, 4]
    again = read_more(new, more)
    assert again is not None
    assert again.entries == []
    assert (again.last_seq, again.good_bytes) == (4, more.good_bytes)
    writer.close()


def test_a_segment_that_was_closed_has_no_more(new: Path) -> None:
    writer, core = JournalWriter.create(new, HEADER), Coordinator()
    append(writer, core, EVENTS[:2])
    last = read(new).last
    end(writer, core)
    append(writer, core, EVENTS[2:3])
    assert read_more(new, last) is None
    writer.close()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def replaced(path: Path) -> None:
    path.unlink()
    path.write_text("something else\n")


@pytest.mark.parametrize("harm", [Path.unlink, replaced, emptied, halved])
def test_a_segment_that_somebody_removes_or_cuts_off_is_noticed_and_the_next_one_goes_on(
    new: Path, harm: Callable[[Path], None]
) -> None:
    writer, core = JournalWriter.create(new, HEADER), Coordinator()
    append(writer, core, EVENTS[:4])
    assert writer.is_complete()
    harm(new)
    append(writer, core, EVENTS[4:6])
    assert not writer.is_complete()
    end(writer, core)
    append(writer, core, EVENTS[6:])
    assert writer.is_complete()
    writer.close()
    contents = read(new)
    assert (contents.header.after, [decision.event for decision in contents.last.decisions]) == (6, EVENTS[6:])
    assert segments.read_snapshot(new, 6, contents.header.snapshot) == SNAPSHOT
    if harm in (Path.unlink, replaced):
        assert replay(contents, Coordinator()) == ""


def test_where_no_segment_can_begin_the_removed_one_goes_on_until_one_can(new: Path) -> None:
    writer, core = JournalWriter.create(new, HEADER), Coordinator()
    append(writer, core, EVENTS[:4])
    new.unlink()
    new.mkdir()
    end(writer, core)
    append(writer, core, EVENTS[4:6])
    new.rmdir()
    end(writer, core)
    append(writer, core, EVENTS[6:])
    writer.close()
    assert replay(read(new), Coordinator()) == ""
