"""``pilot sites``: the list, the script, the check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilot.cli.main import run


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
