"""A user's objective in a live pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.core.errors import UserError
from tests.integration.live_pool import pool, settings

MINE = """
def small_only(trainer, nodes):
    return nodes / (trainer.max_nodes < 8)
"""


def test_a_trainer_for_which_it_fails_is_refused_and_the_pool_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    with pool(tmp_path, "--pilots", "0", *settings(objective="mine:small_only")) as live:
        with pytest.raises(UserError, match="of trainer t1 on 1 nodes, fails: ZeroDivisionError"):
            live.submit(max_nodes=8)
        assert live.submit(max_nodes=7) in [row.trainer for row in live.client.trainers().trainers]
