import logging
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.planners import problem as large_problem
from pilot.core.curves.curve import Curve
from pilot.core.plan.problem import PlanStatus, Problem
from pilot.planners import dp, milp, model
from pilot.planners.choice import plan_of
from tests.unit.planners.problems import best_plan, best_value, candidate, changes, problem, value
from tests.unit.planners.test_solvers import installed, program

BENT = Curve.of([(1, 5), (2, 4), (4.5, 13), (6, 13)])
SOLVERS = ("cbc", "glpk", "highs")
GIVEN = {
    "no trainer fits": problem(2, candidate(low=3), candidate(low=5)),
    "one": problem(6, candidate(now=3, low=2)),
    "alike": problem(6, *[candidate(low=2, high=4, curve=BENT) for _ in range(3)]),
    "alike and holding": problem(7, *[candidate(2, high=5, curve=BENT) for _ in range(3)]),
    "non-concave": problem(7, candidate(4, 2, 6, BENT), candidate(0, 1, 8, BENT), candidate(1, 2, 5)),
    "fewer nodes than are held": problem(5, candidate(3, 2, 6, BENT), candidate(4, 1, 8)),
    "parked": problem(5, candidate(1, 3, 6, BENT), candidate(2, 2, 8)),
    "worthless": problem(4, candidate(1, curve=Curve.of([(4, 0)])), candidate(0, curve=Curve.of([(1, 0)]))),
    "next to worthless": problem(3, candidate(curve=Curve.of([(1, 1e-310)])), candidate(curve=Curve.of([(1, 0)]))),
}


def ends_in() -> float:
    return time.monotonic() + 60.0


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN.keys())
@pytest.mark.parametrize("solver", SOLVERS)
def test_it_finds_the_optimum(given: Problem, solver: str) -> None:
    installed(solver)
    made = milp.plan(given, 60.0, solver)
    assert made.status is PlanStatus.OPTIMAL
    assert tuple(n for _, n in made.counts) == best_plan(given)
    if given is not GIVEN["no trainer fits"]:
        outcome = milp.solve(given, ends_in(), solver)
        assert outcome.proved and outcome.counts is not None
        assert value(given, outcome.counts) == pytest.approx(best_value(given), rel=1e-9)


def test_the_solver_goes_on_from_where_it_starts() -> None:
    given = GIVEN["alike and holding"]
    poor = [2, 2, 2]
    start = plan_of(given, poor, PlanStatus.INCUMBENT, None, "")
    outcome = milp.solve(given, ends_in(), "cbc", start=start)
    assert outcome.counts is not None
    assert value(given, outcome.counts) == pytest.approx(best_value(given), rel=1e-9)
    assert value(given, poor) < best_value(given)


def test_a_start_is_read_back() -> None:
    for given in GIVEN.values():
        counts = list(best_plan(given))
        if any(counts):
            m = model.build(given)
            model.start(m, plan_of(given, counts, PlanStatus.OPTIMAL, 0.0, ""))
            assert changes(given, model.counts(m)) == changes(given, counts)
            assert value(given, model.counts(m)) == pytest.approx(value(given, counts), rel=1e-12)


def test_trainers_that_differ_in_nothing_share_their_pieces() -> None:
    alike = [candidate(2, high=5, curve=BENT) for _ in range(4)]
    assert len(model.build(problem(11, *alike)).use) == len(model.build(problem(11, *alike[:1])).use)
    assert len(model.build(problem(11, *alike, candidate(3, high=5, curve=BENT))).kinds) == 2


def test_without_time_the_plan_is_made_by_prices() -> None:
    given = large_problem(800, 35, seed=1)
    made = milp.plan(given, limit_s=0.0)
    assert made.status is PlanStatus.INCUMBENT
    assert given.feasible(made.as_dict())
    assert made.gap is not None
    assert 0 < made.gap < 1e-3


@pytest.mark.parametrize("solver", SOLVERS)
def test_if_time_is_worth_nothing_every_solver_lets_the_allocation_stay(solver: str) -> None:
    installed(solver)
    given = problem(9, candidate(5), candidate(2, low=2), candidate(0, low=3), t_fwd_s=0.0)
    outcome = milp.solve(given, time.monotonic() + 60.0, solver)
    assert outcome.proved
    assert outcome.counts is not None
    assert value(given, outcome.counts) == 0
    assert milp.plan(given, 60.0, solver).objective == 0


