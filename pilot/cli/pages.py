"""HTML pages that commands write: ``pilot report`` and ``pilot study report``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pilot.io.output import write_output

Function = TypeVar("Function", bound=Callable[..., Any])


def page_option(default: str) -> Callable[[Function], Function]:
    """``--output``: the page's file."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option("--output", type=kind, metavar="FILE", help=f"File to write.  [default: {default}]")


def write_page(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all; :class:`UserError` if that fails."""
    write_output(path, text.encode())
    click.echo(f"wrote {path}")
