"""The code blocks of the documents."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """``number``: of the blocks in this language on this page, from 0."""

    page: str
    language: str
    number: int
    text: str


def blocks(language: str) -> list[Block]:
    """All of a language ("": none is given, which is what is typed at a shell)."""
    found = []
    for page in PAGES:
        texts = [text for kind, text in _BLOCK.findall(page.read_text()) if kind == language]
        found += [Block(page.name, language, number, text) for number, text in enumerate(texts)]
    return found


def pilot_commands() -> Iterator[tuple[str, list[str]]]:
    """(page, words after ``pilot``) of each line that begins with it; of pipes and lists the first command."""
    for block in blocks(""):
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith("pilot "):
                words = shlex.split(line.split(";")[0].replace("[", " ").replace("]", " "), comments=True)
                yield block.page, list(takewhile(lambda word: word[0] not in "|>&", words[1:]))
