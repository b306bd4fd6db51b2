"""Options that were renamed: the old name still works for one release, with a notice on stderr."""

from __future__ import annotations

import click

RENAMED = {
    "--t-fwd": "--t-fwd-s",
    "--max-parallel": "--max-parallel-trainers",
    "--solver-latency": "--solver-latency-s",
    "--interval-s": "--every-s",
    "--out": "--output",
    "--plot": "--output",
}
"""Old name → new name, for ``pilot replay``, ``trace record``, ``trace stats`` and ``demo``. Renamed in 0.1.0; the old
names are removed in 0.2.0."""


class RenamedOptions(click.Command):
    """A command that also accepts the old names of its options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace old names, then parse as usual."""
        return super().parse_args(ctx, [_renamed(argument) for argument in args])


def _renamed(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if name not in RENAMED:
        return argument
    click.echo(f"pilot: {name} is now called {RENAMED[name]}; the next release will not accept {name}", err=True)
    return RENAMED[name] + equals + value
