"""Options have one name and one unit everywhere, and each has a description."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pilot.cli.main import cli, run
from pilot.cli.options import Parallel

Said = pytest.CaptureFixture[str]

DIFFERENT = {
    "--node-order": "in up one of three, in replay several",
    "--output": "a file, or a directory",
    "--profile": "in submit one of three, in replay several",
}
"""Options that take a different kind of value in another command."""


def options(command: click.Command, path: str = "pilot") -> Iterator[tuple[str, click.Option, click.Context]]:
    context = click.Context(command, info_name=path)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below, f"{path} {name}")
    yield from ((path, option, context) for option in command.params if isinstance(option, click.Option))


def test_an_option_takes_the_same_kind_of_value_in_every_command() -> None:
    found: dict[str, dict[str, str]] = {}
    for path, option, context in options(cli):
        value = "" if option.is_flag else option.make_metavar(context).replace("COUNTS", "N").replace("SEEDS", "N")
        if path != "pilot sites new":  # its options are the fields of a site file
            found.setdefault(option.opts[-1], {})[path] = value.rstrip("S") if value.isupper() else value
    several = {name: kinds for name, kinds in found.items() if len(set(kinds.values())) > 1}
    assert set(several) == set(DIFFERENT), several


def test_times_name_their_unit() -> None:
    for path, option, context in options(cli):
        value = option.make_metavar(context)
        assert (value == "SECONDS") == option.opts[-1].endswith("-s"), f"{path} {option.opts[-1]} {value}"
        assert " RANGE" not in value, f"{path} {option.opts[-1]} {value}"


def test_choices_are_given_as_they_are_documented() -> None:
    for path, option, context in options(cli):
        if isinstance(option.type, click.Choice):
            for choice in option.type.choices:
                given = str(getattr(choice, "value", choice))
                assert option.type.convert(given, option, context) == choice, f"{path} {option.opts[-1]} {given}"


def test_each_option_is_described_by_a_sentence() -> None:
    for path, option, _ in options(cli):
        text = option.help or ""
        assert text[:1].isalnum() or text[:1] == "-", f"{path} {option.opts[-1]}: {text!r}"
        assert text.rstrip().endswith((".", "]")), f"{path} {option.opts[-1]}: {text!r}"


@pytest.mark.parametrize("given", ["~/x", "./x"])
def test_a_quoted_home_is_the_home(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PILOT_RUN_DIR", given)
    assert run(["ls"]) == 2
    assert f" {tmp_path}/x/connection.json;" in capsys.readouterr().err


def test_an_empty_run_directory_is_not_the_folder_that_one_is_in(capsys: Said) -> None:
    assert run(["down", "--run-dir", ""]) == 2
    assert "it is empty" in capsys.readouterr().err


def test_an_agent_does_not_join_where_files_must_be_small(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100 << 10, 100 << 10))
    assert run(["agent", "--connection", "nowhere.json"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("pilot: a file may have at most 100 KiB on this node (ulimit -f); ")
    assert error.count("\n") == 1


def test_a_number_of_trainers_at_once_may_be_left_to_the_pool() -> None:
    assert (Parallel().convert("auto", None, None), Parallel().convert("7", None, None)) == (None, 7)
    with pytest.raises(click.BadParameter, match="'many' is neither a whole number nor auto"):
        Parallel().convert("many", None, None)
