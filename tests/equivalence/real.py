"""Ways to run a row on ranks that are real processes, with MPI and SIGKILL; see :mod:`tests.integration.plane`.

This covers what threads cannot show: each rank has its own random generators, and states and sums go through real
sockets and MPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from pilot.train.state.progress import LineageRow
from tests.equivalence import worker
from tests.equivalence.history import Members, Rehearsing
from tests.equivalence.rows import Row
from tests.equivalence.ways import Rank, Run
from tests.integration.plane import DEADLINE_S, Node, Plane, plane

COMPILING_S = 300.0
"""The deadline of a script that runs a compiler, beside others that do."""


def on_processes(row: Row, way: str, folder: Path, *more: str) -> Run:
    """One of :data:`~tests.equivalence.ways.WAYS`; ``more``: arguments of :mod:`tests.equivalence.worker`."""
    arguments = (row.name, way, str(folder), *more)
    with plane(folder, Path(worker.__file__), *arguments, silent_s=20.0, between_nodes=row.between_nodes) as cluster:
        groups = _changes(cluster, way, folder)
        cluster.wait_finished(COMPILING_S if row.needs else DEADLINE_S)
        last = list(cluster.training)
        cluster.stop()
    members = {node.name: number for number, node in enumerate(cluster.nodes)}
    ranks = [_rank(folder, node.name, members[node.name]) for node in last]
    numbers = {g: tuple(members[node.name] for node in group) for g, group in groups.items()}
    bounds = {step: its for node in last for step, its in torch.load(worker.ran(folder, node.name))[2].items()}
    return Run(numbers, _rehearsals(numbers), ranks, bounds)


def _rehearsals(groups: Mapping[int, Members]) -> dict[int, Rehearsing]:
    """Who is new rehearses, unless all are."""
    seen: set[int] = set()
    rehearsals = {}
    for generation, members in groups.items():
        known = [rank for rank, member in enumerate(members) if member in seen]
        if known:
            rehearsals[generation] = {r: known[0] for r, member in enumerate(members) if member not in seen}
        seen |= set(members)
    return rehearsals


def _changes(cluster: Plane, way: str, folder: Path) -> dict[int, list[Node]]:
    """Change the group; its nodes, by generation."""
    if way == "one rank":
        (a,) = cluster.start(1)
        return {cluster.form([a]): [a]}
    a, b = cluster.start(2)
    if way == "two ranks":
        return {cluster.form([a, b]): [a, b]}
    if way == "1 -> 2 -> 1":
        return {
            cluster.form([a]): [a],
            cluster.form([b, a], switch=True): [b, a],
            cluster.form([a], switch=True): [a],
        }
    groups = {cluster.form([a, b]): [a, b]}
    cluster.wait(worker.dies(folder).exists, "the step in which a rank dies")
    cluster.kill(b)
    cluster.dissolve()
    return groups | {cluster.form([a]): [a]}


def _rank(folder: Path, node: str, member: int) -> Rank:
    tensors, ledger, _ = torch.load(worker.ran(folder, node))
    return Rank(member, tensors, [LineageRow(*row) for row in ledger])
