"""ARCHITECTURE.md's walks are true: each step is in its file, and what it hands over has one name on both sides."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALK = re.compile(
    r"^\*\*(?P<title>[^*]+)\*\* \(at most (?P<most>\d+) files\)\n\n(?P<steps>(?:\d+\. .*\n(?:   .*\n)*)+)", re.M
)
STEP = re.compile(r"^\d+\. `(?P<file>[\w/.]+)` `(?P<name>[\w.]+)`: (?P<text>(?:.*\n)(?:   .*\n)*)", re.M)
TITLES = "A notice, to the next step", "A submission, to the first step", "A step, to a published checkpoint"


@dataclass(frozen=True)
class Step:
    """A step of a walk: the code of ``name`` in ``file``, and the identifiers that the text about it names."""

    file: str
    name: str
    names: list[str]

    @property
    def code(self) -> str:
        """The source of the named function or class; fails if there is none."""
        text = (ROOT / self.file).read_text()
        nodes: list[ast.stmt] = ast.parse(text).body
        for part in self.name.split("."):
            node = next(n for n in nodes if getattr(n, "name", "") == part)
            nodes = getattr(node, "body", [])
        return ast.get_source_segment(text, node) or ""


def walks() -> dict[str, tuple[int, list[Step]]]:
    """The walks by title: how many files each may pass, and its steps."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return {
        walk["title"]: (
            int(walk["most"]),
            [Step(s["file"], s["name"], re.findall(r"`(\w+)`", s["text"])) for s in STEP.finditer(walk["steps"])],
        )
        for walk in WALK.finditer(text)
    }


def test_there_are_three_walks() -> None:
    assert tuple(walks()) == TITLES


@pytest.mark.parametrize("title", TITLES)
def test_a_walk_passes_few_files_and_renames_nothing(title: str) -> None:
    most, steps = walks()[title]
    assert len({step.file for step in steps}) <= most
    for step in steps:
        assert [name for name in step.names if not re.search(rf"\b{name}\b", step.code)] == [], step
    for number, step in enumerate(steps[1:], start=1):
        named = {name for before in steps[:number] for name in before.names}
        assert [name for name in named if re.search(rf"\b{name}\b", step.code)], f"nothing leads to {step.name}"
