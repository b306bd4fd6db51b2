"""The event loop never waits for the disk: a coordinator under every possible request touches no file on its thread."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pilot.protocol import wire
from tests.integration.live_pool import Peer, Pool, form, until, warm

MAIN = (
    "import sys; from pilot.service.durability import journal_writer; journal_writer.SEGMENT_BYTES = 3000; "
    "from tests.integration.watched_coordinator import main; sys.exit(main())"
)


@pytest.mark.slow
def test_no_file_is_touched_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = tmp_path / "watched"
    monkeypatch.setenv("PILOT_WATCHED", str(watched))
    live = Pool(tmp_path)
    live.command = [sys.executable, "-c", MAIN, *live.command[3:]]
    live.options = ["--pilots", "1"]
    try:
        live.up()
        trainer = live.submit(name="a", min_nodes=2, max_nodes=2)
        until(lambda: len(live.client.pilots().pilots) == 1)  # a real job of ours, with its own token
        _train(live, [Peer(live.file, f"p{n}", f"n{n}").welcomed() for n in range(2)], trainer)
        live.kill()
        live.up()
        live.client.cancel(trainer)
        live.client.down()
        assert live.ended() == 0
    finally:
        live.kill()
    assert list((live.run_dir / "journal").glob("*.snapshot")), "no segment ended"
    assert watched.read_text().splitlines() == []


def _train(live: Pool, peers: list[Peer], trainer: str) -> None:
    """All verbs, all agent messages, node losses, and journal segments that end."""
    client = live.client
    until(lambda: len(live.nodes()) == 3)
    told = {p.node: p for p in peers}
    client.clear([peers[0].node])
    starting = until(lambda: [told[n] for n in live.trainer(trainer).warming if n in told])
    for peer in starting:
        warm(peer, trainer)
    if len(starting) == 2:
        form(starting, trainer, resumed=0)
        for step in range(10, 200, 10):
            starting[0].say(wire.Progress(trainer, 1, step, 0, 10 * step, 100.0, metrics={"loss": 1.0 / step}))
        until(lambda: live.trainer(trainer).step == 190)
    starting[0].say(wire.Remark(trainer, "a remark of the script"))
    client.explain(trainer), client.nodes(), client.pilots(), client.trainers(), client.status()
    client.cancel(live.submit(name="b", min_nodes=50))
    client.wait(["b"])
    peers[0].say(wire.Noticed("SIGTERM", 1.0))
    for peer in peers:
        peer.die()
    until(lambda: told.keys().isdisjoint(live.nodes()))
