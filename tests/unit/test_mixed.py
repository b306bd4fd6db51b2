"""The benchmark of pools with several types of nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import gpu_rates, mixed
from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change, types_of
from pilot.research.traces.fragments import pool_size

OPTIONS = mixed.Options(nodes=60, hours=1.0, know="truth", most=mixed.ALL)
RUN = mixed.Run("cloud", mixed.FULL, 1, mixed.TYPED)


@pytest.mark.parametrize("shares", [shares for shares, _ in mixed.POOLS.values()])
def test_speeds_are_relative_to_the_mean_node(shares: dict[str, float]) -> None:
    for model in range(len(gpu_rates.MODELS)):
        found = gpu_rates.speeds(shares, model)
        mean = sum(share * found[name] for name, share in shares.items()) / sum(shares.values())
        assert mean == pytest.approx(1.0)
        first, *others = shares
        rates = gpu_rates.PER_S
        assert all(
            found[name] / found[first] == pytest.approx(rates[name][model] / rates[first][model]) for name in others
        )
    assert all(len(rates) == len(gpu_rates.MODELS) for rates in gpu_rates.PER_S.values())


def test_neighbours_are_alike_in_blocks() -> None:
    n1, n2, n9, n10 = (NodeId(f"n{i}") for i in (1, 2, 9, 10))
    changes = [Change(0.0, joined=(n10, n2, n9)), Change(1.0, left=(n9,)), Change(2.0, joined=(n1,))]
    types = types_of(mixed.in_blocks(changes, {"a100": 1.0, "v100": 3.0}))
    assert {node: of.name for node, of in types.items()} == {n1: "a100", n2: "v100", n9: "v100", n10: "v100"}


def test_a_divided_pool_has_all_nodes_and_trainers_once_and_each_on_its_type() -> None:
    changes = mixed.trace(RUN, OPTIONS)
    rows = list(mixed.workload(RUN, pool_size(changes, 3600.0).node_seconds, 1.0))
    parts = mixed.divided(changes, rows)
    names = [{of.name for of in types_of(part).values()} for part, _ in parts]
    assert names == [{"a10"}, {"a100"}, {"v100"}]
    nodes = [node for part, _ in parts for node in types_of(part)]
    assert sorted(nodes) == sorted(types_of(changes))
    assert sorted(row.spec.trainer for _, some in parts for row in some) == sorted(row.spec.trainer for row in rows)
    for (_, some), (name,) in zip(parts, names, strict=True):
        assert {kind for row in some for kind, _ in row.spec.speeds} <= {name}


def test_a_table_compares_all_ways(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    given = ["--pools", "narrow", "--workloads", "full", "--nodes", "40", "--hours", "0.5", "--seeds", "3"]
    result = CliRunner().invoke(mixed.main, [*given, "--json", f"{out}"])
    assert result.exit_code == 0, result.output
    rows = {row["way"]: row for row in json.loads(out.read_text())}
    assert list(rows) == list(mixed.WAYS)
    assert rows["blind"]["work"] == 1.0 and 0.8 < rows["typed"]["efficiency"] <= 1.0
    assert rows["lockstep"]["work"] <= 1.0 <= rows["typed"]["work"]


def test_wrong_arguments_are_one_line() -> None:
    for given, words in (
        (["--pools", "lake"], "'lake': choose from cloud"),
        (["--most", "few"], "--most few: give a number or auto"),
    ):
        result = CliRunner().invoke(mixed.main, given)
        assert result.exit_code == 2 and words in result.output
