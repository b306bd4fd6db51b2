"""Options after a script are the script's; a user who meant ours gets a note."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pilot.cli.main import run
from pilot.cli.options import for_script, mention_our_options


@click.command("submit", context_settings={"allow_interspersed_args": False})
@click.option("--name")
@click.option("--seed")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def submit(name: str | None, seed: str | None, script: Path, arguments: tuple[str, ...]) -> None:  # noqa: ARG001  # click's signature
    mention_our_options(script, arguments)
    click.echo(" ".join(for_script(arguments)))


@pytest.mark.parametrize(
    ("given", "passed", "mentioned"),
    [
        (["--name", "x"], "--name x", ["--name"]),
        (["--epochs", "3", "--name=x", "--name=y"], "--epochs 3 --name=x --name=y", ["--name"]),
        (["--seed", "1"], "--seed 1", []),
        (["--", "--name", "x"], "--name x", []),
        (["--epochs", "3", "--", "--name"], "--epochs 3 -- --name", []),
        (["--epochs", "3"], "--epochs 3", []),
    ],
)
def test_an_option_of_ours_after_the_script(
    tmp_path: Path, given: list[str], passed: str, mentioned: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text('parser.add_argument("--seed")\n')
    result = CliRunner().invoke(submit, [str(script), *given])
    assert result.stdout == f"{passed}\n"
    notes = [line.partition("note: ")[2] for line in result.stderr.splitlines()]
    assert [note.partition(" was passed to train.py.")[0] for note in notes] == mentioned
    assert all(f"For the option of submit, put {mentioned[0]} before the script" in note for note in notes)


def test_an_option_of_the_script_before_the_dashes_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    study = ["study", "run", "hpo.py", "--name", "s", "--trials", "3", "--metric", "a:max", "--epochs", "3"]
    assert run(study) == 2
    line = "pilot study run has no option --epochs; put -- before the script's own options: SCRIPT -- --epochs ..."
    assert capsys.readouterr().err == f"pilot: {line}\n"
