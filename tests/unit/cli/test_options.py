"""Options have one name and one unit everywhere, and each says what it does."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pilot.cli.main import cli

DIFFERENT = {
    "--nodes": "in status a flag: list them too",
    "--output": "a file, or a directory",
    "--profile": "in submit one of three, in replay several",
}
"""Options that take another kind of value in another command."""


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
        found.setdefault(option.opts[-1], {})[path] = value.rstrip("S") if value.isupper() else value
    several = {name: kinds for name, kinds in found.items() if len(set(kinds.values())) > 1}
    assert set(several) == set(DIFFERENT), several


def test_times_name_their_unit() -> None:
    for path, option, context in options(cli):
        value = option.make_metavar(context)
        assert (value == "SECONDS") == option.opts[-1].endswith("-s"), f"{path} {option.opts[-1]} {value}"
        assert " RANGE" not in value, f"{path} {option.opts[-1]} {value}"


def test_each_option_says_in_a_sentence_what_it_does() -> None:
    for path, option, _ in options(cli):
        text = option.help or ""
        assert text[:1].isalnum() or text[:1] == "-", f"{path} {option.opts[-1]}: {text!r}"
        assert text.rstrip().endswith((".", "]")), f"{path} {option.opts[-1]}: {text!r}"
