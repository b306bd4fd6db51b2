"""Solvers: an LP file in, a :class:`SolverAnswer` out. Each is found where its package put it.

CBC and GLPK run as programs on the files of a directory that the caller removes, and are killed when their time is up.
HiGHS runs in this process and keeps its time limit itself. A solver's output is read only if its status reports a
solution: CBC, stopped before it had one, writes the relaxation's values to the same file, under another status line.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pilot.core.errors import SolverError, UserError
from pilot.planners.one_thread import ONE_THREAD


@dataclass(frozen=True, slots=True)
class SolverAnswer:
    """The result of a solver."""

    proved: bool  #: the values are optimal
    values: dict[str, float] | None  #: column name → value, zeros may be missing; None if no integer solution was found
    bound: float | None = None  #: an upper bound of the objective; None if the solver gave none


Solver = Callable[[Path, float, Mapping[str, float], float], SolverAnswer]
"""Maximizes an LP file within a time (seconds), from a solution that is known (column name → value, of all or some), to
within a share of the objective (0: to the optimum).

Raises :class:`SolverError` if its answer cannot be parsed.
"""

NOTHING = SolverAnswer(proved=False, values=None)

_OWN_SHARE = 0.8
"""The share of the limit that a program is given, so that it can still write its result before it is killed."""


def find(name: str) -> Solver:
    """The solver called ``name``; :class:`UserError` if there is none, or if it is not installed."""
    if name not in _SOLVERS:
        raise UserError(f"unknown solver {name!r}; there are: {', '.join(_SOLVERS)}")
    solver, installed, remedy = _SOLVERS[name]
    if not installed():
        raise UserError(f"solver {name} is not installed; {remedy}, or choose another: {', '.join(_SOLVERS)}")
    return solver


def cbc(lp: Path, limit_s: float, start: Mapping[str, float], gap: float = 0.0) -> SolverAnswer:
    """Solve with COIN-OR CBC from the ``cbcbox`` wheel, without heuristics: an optimal start needs only a proof."""
    solution = lp.with_suffix(".cbc")
    limit = ["-sec", f"{_OWN_SHARE * limit_s:.3f}", "-timeMode", "elapsed"]
    gaps = ["-ratioGap", f"{gap:g}", "-allowableGap", "0", "-increment", "0"]
    known = ["-mipstart", str(_write_start(lp, start))] if start else []
    solve = ["-heuristicsOnOff", "off", "-solve", "-solution", str(solution)]
    log = _run([_cbc_program(), str(lp), *limit, *gaps, *known, *solve], limit_s)
    return NOTHING if log is None else read_cbc(_read(solution, log), log)


def read_cbc(solution: str, log: str) -> SolverAnswer:
    """Read CBC's solution file: a line with the status, then ``index name value reduced-cost``."""
    status, _, rows = solution.partition("\n")
    if not re.match(r"Optimal\b|Stopped on \w+", status):
        raise SolverError(f"no solution, it reports {status[:100]!r}")
    proved = status.startswith("Optimal")
    bound = _last_number(r"^Upper bound:\s+(\S+)", log)
    if "no integer solution" in status:
        return SolverAnswer(proved=False, values=None, bound=bound)
    return SolverAnswer(proved, _columns(r"^[\s*]*\d+\s+(\S+)\s+(\S+)\s+\S+$", rows), bound)


def glpk(lp: Path, limit_s: float, start: Mapping[str, float], gap: float = 0.0) -> SolverAnswer:  # noqa: ARG001  # the solvers' signature; GLPK takes no start
    """Solve with GLPK's ``glpsol`` from the path. It counts full seconds: a shorter limit is enforced by killing it."""
    solution = lp.with_suffix(".glpk")
    limit = ["--tmlim", str(max(1, int(_OWN_SHARE * limit_s)))]
    log = _run(["glpsol", "--lp", str(lp), *limit, "--mipgap", f"{gap:g}", "--output", str(solution)], limit_s)
    return NOTHING if log is None else read_glpk(_read(solution, log), log)


