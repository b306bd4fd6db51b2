"""The code blocks in the documents."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "examples" / "ported" / "README.md"]
PROGRAMS = {"pilot", "python", ".venv/bin/python", "pip", "make", "git"}
PROGRAMS |= {"source", "cp", "apt-get", "sbatch", "nvidia-smi", "h5dump", "module", "exec", "eval", "for"}
_MODULE = re.compile(r"python -m (benchmarks\.\w+)([^`#\n]*)")
_BLOCK = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """``number``: among the page's blocks in this language, from 0."""

    page: str
    language: str
    number: int
    text: str


def blocks(language: str) -> list[Block]:
    """All blocks in a language ("": none is given, meaning shell input)."""
    found = []
    for page in PAGES:
        texts = [dedent(text) for _, kind, text in _BLOCK.findall(page.read_text()) if kind == language]
        name = page.relative_to(ROOT).as_posix().removeprefix("docs/")
        found += [Block(name, language, number, text) for number, text in enumerate(texts)]
    return found


class Screen(NamedTuple):
    """A command after ``$``, and the lines below it: some of those that it prints."""

    command: str
    shown: list[str]


def screens(page: str) -> list[Screen]:
    """The commands in a page's blocks in the language "console", with what they print."""
    found: list[Screen] = []
    for line in "".join(block.text for block in blocks("console") if block.page == page).splitlines():
        if line.startswith("$ "):
            found.append(Screen(line.removeprefix("$ "), []))
        else:
            found[-1].shown.append(line)
    return found


def shell_lines() -> Iterator[tuple[str, str]]:
    """(page, line) of each block with a line that starts with one of PROGRAMS; a trailing backslash continues a
    line.
    """
    for block in blocks(""):
        lines = block.text.replace("\\\n", " ").splitlines()
        if any(_program(line) in PROGRAMS for line in lines):
            yield from ((block.page, line) for line in lines if line)


def begins_as_typed(line: str) -> bool:
    """Whether a line of such a block starts with a program, or sets a variable."""
    return _program(line) in PROGRAMS or re.match(r"(export )?[A-Z_]+=", line) is not None


def module_options() -> Iterator[tuple[str, str, str]]:
    """(page, module, option) for each ``python -m benchmarks.…``, in blocks and in text."""
    for page in PAGES:
        for module, words in _MODULE.findall(page.read_text()):
            yield from ((page.name, module, option) for option in re.findall(r"(?<!\S)--[a-z][\w-]*", words))


def _program(line: str) -> str:
    return line.split(maxsplit=1)[0] if line.split() else ""


def pilot_commands() -> Iterator[tuple[str, list[str]]]:
    """(page, words after ``pilot``) for each line that starts with it; of pipes and lists, the first command."""
    for block in [*blocks(""), *blocks("console")]:
        for line in block.text.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ")
            if line.startswith("pilot "):
                words = shlex.split(line.split(";")[0].replace("[", " ").replace("]", " "), comments=True)
                yield block.page, list(takewhile(lambda word: word[0] not in "|>&", words[1:]))
