"""``pilot sites``: the list, the script, the check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pilot.cli.main import run
from pilot.site.site import Site
from pilot.site.site_files import load_site
from pilot.site.template import comments


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PILOT_RUN_DIR", str(tmp_path / "run"))


def bad_file(folder: Path) -> Path:
    path = folder / "bad.py"
    path.write_text('from pilot.site.site import Site\nsite = Site(name="bad", scheduler="slurm", walltim="1:00")\n')
    return path


SHOWN = [
    ([], "gpuA100x4-preempt", ""),
    (["show", "delta", "--own-script"], "Submit it with: sbatch pilot.sh", ""),
    (["show", "polaris"], "#PBS -l select=1:ncpus=64:system=polaris", "not verified"),
    (["show", "perlmutter"], "#SBATCH", "note: a pilot is not preempted during its first 7200 s\n"),
    (["show", "perlmutter"], "#SBATCH", "note: an hour is charged as 0.25 hours of the regular queue\n"),
    (["check", "delta"], "delta: site delta is valid", ""),
]


@pytest.mark.parametrize(("words", "out", "err"), SHOWN)
def test_what_is_shown(
    words: list[str], out: str, err: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sites", *words]) == 0
    shown = capsys.readouterr()
    assert out in shown.out and err in shown.err
    assert f"agent --connection {tmp_path}/run/connection.json" in shown.out or words != ["show", "polaris"]
    assert not (tmp_path / "run").exists(), "nothing is submitted"


def test_what_is_submitted_for_a_type_of_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mixed.py"
    types = {name: {"partition": f"only-{name}"} for name in ("a100", "a40")}
    file.write_text(
        f'from pilot.site.site import Site\nsite = Site(name="mixed", scheduler="slurm", node_types={types})\n'
    )
    assert run(["sites", "show", str(file), "--type", "a40"]) == 0
    assert "#SBATCH --partition=only-a40\n" in capsys.readouterr().out
    assert run(["sites", "show", str(file)]) == 0
    assert "types of nodes: a100, a40; pilot sites show --type NAME" in capsys.readouterr().err
    assert run(["sites", "show", str(file), "--type", "h100"]) == 2
    assert capsys.readouterr().err == "pilot: site mixed has no type of nodes 'h100'; there are: a100, a40\n"


def test_an_account_of_the_shells_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ACCOUNT", "mine")
    assert run(["sites", "show", "delta"]) == 0
    shown = capsys.readouterr()
    assert "#SBATCH --account=mine\n" in shown.out
    assert "the site file names no account: mine is from SLURM_ACCOUNT\n" in shown.err


def test_an_hour_that_counts_as_one_needs_no_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sites", "show", "local"]) == 0
    assert "charged" not in capsys.readouterr().err


def test_json_also_of_a_file_that_does_not_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "config" / "pilot" / "sites"
    folder.mkdir(parents=True)
    bad_file(folder)
    assert run(["sites", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["sites"]}
    assert rows["polaris"]["max_jobs"] == "20 per project"
    assert "did you mean walltime?" in rows["bad"]["error"]
    assert run(["sites", "show", "summit", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["site"]["retired"] == "decommissioned 2024-11-15"
    assert "#BSUB -q killable" in shown["script"]


def test_check_names_every_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bad_file(tmp_path)
    assert run(["sites", "check", str(path)]) == 2
    assert capsys.readouterr().err == f"{path}: walltim: no such field; did you mean walltime?\n"
    assert run(["sites", "check", str(path), "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["mistakes"]) == 1


@pytest.mark.parametrize("arguments", [["show", "nowhere"], ["show", "no/such.py"], ["check", "no/such.py"]])
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sites", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


CHATTY = """
import os
from pilot.site.site import Site
os.system("echo loading modules")
print("my site")
site = Site(name="mine", scheduler="local")
def provider(site):
    print("my provider")
    from pilot.provisioning.provider import make_provider
    return make_provider(site)
