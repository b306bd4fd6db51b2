"""Old names of options: they work for one release, and say so."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from pilot.cli.demo import command as demo
from pilot.cli.renamed import RENAMED, RenamedOptions
from pilot.cli.replay import command as replay
from pilot.cli.trace import record, stats


@click.command(cls=RenamedOptions)
@click.option("--t-fwd-s")
@click.argument("word")
def echo(t_fwd_s: str, word: str) -> None:
    click.echo(f"{t_fwd_s} {word}")


@pytest.mark.parametrize("given", [["--t-fwd", "30"], ["--t-fwd=30"]])
def test_an_old_name_works_and_says_what_the_new_one_is(given: list[str]) -> None:
    result = CliRunner().invoke(echo, [*given, "x"])
    assert result.stdout == "30 x\n"
    assert result.stderr == "pilot: --t-fwd is now called --t-fwd-s; the next release will not accept --t-fwd\n"


def test_a_new_name_says_nothing() -> None:
    result = CliRunner().invoke(echo, ["--t-fwd-s", "30", "x"])
    assert (result.stdout, result.stderr) == ("30 x\n", "")


def test_each_renamed_option_exists_under_its_new_name_only() -> None:
    options = {name for command in (replay, record, stats, demo) for option in command.params for name in option.opts}
    assert all(isinstance(command, RenamedOptions) for command in (replay, record, stats, demo))
    assert set(RENAMED.values()) <= options
    assert not set(RENAMED) & options
