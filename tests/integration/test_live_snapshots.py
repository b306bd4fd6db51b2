"""A coordinator that restarts from a snapshot, or without it if it is unusable, has the same state."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilot.protocol import wire
from pilot.rundir import segments
from pilot.rundir.journal import header_line, read
from tests.integration.live_pool import DEADLINE_S, Peer, Pool, back, until

SHORT_SEGMENTS = "import sys; from pilot.service.durability import journal_writer as w; w.SEGMENT_BYTES = 3000; "
DAEMON = "from pilot.service.daemon import main; sys.exit(main())"
SLOW_CORE = (
    "import time, pathlib; from pilot.core.coordinator import Coordinator as C; "
    "C.handle = lambda *_: (pathlib.Path({marker!r}).touch(), time.sleep(3600)); "
)
"""It never gets through its journal, and reports that it has begun."""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    made.command = [sys.executable, "-c", SHORT_SEGMENTS + DAEMON, *made.command[3:]]
    try:
        made.up()
        yield made
    finally:
        made.kill()


def trained(live: Pool) -> tuple[str, list[Peer]]:
    """A running trainer, an ended one, a lost node, and journal segments; the coordinator is killed."""
    trainer, peers = live.running(2)
    lost = Peer(live.file, "lost", "lost").welcomed()
    until(lambda: len(live.nodes()) == 3)  # what came and went within a moment is no event
    lost.die()
    until(lambda: len(live.nodes()) == 2)
    for step in range(10, 60, 10):
        peers[0].say(wire.Progress(trainer, 1, step, 0, 10 * step, metrics={"loss": 1.0 / step}))
    until(lambda: live.trainer(trainer).step == 50)
    live.client.cancel(live.submit(name="b", min_nodes=50))  # acknowledged means: on the disk, with all before it
    live.kill()
    assert read(journal(live)).header.after > 0
    return trainer, peers


def journal(live: Pool) -> Path:
    return live.run_dir / "journal.jsonl"


def snapshot(live: Pool) -> Path:
    """The snapshot that the journal's last segment names."""
    return segments.folder(journal(live)) / f"{read(journal(live)).header.after:012d}.snapshot"


def as_it_was(live: Pool, trainer: str, peers: list[Peer]) -> None:
    """All state is restored; what was lost stays lost; training continues."""
    status = live.client.status()
    assert {t.trainer: t.phase for t in status.trainers} == {trainer: "running", "b": "cancelled"}
    assert (status.trainer(trainer).step, status.trainer(trainer).metrics) == (50, {"loss": 1 / 50})
    again = Peer(live.file, "lost", "lost")
    assert "counts as lost" in again.hears(wire.Forgotten).reason
    peers[:] = [back(live, peer, trainer, 1, 50) for peer in peers]
    peers[0].say(wire.Progress(trainer, 1, 70, 0, 700))
    until(lambda: live.trainer(trainer).step == 70)
    live.replays()


def test_it_goes_on_from_the_snapshot_again_and_again(live: Pool) -> None:
    trainer, _ = trained(live)
    (first, *_) = segments.closed(journal(live), 10**6)
    first.write_bytes(b"damage")
    live.up()
    assert live.trainer(trainer).step == 50
    assert not any("snapshot" in remark for remark in live.client.status().remarks)
    live.restart()
    assert live.trainer(trainer).step == 50


@pytest.mark.parametrize("why", ["damaged", "missing", "of another version"])
def test_without_a_usable_snapshot_the_complete_journal_is_replayed(live: Pool, why: str) -> None:
    trainer, peers = trained(live)
    match why:
        case "damaged":
            snapshot(live).write_bytes(snapshot(live).read_bytes()[:-1] + b"?")
        case "missing":
            snapshot(live).unlink()
        case _:
            of_version(live, "0.0.9")
    live.up()
    assert any("the whole journal was replayed instead" in remark for remark in live.client.status().remarks)
    as_it_was(live, trainer, peers)


def of_version(live: Pool, version: str) -> None:
    """Another version wrote the journal's last segment and the snapshot before it."""
    lines = journal(live).read_bytes().splitlines(keepends=True)
    header = msgspec.structs.replace(read(journal(live)).header, version=version)
    journal(live).write_bytes(b"".join([header_line(header), *lines[1:]]))


def flip(path: Path) -> None:
    """Flip a bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_the_snapshot_costs_nothing_and_one_in_a_segment_too_what_is_in_it(live: Pool) -> None:
    trainer, peers = trained(live)
    files = segments.closed(journal(live), 10**6)
    whole = {path: path.read_bytes() for path in [journal(live), *segments.folder(journal(live)).iterdir()]}
    flip(snapshot(live))
    live.up()
    (told,) = live.client.status().damage
    assert "snapshot" in told and "the whole journal was replayed instead" in told
    live.kill()

    for path, content in whole.items():
        path.write_bytes(content)
    flip(snapshot(live))
    flip(files[-1])
    live.up()
    damage = live.client.status().damage
    assert any(" of the journal are missing: " in told or " of the journal is missing: " in told for told in damage)
    known = {t.trainer for t in live.client.status().trainers}
    assert {trainer, "b"} <= known | {t for t in (trainer, "b") if any(f" {t}-" in told for told in damage)}
    live.restart()
    assert live.client.status().damage == []
    assert {t.trainer for t in live.client.status().trainers} == known
    for peer in peers:
        peer.die()


def test_a_snapshot_of_another_version_is_not_given_up_for_a_damaged_journal(live: Pool) -> None:
    trained(live)
    of_version(live, "0.0.9")
    (first, *_) = segments.closed(journal(live), 10**6)
    first.write_bytes(b"damage")
    before = journal(live).read_bytes()
    done = subprocess.run(live.command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "use the version that wrote it, 0.0.9" in done.stderr
    assert str(first) in done.stderr
    assert journal(live).read_bytes() == before


def test_a_signal_while_it_reads_its_journal_ends_it_and_changes_nothing(live: Pool) -> None:
    trainer, peers = trained(live)
    before = {path: path.read_bytes() for path in [journal(live), *segments.folder(journal(live)).iterdir()]}
    marker = live.run_dir / "begun"
    begun = SHORT_SEGMENTS + SLOW_CORE.format(marker=str(marker)) + DAEMON
    process = subprocess.Popen([sys.executable, "-c", begun, *live.command[3:]], stderr=subprocess.PIPE, text=True)
    until(marker.exists)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, said.count("\n")) == (2, 1)
    assert "stopped by SIGTERM while starting" in said
    assert {path: path.read_bytes() for path in before} == before
    live.up()
    as_it_was(live, trainer, peers)
