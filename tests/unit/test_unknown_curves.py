"""The benchmark of unknown curves: its families are not the model's, its oracle knows them, and it prints its table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from benchmarks import unknown_curves
from benchmarks.unknown_curves import FAMILIES, MIXED, SETTINGS, Files, Run, workload
from pilot.core.curves.curve_model import ON_SUMMIT, MeasuredRate, fit

COUNTS = (1, 2, 3, 4, 8, 16, 32, 64)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_curves_start_at_one_and_are_not_all_the_models(family: str) -> None:
    draws = [FAMILIES[family](Random(seed)) for seed in range(10)]
    assert all(speed_up(1) == pytest.approx(1.0) and speed_up(64) > 0 for speed_up in draws)
    points = [tuple(MeasuredRate(n, speed_up(n), 0.001) for n in COUNTS) for speed_up in draws]
    fits = [fit(known, ON_SUMMIT) for known in points]
    worst = max(abs(f.per_s(p.nodes) / p.per_s - 1) for f, known in zip(fits, points, strict=True) for p in known)
    assert worst > 0.05


def test_a_case_has_the_same_trainers_whatever_is_known_of_them() -> None:
    one, other = (workload(Run("short", MIXED, 1, know), 60, 2.0, Files()) for know in ("truth", "never"))
    assert one == other != workload(Run("short", MIXED, 2, "truth"), 60, 2.0, Files())
    assert sum((row.spec.samples or 0) / row.spec.curve.single_node_rate() for row in one if row.spec.curve) > 60 * 7200
    assert {len(workload(Run("calm", MIXED, 1, "truth"), 60, h, Files())) for h in (1.0, 9.0)} == {10}


def test_the_table_has_a_row_for_each_case_and_known_curves_are_best(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    options = [
        "--settings",
        "narrow,pair",
        "--families",
        "dip,power",
        "--seeds",
        "1",
        "--hours",
        "1",
        "--know",
        "never,oracle",
    ]
    found = CliRunner(catch_exceptions=False).invoke(unknown_curves.main, [*options, "--json", str(out)])
    rows = re.findall(r"│ (narrow|pair) +│ (\S+)", found.stdout)
    assert rows == [("narrow", "dip"), ("narrow", "power"), ("pair", "-"), ("narrow", "(mean)")]
    work = {(r["setting"], r["family"], r["know"]): r["work"] for r in json.loads(out.read_text())}
    for setting, family in rows[:-1]:
        truth = work[setting, family, "truth"]
        assert work[setting, family, "never"] <= truth * 1.001
        assert work[setting, family, "never"] < work[setting, family, "oracle"] <= truth * 1.001


def test_one_node_is_not_measurable_where_a_trainer_needs_more() -> None:
    options = unknown_curves.Options(4.0, 0.0, 10, "dp", Files())
    for setting, same in (("narrow", True), ("minimum", False)):
        runs = [Run(setting, "dip", 1, know) for know in ("truth", "measurable", "oracle")]
        truth, measurable, oracle = (unknown_curves.replay(options, run).work for run in runs)
        assert truth * 1.001 >= oracle > 0.9 * truth
        assert (measurable == truth) if same else (0.5 * truth < measurable < 0.995 * truth)


def test_trainers_of_a_trace_may_come_from_files(tmp_path: Path) -> None:
    texts = {
        "events.csv": "time_s,node,event\n0,n1,join\n0,n2,join\n300,n1,leave\n600,n3,join\n3600,n2,leave\n",
        "trainers.csv": "trainer,submit_s,min_nodes,max_nodes,rescale_up_s,rescale_down_s,samples,curve\n"
        "a,0,1,4,20,10,9e9,0\nb,0,1,4,20,10,9e9,0\n",
        "curves.json": '[{"nodes": [1, 2, 4], "samples_per_s": [10.0, 19.0, 35.0]}]',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    options = [part for name in texts for part in (f"--{name.split('.')[0]}", str(tmp_path / name))]
    found = CliRunner(catch_exceptions=False).invoke(unknown_curves.main, [*options, "--hours", "1", "--seeds", "1"])
    assert re.search(r"│ trace +│ file +│ +\d+\.\d │ +\d+\.\d │", found.stdout), found.stdout


def test_a_trace_is_needed_where_the_setting_is_one() -> None:
    found = CliRunner().invoke(unknown_curves.main, ["--settings", "trace"])
    assert found.exit_code == 2 and "--events" in found.stderr
    assert "trace" in SETTINGS
