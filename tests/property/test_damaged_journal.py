"""Whatever entries a journal lacks: everything that reads journals copes, and says what is missing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pilot import __version__
from pilot.history.page import render
from pilot.history.trainer_progress import ledgers
from pilot.rundir.entries import Decision
from pilot.rundir.journal import FORMAT, Header, header_line, read, replay
from pilot.service.durability.restore import restore
from pilot.service.requests.pool_report import life_of, trials
from pilot.service.requests.status_view import account
from pilot.service.settings import fresh_core
from tests.invariants import violations
from tests.property.test_core import play, scripts
from tests.property.test_studies import play as play_studies
from tests.property.test_studies import scripts as study_scripts
from tests.property.world import World

HEADER = Header(FORMAT, __version__, "pool-1", 1.7e9, {}, {"name": "local"})


def lines(world: World) -> list[bytes]:
    """The entries of the journal of ``world``. A core with other settings reads it, so it also decides otherwise."""
    entries = enumerate(world.history, 1)
    return [Decision(seq, now_s, event, tuple(commands)).line() for seq, (now_s, event, commands) in entries]


worlds = st.one_of(scripts.map(play), study_scripts.map(play_studies))


@settings(max_examples=60, deadline=None)
@given(worlds, st.data())
def test_a_journal_that_lacks_entries_is_read_by_everything_that_reads_journals(
    world: World, data: st.DataObject
) -> None:
    written = lines(world)
    first = data.draw(st.integers(0, len(written)))
    last = data.draw(st.integers(first, len(written)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        path.write_bytes(b"".join([header_line(HEADER), *written[:first], b"damage\n", *written[last:]]))
        contents = read(path)
        assert bool(contents.last.missing) == (last > first or last == len(written))
        restored = restore(contents, lambda: fresh_core(contents))
        assert violations(restored.core) == []
        assert set(contents.last.missing) <= set(restored.flaws)
        account(restored.core, restored.books.monitor)
        life = life_of(contents)
        assert set(contents.last.missing) <= {event.text for event in life.events}
        assert "was up for" in render(life)
        assert list(trials(contents, 5.0))
        ledgers(contents.decisions)
        if contents.last.missing:
            assert replay(contents, fresh_core(contents)) == contents.last.missing[0]
