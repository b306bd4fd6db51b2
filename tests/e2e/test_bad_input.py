"""Bad input gets one clear line and exit status 2, and nothing is lost."""

from __future__ import annotations

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
        error = capsys.readouterr().err
        assert error.startswith("pilot: ")
        assert error.count("\n") == 1
        return error

    return call


BAD = [
    (["submit", "{tmp}/none.py"], "cannot read the script"),
    (["submit", "{tmp}"], "Is a directory"),
    (["submit", "--max-node", "4", TRAIN], "No such option '--max-node'"),
    (["submit", "--sizes", "4,2", TRAIN], "must be increasing whole numbers"),
    (["submit", "--max-nodes", 4, "--sizes", "1,8", TRAIN], "the size 8 is not between 1 and 4"),
    (["submit", "--min-nodes", 4, "--max-nodes", 2, TRAIN], "min_nodes 4 exceeds max_nodes 2"),
    (["submit", "--env", "NO_SUCH_VARIABLE", TRAIN], "--env NO_SUCH_VARIABLE"),
    (["agent", "--connection", "{tmp}"], "Is a directory"),
    (["agent", "--connection", "{tmp}/c.json", "--python", "{tmp}/python"], "no interpreter {tmp}/python"),
    (["demo", "--output", "{tmp}/file/demo"], "cannot create the folder"),
    (["status"], "no pool is up"),
    (["ls", "--run-dir", "{tmp}"], "no connection file"),
    (["up", "--site", "polariss"], "polaris"),
    (["up", "--site", "local", "--planner", "simplex", "--run-dir", "{tmp}/run"], "milp"),
]


@pytest.mark.parametrize(("words", "line"), BAD, ids=lambda value: str(value)[:40])
def test_bad_words(words: list[object], line: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refused(*(str(word).format(tmp=tmp_path) for word in words))
    assert line.format(tmp=tmp_path) in error.replace("polariss", "")


@pytest.mark.parametrize("text", ["2,10\n1,20\n", "1,nan\n", "1,-5\n", "1\n2\n"])
def test_a_bad_curve_file(refused: Refused, tmp_path: Path, text: str) -> None:
    file = tmp_path / "curve.csv"
    file.write_text(text)
    assert f"{file}:" in refused("submit", "--curve", file, TRAIN)


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


def test_a_port_in_use(refused: Refused, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "e2e.py"
        file.write_text(Pool(tmp_path).site().replace('name="e2e",', f'name="e2e", port={port},'))
        error = refused("up", "--site", file, "--run-dir", tmp_path / "run")
    assert f"127.0.0.1:{port}" in error
    assert "in use" in error


@pytest.mark.parametrize("odd", [" ", "$", "(", "*", "\udce9"])
def test_a_run_directory_from_which_no_job_can_be_submitted(refused: Refused, tmp_path: Path, odd: str) -> None:
    error = refused("up", "--site", "local", "--pilots", "1", "--run-dir", tmp_path / f"my{odd}pool")
    assert "cannot be submitted from a path with" in error
    assert list(tmp_path.glob("my*")) == []


@pytest.mark.parametrize("state", ["file", "loop", "x" * 300])
@pytest.mark.parametrize("words", [["up", "--site", "local"], ["status"], ["down"]], ids=lambda words: words[0])
def test_a_state_directory_that_cannot_be_one(
    words: list[str], state: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / state))
    assert "no pool is up" in (error := refused(*words)) or str(tmp_path / state) in error


@pytest.mark.parametrize("name", ["ended.json", "server.key", "site.py", "connection.json", "journal.jsonl"])
def test_a_run_directory_in_which_a_file_cannot_be_written(refused: Refused, tmp_path: Path, name: str) -> None:
    blocked = tmp_path / "run" / name
    (blocked / "in the way").mkdir(parents=True)
    for folder in (blocked, blocked.parent):
        folder.chmod(0o700)
    assert str(blocked) in refused("up", "--site", "local", "--run-dir", tmp_path / "run")


def test_a_run_directory_that_another_coordinator_owns_also_if_python_prints_much_as_it_starts(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pool.folder / "sitecustomize.py").write_text("import sys\nsys.stderr.write('noise\\n' * 30_000)\n")
    monkeypatch.setenv("PYTHONPATH", str(pool.folder))
    pool.up()
    second = pool.pilot("up", "--site", pool.folder / "e2e.py", check=False)
    assert second.returncode == 2
    assert "is already up (coordinator: process" in second.stderr.splitlines()[-1]
    assert pool.status().pool == []


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
    pool.submit(TRAIN, "--epochs", "1", "--step-s", "0", options=("--name", "taken"))
    for words, line in (
        (["cancel", "vit"], "vit"),
        (["explain", "vit"], "vit"),
        (["logs", "vit"], "vit"),
        (["wait", "vit"], "vit"),
        (["ledger", "vit"], "vit"),
        (["submit", "--name", "../vit", TRAIN], "not a valid trainer name"),
        (["submit", "--name", "taken", TRAIN], "already"),
    ):
        done = pool.pilot(*words, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert line in done.stderr
    assert [t.trainer for t in pool.status().trainers] == ["taken"]
