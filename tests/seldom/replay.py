"""Compares what nodes have logged with the reference: step by step, and round by round."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from pilot.train.state.progress import LineageRow
from tests.seldom.case import Case, Values, model_values, values
from tests.seldom.log import Record, of_nodes, read
from tests.seldom.reference import Node, Nodes


@dataclass(frozen=True)
class Round:
    """A round that was held: ``rows`` of the ledger, and the inner steps of each node, of which the first ``counted``
    are in its sum.
    """

    number: int
    rows: Sequence[LineageRow]
    steps: dict[str, list[Record]]
    counted: dict[str, int]

    def in_sum(self) -> Iterator[Record]:
        """Yield the inner steps that count."""
        for name, its in self.steps.items():
            yield from its[: self.counted[name]]


def rounds(folder: Path, processes: int = 1) -> list[Round]:
    """Return the rounds behind the parameters in the end, on which all nodes, of so many processes, agree."""
    ledgers = [torch.load(path)["ledger"] for path in folder.glob("end-*")]
    assert ledgers
    assert all(ledger == ledgers[0] for ledger in ledgers)
    rows = [LineageRow(*row) for row in ledgers[0]]
    made = {step: list(its) for step, its in groupby(rows, lambda row: row.step)}
    logged = of_nodes(read(folder), processes)
    return [_round(its, [one for one in logged if one.opened == step]) for step, its in made.items()]


def _round(rows: list[LineageRow], logged: list[Record]) -> Round:
    logged = [one for one in logged if one.epoch == rows[0].epoch]
    last = {tuple(one.samples): one for one in sorted(logged, key=lambda one: one.when_s)}
    names = sorted({one.node for one in logged})
    steps = {name: [one for one in logged if one.node == name] for name in names}
    is_counted = {
        name: [_is_in(one, rows) and last[tuple(one.samples)] is one for one in its] for name, its in steps.items()
    }
    for name, its in is_counted.items():
        assert its == sorted(its, reverse=True), f"not the first steps of {name} count in {rows}: {its}"
    return Round(logged[0].round, rows, steps, {name: sum(its) for name, its in is_counted.items()})


def _is_in(one: Record, rows: Sequence[LineageRow]) -> bool:
    return any(row.cursor <= one.samples[0] and one.samples[-1] < row.cursor_end for row in rows)


def of_round(made: Sequence[Round], number: int) -> Round:
    """Return a round by its number."""
    return next(one for one in made if one.number == number)


def assert_exactly_once(case: Case, made: Sequence[Round]) -> None:
    """Check that the steps that count have each sample of each epoch once, and that the ledger says so."""
    for epoch in range(case.epochs):
        its = [one for one in made if one.rows[0].epoch == epoch]
        used = [sample for one in its for step in one.in_sum() for sample in step.samples]
        assert sorted(used) == list(range(case.samples))
        noted = [sample for one in its for row in one.rows for sample in range(row.cursor, row.cursor_end)]
        assert sorted(noted) == list(range(case.samples))


def assert_as_reference(
    case: Case, folder: Path, copies: Mapping[str, str] | None = None, processes: int = 1, tolerance: float = 1e-11
) -> list[Round]:
    """Replay the rounds: before and after each inner step a node has the reference's values, and in the end.
    ``copies``: which newcomers have a copy of the inner optimizer's state of which node.
    """
    made = rounds(folder, processes)
    assert_exactly_once(case, made)
    with case.numbers():
        nodes = {name: case.node() for name in made[0].steps}
        together = Nodes([*nodes.values()], case.outer_lr, case.momentum, case.nesterov)
        for one in made:
            for name in one.steps.keys() - nodes.keys():
                nodes[name] = case.node()
                together.join(nodes[name], like=nodes.get((copies or {}).get(name, "")))
            inner = {name: _trained(node, one, name, tolerance) for name, node in nodes.items()}
            together.close()
            for name, state in inner.items():
                groups = nodes[name].optimizer.state_dict()["param_groups"]
                nodes[name].optimizer.load_state_dict({"state": state, "param_groups": groups})
        for path in folder.glob("end-*"):
            _same(torch.load(path)["values"], values(together.nodes[0]), tolerance, "in the end")
    return made


def _trained(node: Node, one: Round, name: str, tolerance: float) -> Any:
    """Make a node's steps that count, and then the others, which leave only their mark on the inner optimizer: return
    its state.
    """
    steps, counted = one.steps.get(name, []), one.counted.get(name, 0)
    _train(node, steps[:counted], tolerance)
    parts = [part for part in (node.model, node.scheduler, node.average) if part is not None]
    before = [copy.deepcopy(part.state_dict()) for part in parts]
    numbers = node.steps, node.samples
    _train(node, steps[counted:], tolerance)
    for part, state in zip(parts, before, strict=True):
        part.load_state_dict(state)
    node.steps, node.samples = numbers
    return copy.deepcopy(node.optimizer.state_dict()["state"])


def _train(node: Node, steps: Sequence[Record], tolerance: float) -> None:
    for step in steps:
        where = f"{step.node} in round {step.round}, with sample {step.samples[0]}"
        _same(step.before, values(node), tolerance, f"before a step of {where}")
        node.train([step.samples])
        _same(step.after, model_values(node), tolerance, f"after a step of {where}")


def _same(one: Values, other: Values, tolerance: float, where: str) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, msg=lambda text: f"{where}: {text}")