def test_a_plan_by_prices_that_the_solver_proves_is_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp, "ADDITIONS_PER_S", 0.0)
    monkeypatch.setattr(milp, "NEGLIGIBLE_GAP", -1.0)
    given = large_problem(100, 10, seed=3)
    made = milp.plan(given, 60.0)
    assert (made.status, made.gap) == (PlanStatus.OPTIMAL, 0.0)
    assert made.objective == pytest.approx(dp.optimum(given).objective)
    stays = problem(9, candidate(5), candidate(4))
    assert (milp.plan(stays, 60.0).status, milp.plan(stays, 60.0).gap) == (PlanStatus.KEPT, 0.0)


def test_the_bound_by_prices_counts_if_the_solver_knows_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "exit 3")
    monkeypatch.setattr(dp, "ADDITIONS_PER_S", 0.0)
    monkeypatch.setattr(milp, "NEGLIGIBLE_GAP", -1.0)
    made = milp.plan(large_problem(800, 35, seed=1), 10.0, "glpk")
    assert made.gap is not None
    assert 0 < made.gap < 1e-3


def test_a_solve_that_is_cut_off_proves_nothing() -> None:
    outcome = milp.solve(large_problem(4600, 100, seed=2), time.monotonic() + 0.02)
    assert not outcome.proved
    assert outcome.counts is None


def test_a_solver_that_does_not_end_in_time_strands_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "exec sleep 1000")
    given = large_problem(100, 10, seed=3)
    made = milp.plan(given, 1.0, "glpk")
    assert made.status is PlanStatus.INCUMBENT
    assert made.counts == dp.plan(given).counts
    assert made.gap is None
    assert made.solve_s > 0


TO_OUTPUT = """while [ "$1" != --output ]; do shift; done; """


def test_the_best_that_is_known_comes_with_its_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote = """echo 'Status:     INTEGER NON-OPTIMAL' > "$2"; echo '+ 7: >>>>> 1e5 <= 1e9 9% (1; 0)'"""
    program(tmp_path, monkeypatch, TO_OUTPUT + wrote)
    given = large_problem(100, 10, seed=3)
    made = milp.plan(given, 10.0, "glpk")
    assert made.status is PlanStatus.INCUMBENT
    assert made.counts == dp.plan(given).counts
    assert made.gap is not None
    assert made.gap > 1


def test_the_best_that_is_known_is_not_taken_if_now_is_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "exec sleep 1000")
    given = problem(9, candidate(5), candidate(4))
    made = milp.plan(given, 0.5, "glpk")
    assert made.status is PlanStatus.KEPT
    assert made.as_dict() == given.kept()


@pytest.mark.parametrize(
    "script",
    [
        "echo 'no licence for today' >&2; exit 3",
        "echo 'all is well'",
        TO_OUTPUT + """head -c 9999 /dev/urandom > "$2" """,
        TO_OUTPUT + """printf 'Status:     INTEGER OPTIMAL\n 1 x9999 * 1 0\n' > "$2" """,
        TO_OUTPUT + """printf 'Status:     INTEGER OPTIMAL\n 1 x2 * 99 0\n' > "$2" """,
    ],
    ids=["fails", "writes nothing", "garbage", "another model's columns", "impossible counts"],
)
def test_a_solver_that_gives_no_readable_answer_strands_no_node(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program(tmp_path, monkeypatch, script)
    given = large_problem(100, 10, seed=4)
    with caplog.at_level(logging.WARNING):
        made = milp.plan(given, 10.0, "glpk")
    assert made.status is PlanStatus.INCUMBENT
    assert made.counts == dp.plan(given).counts
    (record,) = caplog.records
    assert record.getMessage().startswith("solver glpk: ")
    assert "\n" not in record.getMessage()


def test_a_proof_of_less_than_is_known_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, TO_OUTPUT + """echo 'Status:     INTEGER OPTIMAL' > "$2" """)
    given = large_problem(100, 10, seed=4)
    assert milp.plan(given, 10.0, "glpk").counts == dp.plan(given).counts


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    milp.plan(GIVEN["non-concave"], 60.0)
    milp.plan(large_problem(800, 35, seed=5), 0.05)
    assert list(tmp_path.iterdir()) == []


def test_messages_of_pyomo_are_logged_and_not_printed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("pyomo.core").warning("a value outside the bounds")
    assert capsys.readouterr().out == ""
    assert "a value outside the bounds" in caplog.text
