"""Strangers on an agent's port for its peers: few at once, for a moment; the agent lives, its peers are answered."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from pilot.agent import peers
from pilot.core.commands import StopWorker
from pilot.protocol import wire
from tests.integration.agent_lab import Agents, Coordinator, launch, until

STRANGERS = 300
FILES = 256
"""The agent's limit of open files."""

SPARE = 60

BEATS = 10

SLEEPS = "import time; open('running', 'w').close(); time.sleep(600)"


def port(agent: int) -> int:
    """The port on which the agent answers its peers."""
    return next(c.laddr.port for c in psutil.Process(agent).net_connections() if c.status == psutil.CONN_LISTEN)


def start(agents: Agents, coordinator: Coordinator) -> subprocess.Popen[bytes]:
    """An agent that may open few files."""
    agent = agents.start(coordinator.file)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (FILES, FILES))  # long before it listens
    return agent


def limit_files(agent: int, spare: int) -> None:
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (psutil.Process(agent).num_fds() + spare, 20000))


def beats(coordinator: Coordinator, agent: int) -> None:
    """The agent is alive for some more ticks: nothing but heartbeats comes, and its link stays."""
    coordinator.pump(BEATS * coordinator.welcome["heartbeat_s"])
    assert psutil.Process(agent).status() != psutil.STATUS_ZOMBIE


def test_strangers_take_neither_an_agents_descriptors_nor_its_answers_to_peers(
    stage: tuple[Coordinator, Agents],
) -> None:
    coordinator, agents = stage
    agent = start(agents, coordinator)
    coordinator.peer(agent)
    place = ("127.0.0.1", port(agent.pid))
    before = psutil.Process(agent.pid).memory_info().rss
    with ExitStack() as held:
        for _ in range(STRANGERS):
            held.enter_context(socket.create_connection(place)).send(b"GET / HTTP/1.1\r\n")
        assert asyncio.run(peers._unreached([f"{place[0]}:{place[1]}"])) == []
        beats(coordinator, agent.pid)
    assert agent.poll() is None, agents.said(agent)
    assert "Traceback" not in agents.said(agent)
    assert len(agents.said(agent)) < 5000
    assert psutil.Process(agent.pid).memory_info().rss - before < 8 << 20


def test_an_agent_without_a_free_descriptor_lives_and_works_again_once_there_are_some(
    stage: tuple[Coordinator, Agents], tmp_path: Path
) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    until(lambda: "is warm" in agents.said(agent), "the fork server")
    coordinator.send(peer, launch(tmp_path, SLEEPS))
    until(lambda: coordinator.pump(0.1) or (tmp_path / "running").exists(), "a running script")
    limit_files(agent.pid, -psutil.Process(agent.pid).num_fds())
    coordinator.send(peer, StopWorker("t1", "", "a look at its processes needs descriptors"))
    beats(coordinator, agent.pid)
    limit_files(agent.pid, SPARE)
    assert coordinator.expect(peer, wire.WorkerExited).cause == "stopped"
    assert "Traceback" not in agents.said(agent), agents.said(agent)
    assert len(agents.said(agent)) < 5000


def test_a_shortage_here_does_not_count_as_silence_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LIMIT_S", 5.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def ask() -> list[int]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            return await peers._unreached(["127.0.0.1:1"])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert asyncio.run(ask()) == []
