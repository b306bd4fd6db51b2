"""Two pools side by side: each takes pilots only on its own nodes, and ``pilot pools`` lists both."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pilot.cli.main import run
from pilot.cli.views import PoolList
from pilot.protocol import wire
from tests.integration.live_pool import Peer, pool, settings, until


def test_two_pools_over_disjoint_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    zero = ("--pilots", "0")
    with (
        pool(folders[0], *zero, "--only-nodes", "n[1-4]") as one,
        pool(folders[1], *zero, "--only-nodes", "n[5-8]", *settings(objective="throughput")) as other,
    ):
        here = Peer(one.file, "p1", "n4").welcomed()
        until(lambda: here.node in one.nodes())
        refused = Peer(other.file, "p2", "n4").hears(wire.Refused)
        assert refused.reason == "node n4 does not belong to this pool (--only-nodes n[5-8])"
        Peer(other.file, "p3", "n4").hears(wire.Refused)
        assert (len(one.nodes()), len(other.nodes())) == (1, 0)
        assert other.client.status().remarks == [f"a pilot was refused: {refused.reason}"]
        assert run(["pools", "--json"]) == 0
        rows = msgspec.json.decode(capsys.readouterr().out, type=PoolList).pools
        assert [(row.state, row.only_nodes, row.objective, row.nodes) for row in rows] == [
            ("up", "n[1-4]", "scaling-efficiency", 1),
            ("up", "n[5-8]", "throughput", 0),
        ]
        here.die()
        one.down()
        other.kill()
        run(["pools", "--all"])
        told = capsys.readouterr().out
        assert [state in told for state in ("down", "crashed", " up ")] == [True, True, False]
        (one.run_dir / "journal.jsonl").unlink()
        run(["pools", "--json"])
        assert len(msgspec.json.decode(capsys.readouterr().out, type=PoolList).pools) == 1


def test_a_pattern_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--run-dir", str(tmp_path), "--only-nodes", "n[4-1]"]) == 2
    assert capsys.readouterr().err.startswith("pilot: 'n[4-1]' is not a node pattern")
