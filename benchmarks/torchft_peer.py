"""Our rounds beside those of torchft's DiLoCo: nodes of one machine, over TCP on its loopback, in turns of whole rounds
(:mod:`benchmarks.turns`). Each node has one thread, and a core that it shares with no other work, but with the rest of
its node.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.quotas import Quota, quotas
from benchmarks.seldom_script import BATCH, SUBJECT
from benchmarks.torchrun_peer import free_port
from benchmarks.turns import Turns
from tests.integration.live_pool import until
from tests.integration.plane import plane

_HERE = Path(__file__).parent
_DEADLINE_S = 120.0


def measure(python: Path, nodes: int, every: int, rounds: int) -> dict[str, Any]:
    """Return the inner steps per second of all nodes, ours and torchft's, and their ratio: medians over the turns."""
    with quotas([1.0] * nodes) as limits, ours(every, limits) as one, theirs(python, every, limits) as other:
        _rate(one), _rate(other)
        rates = [(_rate(one), _rate(other)) for _ in range(rounds)]
    return {
        "nodes": nodes,
        "every": every,
        "inner steps per s": median(mine for mine, _ in rates),
        "torchft: inner steps per s": median(its for _, its in rates),
        "rate relative to torchft": median(mine / its for mine, its in rates),
        "rates relative to torchft": [mine / its for mine, its in rates],
    }


def _rate(turns: Turns) -> float:
    nodes = turns.run()
    taken_s = max(node["end_s"] for node in nodes) - min(node["begin_s"] for node in nodes)
    return float(sum(node["steps"] for node in nodes) / taken_s)


@contextmanager
def ours(every: int, limits: list[Quota]) -> Iterator[Turns]:
    """A group of sessions, one for each limit."""
    nodes = len(limits)
    with tempfile.TemporaryDirectory() as name:
        arguments = ["--folder", name, "--sync", f"diloco:every={every}", "--turn", "1"]
        with plane(Path(name), _HERE / "seldom_script.py", *arguments) as cluster:
            members = cluster.start(nodes)
            generation = cluster.form(members, wait=False)
            for node, limit in zip(members, limits, strict=True):
                for process in (psutil.Process(node.process.pid), node.rank_process(generation)):
                    for one in (process, *process.children(recursive=True)):
                        limit.add(one.pid)

            def wait(done: Callable[[], bool]) -> None:
                cluster.wait(done, "a turn", _DEADLINE_S)

            yield Turns(Path(name), nodes, wait)


@contextmanager
def theirs(python: Path, every: int, limits: list[Quota]) -> Iterator[Turns]:
    """A group of torchft's, one for each limit, with its server of quorums."""
    nodes, port = len(limits), free_port()
    server = [str(python.with_name("torchft_lighthouse")), "--min_replicas", str(nodes), "--bind", f"127.0.0.1:{port}"]
    given = {"subject": SUBJECT, "batch": BATCH, "every": every, "nodes": nodes, "turn": 1}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        given |= {"folder": name, "lighthouse": f"http://127.0.0.1:{port}"}
        words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
        log = stack.enter_context((Path(name) / "log").open("wb"))
        command = [str(python), "-m", "benchmarks.torchft_script", *words]
        environment = os.environ | {"PYTHONPATH": str(_HERE.parent)}
        processes = [subprocess.Popen(server, stdout=log, stderr=log)]
        stack.callback(_kill, processes)
        for rank, limit in enumerate(limits):
            peer = subprocess.Popen([*command, "--rank", str(rank)], env=environment, stdout=log, stderr=log)
            processes.append(peer)
            limit.add(peer.pid)

        def wait(done: Callable[[], bool]) -> None:
            until(lambda: done() or any(one.poll() is not None for one in processes), _DEADLINE_S)
            assert done(), f"torchft failed: {(Path(name) / 'log').read_text()[-2000:]}"

        yield Turns(Path(name), nodes, wait)


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
