"""A connection file that is swapped while its agent runs: nothing happens as long as the connection holds; afterwards
the agent finds its own coordinator again, and shows nobody else its token.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pilot.protocol import connection
from pilot.protocol.connection import Certificate
from tests.integration.agent_lab import Agents, Coordinator, until
from tests.streams import ThreadedServer


def test_an_agent_returns_to_its_coordinator_whatever_its_file_was_meanwhile(
    stage: tuple[Coordinator, Agents], tmp_path: Path
) -> None:
    coordinator, agents = stage
    impostor = ThreadedServer(Certificate.make())
    agent = agents.start(coordinator.file)
    name = coordinator.peer(agent).hello.pilot
    ours = connection.load(coordinator.file)
    other = msgspec.structs.replace(ours, coordinator="other", certificate="1" * 64)
    connection.write(coordinator.file, other)
    coordinator.pump(2.0)
    assert "closed" not in agents.said(agent), "while it is connected it does not look"

    connection.write(coordinator.file, msgspec.structs.replace(ours, endpoint=f"tcp://127.0.0.1:{impostor.port}"))
    coordinator.close()
    until(lambda: impostor.knocks > 0, "an attempt at the address in the file")
    coordinator.file.unlink()
    os.mkfifo(coordinator.file)
    seen = impostor.knocks
    until(lambda: impostor.knocks > seen + 1, "further attempts, there being no better address")
    coordinator.file.unlink()
    again = Coordinator(tmp_path, certificate=coordinator.certificate)
    back = again.peer(agent).hello
    assert (back.pilot, agent.poll()) == (name, None)
    assert impostor.came.empty(), "nothing was sent to it"
    assert "Traceback" not in agents.said(agent)
    again.close()
    impostor.close()


def test_an_agent_whose_file_becomes_another_pools_leaves_when_its_coordinator_is_gone(
    stage: tuple[Coordinator, Agents],
) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    coordinator.peer(agent)
    ours = connection.load(coordinator.file)
    connection.write(coordinator.file, msgspec.structs.replace(ours, coordinator="other", certificate="1" * 64))
    coordinator.close()
    until(lambda: agent.poll() is not None, "its end")
    assert agent.returncode == 0
    assert agents.said(agent).splitlines()[-1].endswith("now belongs to pool other")
