import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pilot.core.errors import SolverError, UserError
from pilot.planners import solvers
from pilot.planners.solvers import SolverAnswer, read_cbc, read_glpk

MODEL = """max
value:
+3 x1
+2 x2
s.t.
capacity:
+1 x1
+1 x2
<= 4
bounds
0 <= x1 <= 3
0 <= x2 <= 3
general
x1
x2
end
"""

STOPPED = """Result - Stopped on time limit
Objective value:                63489259.3257
Upper bound:                    6.34936e+07
"""


def installed(name: str) -> solvers.Solver:
    try:
        return solvers.find(name)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture
def lp(tmp_path: Path) -> Path:
    path = tmp_path / "model.lp"
    path.write_text(MODEL)
    return path


@pytest.mark.parametrize("name", ["cbc", "glpk", "highs"])
@pytest.mark.parametrize("start", [{}, {"x1": 0.0, "x2": 3.0}])
def test_each_solver_proves_the_optimum_whatever_it_starts_from(name: str, start: dict[str, float], lp: Path) -> None:
    answer = installed(name)(lp, 10.0, start)
    assert answer.proved
    assert answer.values is not None
    assert (answer.values["x1"], answer.values["x2"]) == (3, 1)


@pytest.mark.parametrize("name", ["cbc", "glpk", "highs"])
def test_a_solver_writes_nothing_to_standard_output(name: str, lp: Path) -> None:
    """Where commands print JSON. In a process of its own, because C's output appears when that ends."""
    installed(name)
    solve = f"from pilot.planners.solvers import *; assert {name}(Path({str(lp)!r}), 10.0, {{}}).proved"
    done = subprocess.run([sys.executable, "-c", solve], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("name", ["cbc", "glpk", "highs"])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("this is no model", r"ended with status|reports|it cannot read the model"),
        (MODEL.replace("<= 4", ">= 7"), r"^no solution, it reports"),
    ],
    ids=["unreadable", "infeasible"],
)
def test_a_model_without_solution_is_an_error_and_not_an_answer(name: str, model: str, message: str, lp: Path) -> None:
    lp.write_text(model)
    with pytest.raises(SolverError, match=message):
        installed(name)(lp, 10.0, {})


RELAXED = "Stopped on time (no integer solution - continuous used) - objective value 63493573.1\n 6 x8 1 -0\n"


@pytest.mark.parametrize(
    ("answer", "values", "bound"),
    [
        (read_cbc(RELAXED, STOPPED), None, 6.34936e7),
        (
            read_cbc("Stopped on time - objective value 63489259.3\n 6 x8 1 -0\n** 9 x11 2 0\n", STOPPED),
            *({"x8": 1.0, "x11": 2.0}, 6.34936e7),
        ),
        (read_glpk("Status:     INTEGER UNDEFINED\n 1 x1 * 3 0 3\n", ""), None, None),
    ],
    ids=["cbc without a solution", "cbc with one", "glpk without a solution"],
)
def test_a_solver_that_was_stopped_has_proved_nothing(
    answer: SolverAnswer, values: dict[str, float] | None, bound: float | None
) -> None:
    assert answer == SolverAnswer(proved=False, values=values, bound=bound)


@pytest.mark.parametrize(
    "text", ["", "\x00\x17garbage", "Status unknown - objective value 0.0\n 0 x2 0 0\n", "Infeasible - objective 3\n"]
)
def test_a_file_without_solution_is_never_read(text: str) -> None:
    with pytest.raises(SolverError, match="no solution, it reports"):
        read_cbc(text, "")


def test_a_value_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(SolverError, match="a value in its solution is not a number"):
        read_glpk("Status:     INTEGER OPTIMAL\n     1 x1           *          three             0\n", "")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'no licence for today' >&2; exit 3", "glpsol ended with status 3: 'no licence for today'"),
        ("echo 'nothing to do'", "it wrote no solution, it reports 'nothing to do'"),
        (None, "glpsol cannot be run: No such file or directory"),
    ],
)
def test_a_program_that_fails_is_quoted(
    script: str | None, message: str, tmp_path: Path, lp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        program(tmp_path, monkeypatch, script)
    with pytest.raises(SolverError, match=message):
        solvers.glpk(lp, 10.0, {})


def test_a_program_that_does_not_end_is_killed(tmp_path: Path, lp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    assert solvers.glpk(lp, 0.5, {}) == solvers.NOTHING
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put this shell script on the path as ``glpsol``."""
    path = folder / "glpsol"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
