import pickle
import subprocess
import sys

import pytest

from pilot import planners
from pilot.core.errors import UserError
from tests.unit.planners.problems import candidate, problem


@pytest.mark.parametrize("name", planners.NAMES)
def test_every_planner_divides_a_pool_and_survives_pickling(name: str) -> None:
    plan = pickle.loads(pickle.dumps(planners.make(name)))
    made = plan(problem(8, candidate(high=5), candidate(high=3)))
    powers = name.startswith("rolling-horizon")
    assert [n for _, n in made.counts] == ([4, 2] if powers else [5, 3])
    assert made.planner == name


def test_an_unknown_name_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(UserError, match=f"unknown planner 'best'; there are: {', '.join(planners.NAMES)}"):
        planners.make("best")
    with pytest.raises(UserError, match="unknown solver 'gurobi'; there are: cbc, glpk, highs"):
        planners.make("milp", "gurobi")


def test_a_solver_that_is_not_installed_is_refused_before_anything_is_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="solver glpk is not installed; put glpsol on the PATH, or choose another"):
        planners.make("milp", "glpk")


def test_importing_the_package_loads_neither_pyomo_nor_numpy() -> None:
    check = "import sys, pilot.planners; sys.exit(bool({'pyomo', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
