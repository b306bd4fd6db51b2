"""The fork server of an interpreter that cannot train."""

from __future__ import annotations

import asyncio
import os
import venv
from pathlib import Path

from pilot.agent import workdir as workdirs
from pilot.agent.fork_client import ForkClient

LIMIT_S = 60.0


def test_its_last_words_are_heard_though_it_never_read_a_job(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    heard: list[tuple[str, list[object]]] = []

    async def play(home: workdirs.Workdir) -> None:
        over = asyncio.Event()

        def report(kind: str, fields: list[object]) -> None:
            heard.append((kind, fields))
            if kind == "gone":
                over.set()

        server = ForkClient(home, str(tmp_path / "bare/bin/python"), report)
        server.launch(b"[]", [])
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)  # nothing is read before it has ended
        await asyncio.wait_for(over.wait(), LIMIT_S)

    home = workdirs.create(Path("/tmp"))
    try:
        asyncio.run(play(home))
    finally:
        os.close(home.lock)
        assert workdirs.erase(home.path) == []
    assert heard == [("failed", ["ModuleNotFoundError: No module named 'numpy'"]), ("gone", [1])]
