"""Each exception to the rules of Ruff and mypy states its reason."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("pilot", "launchers", "site_configs", "examples", "benchmarks", "tests")
EXCEPTION = re.compile(r"#\s*(noqa|type:\s*ignore|ruff:|mypy:|pyright:|pylint:)")
WITH_REASON = re.compile(r"# (noqa: [A-Z]+\d+(, [A-Z]+\d+)*|type: ignore\[[a-z-]+(, [a-z-]+)*\])  # \w+.*")
RULE = re.compile(r'"[A-Z]+\d+"')


def comments(path: Path) -> Iterator[str]:
    with tokenize.open(path) as stream:
        for token in tokenize.generate_tokens(stream.readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def unexplained(comment: str) -> bool:
    return EXCEPTION.search(comment) is not None and WITH_REASON.fullmatch(comment) is None


def test_what_counts_as_a_reason() -> None:
    good = ["# noqa: ARG002  # click's signature", "# type: ignore[index, misc]  # each key goes back", "# plain"]
    bad = ["# noqa", "# noqa: ARG002", "# noqa: ARG002  #", "# type: ignore", "# type: ignore[misc]", "# ruff: noqa"]
    assert [c for c in good if unexplained(c)] == []
    assert [c for c in bad if not unexplained(c)] == []


def test_exceptions_in_the_code() -> None:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): [c for c in comments(path) if unexplained(c)] for path in paths}
    assert len(paths) > 100
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_ruffs_settings() -> None:
    """A disabled rule, global or per file, is on a line of its own with its reason."""
    settings = (ROOT / "pyproject.toml").read_text()
    _, _, left_out = settings.partition("ignore = [")
    lines = [line.strip() for line in left_out.splitlines() if RULE.search(line)]
    assert lines
    assert [line for line in lines if not re.fullmatch(r'("[a-z/*]+" = \[)?"[A-Z]+\d+"[],]  # \w?.+', line)] == []


def test_mypys_settings() -> None:
    """A section about some modules comes after its reason."""
    lines = (ROOT / "setup.cfg").read_text().splitlines()
    sections = [number for number, line in enumerate(lines) if line.startswith("[mypy-")]
    assert sections
    assert [lines[number] for number in sections if not lines[number - 1].startswith("# ")] == []
    assert [line for line in lines if line.startswith("disable_error_code")] == []
