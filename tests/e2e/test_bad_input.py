"""Bad input gets one clear line and exit status 2, and nothing is lost."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pilot.cli.main import run
from pilot.protocol import connection
from tests.pools import TRAIN, Pool

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Run a command in this process; returns its one line on standard error."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PILOT_RUN_DIR", raising=False)

    def call(*arguments: str | Path) -> str:
        assert run([str(a) for a in arguments]) == 2
        said = capsys.readouterr().err
        assert said.startswith("pilot: ")
        assert said.count("\n") == 1
        return said

    return call


def test_no_such_script(refused: Refused, tmp_path: Path) -> None:
    assert "cannot read the script" in refused("submit", tmp_path / "none.py")


def test_an_option_that_is_not_there(refused: Refused) -> None:
    assert "No such option '--max-node'" in refused("submit", "--max-node", "4", TRAIN).replace("--max-nodes", "")


def test_a_folder_where_a_file_belongs(refused: Refused, tmp_path: Path) -> None:
    assert "Is a directory" in refused("agent", "--connection", tmp_path)
    assert "Is a directory" in refused("submit", tmp_path)
    (tmp_path / "file").touch()
    assert "cannot create the folder" in refused("demo", "--output", tmp_path / "file" / "demo")


def test_an_agent_without_its_interpreter(refused: Refused, tmp_path: Path) -> None:
    said = refused("agent", "--connection", tmp_path / "connection.json", "--python", tmp_path / "python")
    assert f"no interpreter {tmp_path}/python" in said


def test_min_greater_than_max(refused: Refused) -> None:
    assert "must be increasing whole numbers" in refused("submit", "--sizes", "4,2", TRAIN)
    assert "the size 8 is not between 1 and 4" in refused("submit", "--max-nodes", 4, "--sizes", "1,8", TRAIN)
    assert "min_nodes 4 exceeds max_nodes 2" in refused("submit", "--min-nodes", 4, "--max-nodes", 2, TRAIN)


@pytest.mark.parametrize("text", ["2,10\n1,20\n", "1,nan\n", "1,-5\n", "1\n2\n"])
def test_a_bad_curve_file(refused: Refused, tmp_path: Path, text: str) -> None:
    file = tmp_path / "curve.csv"
    file.write_text(text)
    assert f"{file}:" in refused("submit", "--curve", file, TRAIN)


def test_an_environment_variable_that_is_not_there(refused: Refused) -> None:
    assert "--env NO_SUCH_VARIABLE" in refused("submit", "--env", "NO_SUCH_VARIABLE", TRAIN)


def test_an_unknown_site(refused: Refused) -> None:
    said = refused("up", "--site", "polariss")
    assert "polariss" in said
    assert "polaris" in said.replace("polariss", "")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('site = Site(name="x")', "scheduler"),
        ('site = Site(name="x", scheduler="local", grace_s="long")', "grace_s"),
        ('site = Site(name="x", scheduler="local", gracce_s=3)', "grace_s"),
    ],
)
def test_a_site_file_with_a_wrong_field(refused: Refused, tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "x.py"
    file.write_text(f"from pilot.site.site import Site\n{text}\n")
    assert field in refused("up", "--site", file)


def test_no_pool_is_up(refused: Refused) -> None:
    assert "no pool is up" in refused("status")


def test_a_run_directory_without_a_coordinator(refused: Refused, tmp_path: Path) -> None:
    assert "no connection file" in refused("ls", "--run-dir", tmp_path)


def test_a_port_in_use(refused: Refused, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "e2e.py"
        file.write_text(Pool(tmp_path).site().replace('name="e2e",', f'name="e2e", port={port},'))
        said = refused("up", "--site", file, "--run-dir", tmp_path / "run")
    assert f"127.0.0.1:{port}" in said
    assert "in use" in said


@pytest.mark.parametrize("odd", [" ", "$", "(", "*", "\udce9"])
def test_a_run_directory_from_which_no_job_can_be_submitted(refused: Refused, tmp_path: Path, odd: str) -> None:
    said = refused("up", "--site", "local", "--pilots", "1", "--run-dir", tmp_path / f"my{odd}pool")
    assert "cannot be submitted from a path with" in said
    assert list(tmp_path.glob("my*")) == []


def test_an_unknown_planner(refused: Refused, tmp_path: Path) -> None:
    said = refused("up", "--site", "local", "--planner", "simplex", "--run-dir", tmp_path / "run")
    assert "milp" in said


def test_a_run_directory_that_another_coordinator_owns(pool: Pool) -> None:
    pool.up()
    second = pool.pilot("up", "--site", pool.folder / "e2e.py", check=False)
    assert second.returncode == 2
    assert "is already up (coordinator: process" in second.stderr
    assert pool.status().pool == []


def test_a_python_that_prints_much_as_it_starts(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    (pool.folder / "sitecustomize.py").write_text("import sys\nsys.stderr.write('noise\\n' * 30_000)\n")
    monkeypatch.setenv("PYTHONPATH", str(pool.folder))
    pool.up()
    second = pool.pilot("up", "--site", pool.folder / "e2e.py", check=False)
    assert (second.returncode, "is already up" in second.stderr.splitlines()[-1]) == (2, True)


def test_a_pilot_of_another_version_or_with_a_wrong_token_is_refused_and_logged(pool: Pool, tmp_path: Path) -> None:
    pool.up()
    true = connection.load(pool.run_dir / "connection.json")
    file = tmp_path / "wrong.json"
    connection.write(file, msgspec.structs.replace(true, enrolment="guess"))
    done = pool.pilot("agent", "--connection", file, check=False)
    assert done.returncode == 2
    assert "wrong token" in done.stderr
    assert "refused a peer" in (pool.run_dir / "coordinator.log").read_text()


def test_names_that_are_not_there_or_not_names(pool: Pool) -> None:
    pool.up()
    for arguments in (["cancel", "vit"], ["explain", "vit"], ["logs", "vit"], ["wait", "vit"]):
        done = pool.pilot(*arguments, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "vit" in done.stderr
    done = pool.pilot("submit", "--name", "../vit", TRAIN, check=False)
    assert done.returncode == 2
    assert "not a valid trainer name" in done.stderr
    pool.submit(TRAIN, "--epochs", "1", "--step-s", "0", options=("--name", "vit"))
    done = pool.pilot("submit", "--name", "vit", TRAIN, check=False)
    assert done.returncode == 2
    assert "already" in done.stderr
    assert [t["trainer"] for t in json.loads(pool.pilot("ls", "--json").stdout)["trainers"]] == ["vit"]