def read_glpk(solution: str, log: str) -> SolverAnswer:
    """Read GLPK's report: ``Status:``, and per column ``number name * value lower upper`` (the star: an integer one);
    rows, which look alike, come before."""
    found = re.search(r"^Status:\s+INTEGER (OPTIMAL|NON-OPTIMAL|UNDEFINED)$", solution, re.MULTILINE)
    if found is None:
        raise SolverError(f"no solution, it reports {_last_line(log)!r}")
    bound = _last_number(r"<=\s+(\S+)", log)
    if found[1] == "UNDEFINED":
        return SolverAnswer(proved=False, values=None, bound=bound)
    columns = _columns(r"^\s*\d+ (\S+)\s+(?:\*\s+)?(\S+)", solution.rpartition("Column name")[2])
    return SolverAnswer(found[1] == "OPTIMAL", columns, bound)


def highs(lp: Path, limit_s: float, start: Mapping[str, float], gap: float = 0.0) -> SolverAnswer:
    """Solve with HiGHS from the ``highspy`` wheel."""
    from highspy import HighsModelStatus, HighsStatus, SolutionStatus

    solver = _silent_highs()
    options = {"time_limit": limit_s, "mip_rel_gap": gap, "mip_abs_gap": 0.0, "threads": 1}
    for option, value in options.items():
        solver.setOptionValue(option, value)
    if solver.readModel(str(lp)) == HighsStatus.kError:
        raise SolverError("it cannot read the model")
    names = solver.getLp().col_names_
    if start:
        places = {name: i for i, name in enumerate(names)}
        solver.setSolution(len(start), [places[name] for name in start], list(start.values()))
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    if status not in (HighsModelStatus.kOptimal, HighsModelStatus.kTimeLimit):
        raise SolverError(f"no solution, it reports {status.name!r}")
    bound = _finite(info.mip_dual_bound)
    if info.primal_solution_status != SolutionStatus.kSolutionStatusFeasible:
        return SolverAnswer(proved=False, values=None, bound=bound)
    values = dict(zip(names, solver.getSolution().col_value, strict=True))
    return SolverAnswer(bool(status == HighsModelStatus.kOptimal), values, bound)


def _silent_highs() -> Any:
    """HiGHS without output: the constructor of HiGHS 1.16 itself writes a header to standard output."""
    from highspy import Highs

    class Silent(Highs):  # type: ignore[misc]  # highspy has no types
        def enableCallbacks(self) -> None:  # noqa: N802  # highspy's name; the constructor calls it first
            self.silent()
            super().enableCallbacks()

    return Silent()


def _write_start(lp: Path, start: Mapping[str, float]) -> Path:
    """A solution in the form in which CBC writes and reads one."""
    rows = (f"{i} {name} {value!r} 0" for i, (name, value) in enumerate(start.items()))
    path = lp.with_suffix(".start")
    path.write_text("\n".join(["known - objective value 0", *rows, ""]))
    return path


def _run(command: list[str], limit_s: float) -> str | None:
    """The program's output; None if it had to be killed."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=limit_s,
            env={**os.environ, **ONE_THREAD},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise SolverError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        message = _last_line(done.stderr or done.stdout)
        raise SolverError(f"{Path(command[0]).name} ended with status {done.returncode}: {message!r}")
    return done.stdout


def _read(solution: Path, log: str) -> str:
    try:
        return solution.read_text(errors="replace")
    except FileNotFoundError:
        raise SolverError(f"it wrote no solution, it reports {_last_line(log)!r}") from None


def _columns(row: str, text: str) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in re.findall(row, text, re.MULTILINE)}
    except ValueError as error:
        raise SolverError(f"a value in its solution is not a number: {error}") from None


def _last_number(pattern: str, log: str) -> float | None:
    found = re.findall(pattern, log, re.MULTILINE)
    try:
        return _finite(found[-1]) if found else None
    except ValueError:
        return None


def _finite(number: str | float) -> float | None:
    return float(number) if math.isfinite(float(number)) else None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:200] if lines else "nothing"


@cache
def _cbc_program() -> str:
    from cbcbox import cbc_bin_path

    return str(cbc_bin_path())


_SOLVERS: dict[str, tuple[Solver, Callable[[], bool], str]] = {
    "cbc": (cbc, lambda: find_spec("cbcbox") is not None and Path(_cbc_program()).exists(), "pip install cbcbox"),
    "glpk": (glpk, lambda: shutil.which("glpsol") is not None, "put glpsol on the PATH"),
    "highs": (highs, lambda: find_spec("highspy") is not None, "pip install highspy"),
}
