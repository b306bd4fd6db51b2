"""A user's objective in a live pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.io.client import request
from tests.integration.live_pool import DEADLINE_S, pool

MINE = """
def small_only(trainer, nodes):
    return nodes / (trainer.max_nodes < 8)
"""


def test_a_trainer_for_which_it_fails_is_refused_and_the_pool_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    with pool(tmp_path, "--pilots", "0", "--objective", "mine:small_only") as live:
        script = {"script": "/s.py", "script_sha256": "", "arguments": [], "cwd": "/", "python": "python"}
        large = {**script, "environment": {}, "max_nodes": 8}
        reply = request(live.file, "submit", large, DEADLINE_S)
        assert reply.exit_status == 2
        assert "of trainer t1 on 1 nodes, fails: ZeroDivisionError" in reply.error
        assert live.submit(max_nodes=7) in [row["trainer"] for row in live.ask("list")]
