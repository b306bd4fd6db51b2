"""``pilot replay`` as a user runs it, on a synthesised trace, and on the real week if it is available."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from pilot.cli.main import run
from pilot.cli.options import JSON_FORMAT
from pilot.core.pool.node_type import NodeType
from pilot.research.sim.sweep import Case, Inputs, run_sweep
from pilot.research.traces.changes import with_types, write_changes
from pilot.research.traces.synthesis import PUBLISHED, draw
from pilot.service.settings import load_objective
from tests.browser import needs_browser, shown

T = TypeVar("T")
HOURS = 8
CURVES = [
    {"nodes": [0, 1, 2, 4, 8], "samples_per_s": [0, 10, 19, 36, 64], "objective_per_s": [0, 1, 1.9, 3.6, 6.4]},
    {"nodes": [0, 1, 2, 4, 8], "samples_per_s": [0, 5, 9, 15, 22]},
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with events.csv.gz, trainers.csv and curves.json."""
    folder = tmp_path_factory.mktemp("replay")
    write_changes(folder / "events.csv.gz", draw(PUBLISHED["summit"].on(128), HOURS * 3600.0, seed=3))
    rows = [f"t{k},{60.0 * k},1,8,18.0,12.0,50000.0,{k % 2}" for k in range(60)]
    header = "trainer,submit_s,min_nodes,max_nodes,rescale_up_s,rescale_down_s,samples,curve"
    (folder / "trainers.csv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "curves.json").write_text(json.dumps(CURVES))
    return folder


def arguments(folder: Path, *options: str, events: str = "events.csv.gz") -> list[str]:
    files = ["--trainers", str(folder / "trainers.csv"), "--curves", str(folder / "curves.json")]
    return ["replay", str(folder / events), *files, *options]


def replays(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> list[dict[str, Any]]:
    assert run(arguments(folder, "--json", *options)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["format"] == JSON_FORMAT
    return [{"case": replay["case"], **replay["summary"]} for replay in answer["replays"]]


def test_dp_and_milp_replay_to_the_same_u_and_equal_share_to_less(
    inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dp, milp, equal = replays(capsys, inputs, "--planner", "dp,milp,equal-share", "--hours", "1")
    assert (dp["case"]["planner"], milp["case"]["planner"]) == ("dp", "milp")
    assert milp["efficiency"] == pytest.approx(dp["efficiency"], abs=0.002)
    assert 0 < equal["efficiency"] < dp["efficiency"] <= 1
    assert dp["complete"] and dp["completed"] > 0


def test_what_is_known_of_the_curves_is_worth_something(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even with random guesses and measured rates, the same replay prints the same."""
    what = "truth,guess:linear,guess:huawei,guess:other,guess:1,guess:factor:0.5,measured"
    alike = ("--max-parallel-trainers", "10")  # the same trainers share the pool in all of them
    options = ("--planner", "dp", "--hours", "2", *alike, "--objective", "scaling-efficiency", "--know", what)
    answers = replays(capsys, inputs, *options, "--profile", "never,inverse")
    truth, *guesses, never, inverse = answers
    assert [r["case"]["know"] for r in answers] == [*what.split(","), "measured"]
    assert [r["case"]["profile"] for r in (truth, never, inverse)] == [None, "never", "inverse"]
    assert all(0.5 * truth["efficiency"] < r["efficiency"] < 1.005 * truth["efficiency"] for r in guesses)
    assert len({r["efficiency"] for r in answers}) == len(answers)
    assert (truth["profile_node_s"], never["profile_node_s"], truth["profile_cost"]) == (0, 0, 0)
    assert inverse["profile_node_s"] > 0 and inverse["interruptions"] > never["interruptions"]
    assert replays(capsys, inputs, *options, "--profile", "never,inverse") == answers
    shared = replays(capsys, inputs, *options[:-1], "measured", "--profile", "inverse", "--share-curves")
    assert 0 < shared[0]["profile_node_s"] < 0.7 * inverse["profile_node_s"]
    (loud,) = replays(capsys, inputs, "--planner", "dp", "--hours", "2", "--profile", "never", "--measure-noise", "0.5")
    assert loud["case"]["know"] == "measured" and loud["efficiency"] != never["efficiency"]


def test_a_flotilla_goes_at_a_pace_in_samples_unless_another_objective_is_asked_for(
    inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objectives = ("--objective", "given,throughput,scaling-efficiency")
    options = ("--planner", "flotilla", "--hours", "1", "--on-curve", "1", "--max-parallel-trainers", "8", *objectives)
    given, samples, efficiency = replays(capsys, inputs, *options)
    assert given["case"].pop("objective") == "given" and samples["case"].pop("objective") == "throughput"
    assert given == samples
    assert given["complete"] and given["efficiency"] > 0
    assert efficiency["complete"]


def test_the_same_command_prints_the_same_bytes(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        assert run(arguments(inputs, "--json", "--planner", "dp", "--t-fwd-s", "30,120", "--hours", "3")) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_plans_that_may_have_been_cut_short_are_reported(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for limit, told in (("1e-06", True), ("60", False)):
        assert run(arguments(inputs, "--json", "--planner", "dp", "--hours", "1", "--solve-limit-s", limit)) == 0
        said = capsys.readouterr().err
        assert (f"plans took more than half of --solve-limit-s {limit}: some may" in said) is told, said


def test_a_sweep_has_all_combinations_in_order(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--planner", "dp", "--t-fwd-s", "30,120", "--rescale-scale", "1,5", "--hours", "2")
    cases = [(r["case"]["t_fwd_s"], r["case"]["rescale_scale"]) for r in replays(capsys, inputs, *options)]
    assert cases == [(30, 1), (30, 5), (120, 1), (120, 5)]


def test_dearer_rescales_and_later_plans_lower_u(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cheap, dear = replays(capsys, inputs, "--planner", "dp", "--rescale-scale", "0,10")
    assert cheap["efficiency"] > dear["efficiency"]
    assert cheap["rescale_per_event"] == 0
    prompt, late = replays(capsys, inputs, "--planner", "dp", "--solver-latency-s", "0,60")
    assert prompt["efficiency"] > late["efficiency"]


def test_physical_accounting_charges_starts_too(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paper, physical = replays(capsys, inputs, "--planner", "dp", "--accounting", "paper,physical")
    assert physical["efficiency"] < paper["efficiency"]


def test_a_budget_ends_a_replay_as_it_would_end_the_pool(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = replays(capsys, inputs, "--planner", "dp", "--budget", "20,1e6", "--hours", "3")
    assert small["node_hours"] == pytest.approx(20)
    assert small["budget_ended_h"] == pytest.approx(small["reached_h"])
    assert 0 < small["budget_warned_h"] < small["budget_ended_h"] < large["reached_h"]
    assert small["samples"] < large["samples"]
    assert (large["budget_warned_h"], large["budget_ended_h"]) == (None, None)


def test_a_pool_that_does_not_change_and_trainers_with_bugs(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the end of all trainers, twice, with identical bytes."""
    files = ["--trainers", str(inputs / "trainers.csv"), "--curves", str(inputs / "curves.json")]
    wrong = ["--eta-noise", "0.1", "--fail-share", "0.2", "--cancel-share", "0.1", "--scale-up-delay-s", "15"]
    cadence = ["--sizes", "1,2,4,8", "--decide-every-s", "300", "--planner", "greedy,dp"]
    times = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for path in times:
        assert run(["replay", "--nodes", "30", *files, *wrong, *cadence, "--times", str(path)]) == 0
    printed = capsys.readouterr()
    assert times[0].read_bytes() == times[1].read_bytes()
    rows = list(csv.DictReader(times[0].open()))
    assert len(rows) == 2 * 60 and {row["ending"] for row in rows} == {"finishes", "fails", "cancelled"}
    assert all(
        float(r["total_s"]) == pytest.approx(float(r["waiting_s"]) + float(r["training_s"]), abs=2e-3) for r in rows
    )
    assert "waiting, min" in printed.out and "95th percentile" in printed.err
    assert run(["replay", "--nodes", "30", *files, *cadence, "--hang-share", "0.2", "--hours", "3", "--json"]) == 0
    for replay in json.loads(capsys.readouterr().out)["replays"]:
        assert replay["summary"]["reached_h"] == 3 and 10 < replay["summary"]["completed"] < 60


MINE = """
def only_t0(trainer, nodes):
    return nodes if trainer.trainer == "t0" else 0

def broken(trainer, nodes):
    return 1 / (nodes - 3)

NO_FUNCTION = 3
"""


def test_a_users_objective_decides(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    options = ("--planner", "dp", "--objective", "mine:only_t0", "--hours", "2", "--max-parallel-trainers", "10")
    (replay,) = replays(capsys, inputs, *options)
    assert replay["completed"] == 1


def test_priorities_decide_where_they_are_the_objective(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *rows = (inputs / "trainers.csv").read_text().splitlines()
    favoured = "t7"
    rows = [f"{row},{1000 if row.startswith(favoured + ',') else 1}" for row in rows]
    (tmp_path / "trainers.csv").write_text("\n".join([f"{header},priority", *rows]) + "\n")
    (tmp_path / "curves.json").write_text(json.dumps(CURVES))
    (tmp_path / "events.csv.gz").write_bytes((inputs / "events.csv.gz").read_bytes())
    given, priority = replays(
        capsys, tmp_path, "--planner", "dp", "--objective", "scaling-efficiency,priority", "--hours", "2"
    )
    assert given["work"] != priority["work"]


def test_the_table_names_its_reference(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(inputs, "--planner", "dp", "--max-parallel-trainers", "2,auto")) == 0
    printed = capsys.readouterr().out
    assert "U = A_e / A_s." in printed and "A_s is the work of the same trainers on eq_nodes dedicated nodes" in printed
    assert "max_parallel" in printed and "\nauto " in printed, "sized from the pool"
    assert "Mean run time in hours" in printed


def test_the_report_is_one_page_that_needs_nothing_beside_it(inputs: Path, tmp_path: Path) -> None:
    assert run(arguments(inputs, "--planner", "dp,equal-share", "--report", str(tmp_path / "report"))) == 0
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["index.html"]
    page = (tmp_path / "report" / "index.html").read_text()
    for caption in (
        "U of each replay",
        "Pool size",
        "Trainers over time",
        "six hours",
        "cost per event",
        "Return",
        "run times",
        "Solve times",
    ):
        assert caption in page
    assert page.count("<svg") == 1 + 2 * 7
    assert "src=" not in page and 'href="http' not in page


@needs_browser
def test_a_browser_shows_the_report_with_its_plain_summary(inputs: Path, tmp_path: Path) -> None:
    assert run(arguments(inputs, "--planner", "dp", "--report", str(tmp_path / "report"))) == 0
    page = shown(tmp_path / "report" / "index.html", tmp_path)
    assert re.search(r"<p>In \d+h\d\dm of the trace up to \d+ nodes were idle at once", page)
    assert re.search(r"went into training\. \d+ of \d+ trainers were completed", page)
    assert "dedicated nodes would have (U)" in page and page.rstrip().endswith("</html>")


OPTIONS = [
    (["--planner", "best"], ""),
    (["--solver", "magic"], ""),
    (["--objective", "profit"], ""),
    (["--objective", "nowhere:function"], ""),
    (["--node-order", "random"], ""),
    (["--node-order", "topology"], ""),
    (["--node-order", "topology", "--site", "local"], ""),
    (["--site", "nowhere"], ""),
    (["--only-nodes", "x[2-1]"], ""),
    (["--only-nodes", "x*"], ""),
    (["--accounting", "free"], ""),
    (["--t-fwd-s", "soon"], ""),
    (["--t-fwd-s", "0"], ""),
    (["--t-fwd-s", "nan"], ""),
    (["--t-fwd-s", ""], ""),
    (["--hours", "nan"], ""),
    (["--hours", "inf"], ""),
    (["--planner", "dp", "--solver", "magic"], ""),
    (["--report", "curves.json/beneath"], ""),
    (["--max-parallel-trainers", "0"], ""),
    (["--on-curve", "5"], ""),
    (["--decide-every-s", "0"], ""),
    (["--decide-every-s", "nan"], ""),
    (["--sizes", ""], ""),
    (["--sizes", "2,1"], ""),
    (["--sizes", "4096"], ""),
    (["--know", "guess"], "choose from truth, measured"),
    (["--know", "guess:factor:1.5"], "choose from truth, measured"),
    (["--know", "guess:7", "--objective", "throughput"], "--know guess:7: the curves file has curves 0 to 1"),
    (["--know", "guess:linear", "--curves", "values.json"], "choose one with --objective"),
    (["--measure-noise", "1.1"], "is not in the range 0<=x<=1"),
    (["--know", "truth", "--profile", "auto"], "--profile needs --know measured"),
    (["--share-curves"], "--share-curves needs --know measured"),
    (["--measure-noise", "0.1"], "--measure-noise needs --know measured"),
    (["--objective", "mine:broken"], "mine:broken, of trainer t0 on 1 nodes, is -0.5; it must be a finite number, 0"),
    (["--objective", "mine:NO_FUNCTION"], "objective 'mine:NO_FUNCTION' is not a function of (trainer, nodes)"),
    (["--objective", "mine:missing"], "cannot load the objective 'mine:missing': AttributeError"),
    (["--objective", "text:f"], "cannot load the objective 'text:f': SyntaxError"),
    (["--trainers", "odd.csv"], "odd.csv:4: curve 9 is unknown; the curves file has 0 to 1"),
]
"""Options that are refused, and words of the refusal."""

TRACES = {
    "unsorted.csv": ("5,a,join\n4,b,join\n", "unsorted.csv:3: times must not go back"),
    "absent.csv": ("0,a,leave\n", "absent.csv:2: node a leaves, but it is not in the pool"),
    "present.csv": ("0,a,join\n1,a,join\n", "present.csv:3: node a joins, but it is in the pool already"),
    "nan.csv": ("nan,a,join\n", "nan.csv:2: time_s is not a finite number"),
    "empty.csv": ("", "empty.csv: the trace is empty"),
    "instant.csv": ("0,a,join\n", "instant.csv: all events are at time 0"),
    "cut.csv.gz": (None, "the gzip file is truncated"),
}
"""Traces that are refused: their rows, and words of the refusal."""

REFUSED = [("events.csv.gz", ["--hours", "1", *options], words) for options, words in OPTIONS]
REFUSED += [(name, [], words) for name, (_, words) in TRACES.items()]


@pytest.fixture
def refusable(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files of ``inputs`` and those that are refused."""
    for path in inputs.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    header, *rows = (inputs / "trainers.csv").read_text().splitlines()
    (tmp_path / "odd.csv").write_text("\n".join([header, *rows[:2], rows[2][:-1] + "9"]) + "\n")
    (tmp_path / "values.json").write_text(json.dumps([{**CURVES[0], "objective_per_s": [0, 1, 1, 1, 1]}, CURVES[1]]))
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "text.py").write_text("this is no module")
    whole = (inputs / "events.csv.gz").read_bytes()
    for name, (changes, _) in TRACES.items():
        cut = whole[: len(whole) // 2] if changes is None else f"time_s,node,event\n{changes}".encode()
        (tmp_path / name).write_bytes(cut)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("events", "options", "words"), REFUSED)
def test_bad_input_is_one_line_and_exit_2(
    refusable: Path, capsys: pytest.CaptureFixture[str], events: str, options: list[str], words: str
) -> None:
    assert run(arguments(refusable, "--planner", "dp", *options, events=events)) == 2
    line = capsys.readouterr().err.strip()
    assert line.startswith("pilot: ") and words in line and "\n" not in line


def test_planners_that_cannot_tell_types_apart_need_to_be_told(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = tmp_path / "typed.csv"
    changes = draw(PUBLISHED["summit"].on(64), 3600.0, seed=3)
    kinds = {
        node: NodeType("a" if number % 2 else "b")
        for number, node in enumerate(sorted({n for c in changes for n in c.joined}))
    }
    write_changes(typed, with_types(changes, kinds))
    assert run(arguments(inputs, "--planner", "greedy", events=str(typed))) == 2
    line = capsys.readouterr().err.strip()
    assert line == "pilot: --planner greedy cannot tell types of nodes apart; add --node-types ignored"
    ignored = arguments(inputs, "--json", "--planner", "greedy,dp", "--node-types", "ignored", events=str(typed))
    assert run(ignored) == 0
    found = json.loads(capsys.readouterr().out)["replays"]
    assert [replay["case"]["node_types"] for replay in found] == ["ignored"] * 2
    assert all(0.5 < replay["summary"]["efficiency"] <= 1 for replay in found)
    alike = ",".join(node for node, of in kinds.items() if of.name == "a")
    assert run(arguments(inputs, "--planner", "greedy", "--only-nodes", alike, events=str(typed))) == 0


def started(folder: Path) -> subprocess.Popen[str]:
    """A sweep of two consecutive replays, the first of which has begun to solve."""
    options = arguments(folder, "--planner", "milp", "--solver-latency-s", "0,1", "--processes", "1")
    command = [sys.executable, "-m", "pilot.cli.main", *options]
    pipe = subprocess.PIPE
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment)
    until(lambda: solving(process.pid))
    return process


def solving(pid: int) -> psutil.Process | None:
    """The process of a replay that waits for its solver."""
    return next((one for one in descendants(pid) if any(child.name() == "cbc" for child in one.children())), None)


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def until(found: Callable[[], T | None], limit_s: float = 120) -> T:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        with suppress(psutil.NoSuchProcess):
            if result := found():
                return result
        time.sleep(0.01)
    pytest.fail("it did not happen in time")


def ended_by_another(process: subprocess.Popen[str], number: int) -> bool:
    os.killpg(process.pid, number)
    return process.poll() is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_reports_the_progress_and_prints_the_results_so_far(inputs: Path, number: int) -> None:
    """The same for a TERM to its process group, as `timeout` sends it; further signals change nothing."""
    process = started(inputs)
    os.killpg(process.pid, number)
    if number == signal.SIGTERM:
        until(lambda: ended_by_another(process, number))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted: 0 of 2 replays are complete; stopped at" in err
    assert "A_s is the work of the same trainers" in out


def test_a_process_of_a_replay_that_is_killed_ends_it_with_one_line(inputs: Path) -> None:
    process = started(inputs)
    until(lambda: solving(process.pid)).kill()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "a process of the replay was killed" in err and "internal error" not in err


def test_a_killed_replay_leaves_no_process(inputs: Path) -> None:
    process = started(inputs)
    left = descendants(process.pid)
    process.kill()
    process.communicate(timeout=120)
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in left))


# --- the real week ----------------------------------------------------------------------------------------------------


def real_week() -> Path | None:
    """FreeTrain's week: PILOT_TRACES is its folder or the parent; otherwise it is in shared/data beside the
    checkout.
    """
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    named = Path(os.environ.get("PILOT_TRACES") or beside)
    return next((week for week in (named, named / "summit-week1") if (week / "events.csv.gz").is_file()), None)


WEEK = real_week()
needs_week = pytest.mark.skipif(WEEK is None, reason="no summit-week1: set PILOT_TRACES to the folder that holds it")


WEEKS = (
    (Case("dp", node_order="join"), 88.8, 89.4),
    (Case("dp", node_order="hostname"), 89.4, 90.0),
    (Case("dp", node_order="join", completions="at-node-events"), 82.8, 83.6),
    (Case("equal-share", node_order="join"), 79.3, 79.9),
    (Case("equal-share", node_order="join", completions="at-node-events"), 75.45, 76.05),
)
"""The replays, and the range in which U (%) must be."""


@needs_week
@pytest.mark.slow
def test_the_summit_week() -> None:
    assert WEEK is not None
    trainers, curves = WEEK / "trainers-hpo-shufflenet.csv.gz", WEEK / "curves-hpo-shufflenet.json"
    inputs = Inputs(WEEK / "events.csv.gz", trainers, curves, until_s=168 * 3600.0)
    cases = [replace(case, max_parallel=10) for case, _, _ in WEEKS]
    made = run_sweep(inputs, cases, load_objective, 10.0, len(os.sched_getaffinity(0)), lambda _share: None)
    for replay, (case, low, high) in zip(made, WEEKS, strict=True):
        assert low <= 100 * (replay.summary.efficiency or 0.0) <= high, case
        assert replay.summary.static_work == pytest.approx(1.3038e11, rel=1e-3)


@needs_week
def test_the_weeks_trace_is_what_is_known_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert WEEK is not None
    assert run(["trace", "stats", str(WEEK / "events.csv.gz"), "--nodes", "1024", "--json"]) == 0
    statistics = json.loads(capsys.readouterr().out)["traces"]["events.csv.gz"]
    assert statistics["short_fragments"] == pytest.approx(0.585, abs=0.001)
    assert statistics["node_hours"] == pytest.approx(14296, rel=0.001)
    assert dict(statistics["pool_nodes"])[0.5] == 25
    with gzip.open(WEEK / "events.csv.gz", "rt") as stream:
        assert sum(1 for _ in stream) == 95895