"""


@pytest.mark.parametrize("words", [["check"], ["show"]])
def test_what_a_site_file_prints_is_not_in_the_json(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(CHATTY)
    assert run(["sites", *words, str(path), "--json"]) == 0
    printed = capfd.readouterr()
    json.loads(printed.out)
    assert {"loading modules", "my site"} <= set(printed.err.splitlines())
    assert ("my provider" in printed.err) == (words == ["show"])


def no_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilot.doctor.checks.examine", lambda *_: ())


def test_a_new_site_has_what_was_given_and_every_other_field_in_a_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_doctor(monkeypatch)
    given = {
        "scheduler": "slurm",
        "account": 'a"b\\c',
        "description": "Größe 𝟙",
        "scheduler_options": "#SBATCH -C gpu\n#SBATCH -G 4",
    }
    more = {
        "interface": None,
        "walltime": "12:00:00",
        "max_jobs": 7,
        "grace_s": 120.5,
        "exclusive": False,
        "check": "off",
    }
    options = [f"--{field.replace('_', '-')}={value}" for field, value in {**given, **more}.items()]
    assert run(["sites", "new", "mine", *options]) == 0
    path = tmp_path / "config" / "pilot" / "sites" / "mine.py"
    assert capsys.readouterr().out.startswith(f"wrote {path}")
    assert load_site("mine") == Site(name="mine", **given, **more)
    lines = [line.strip() for line in path.read_text().splitlines()]
    for field, comment in comments().items():
        [line] = [line for line in lines if line.startswith((f"{field}=", f"# {field}="))]
        assert (line[0] == "#") == (field not in {"name", *given, *more})
        assert comment in line or f"# {comment}" in lines
    assert set(comments()) == set(Site.__struct_fields__)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["delta", "--scheduler", "slurm"], "there is a site delta, "),
        (["mine.py", "--scheduler", "slurm"], "without .py"),
        (["a/b", "--scheduler", "slurm"], "name: "),
        (["mine", "--scheduler", "slrum"], "scheduler: expected 'local' or 'slurm'"),
        (["mine", "--scheduler", "pbspro", "--partition", "x"], "only Slurm has partitions"),
        (["mine", "--scheduler", "slurm", "--max-jobs", "many", "--walltime", "1"], "max_jobs: expected int"),
        (["mine"], "none of sbatch, qsub, bsub is on this machine's PATH; give --scheduler"),
    ],
)
def test_a_new_site_with_a_mistake_is_not_written(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert run(["sites", "new", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "config").exists()


def test_the_scheduler_of_this_machine_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_doctor(monkeypatch)
    (tmp_path / "qsub").touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["sites", "new", "mine", "--queue", "preemptable"]) == 0
    assert load_site("mine").scheduler == "pbspro"
    assert run(["sites", "new", "mine"]) == 2, "a file is not overwritten"


def test_in_a_terminal_it_asks_until_an_answer_is_right_and_doctor_looks_at_the_site() -> None:
    master, slave = os.openpty()
    os.write(master, b"what\nlocal\n")
    done = subprocess.run(
        [sys.executable, "-m", "pilot", "sites", "new", "mine"],
        stdin=slave,
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(master)
    os.close(slave)
    assert done.stderr.count("scheduler (local | slurm | pbspro | lsf)") == 2
    assert "expected 'local' or 'slurm'" in done.stderr
    assert "pilots are local processes" in done.stdout, done.stderr
    assert load_site("mine") == Site(name="mine", scheduler="local")


def test_the_questions_are_those_of_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    from pilot.cli import new_site

    answers = {"partition": "low", "walltime": "", "max_jobs": "12", "ranks_per_node": "4", "interface": "hsn0"}
    asked = []

    def prompt(text: str, value_proc: Callable[[str], object], **_: object) -> object:
        asked.append(text.split()[0])
        return value_proc(answers.get(asked[-1], ""))

    no_doctor(monkeypatch)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(new_site.click, "prompt", prompt)
    assert run(["sites", "new", "mine", "--scheduler", "slurm", "--account", "abcd"]) == 0
    expected = {"partition": "low", "max_jobs": 12, "ranks_per_node": 4, "interface": "hsn0", "account": "abcd"}
    assert load_site("mine") == Site(name="mine", scheduler="slurm", **expected)
    assert "qos" in asked and not {"queue", "select_options", "account", "scheduler"} & set(asked)
