"""Everything that the documents name exists."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from pilot import __version__, planners
from pilot.checkpoint import structure
from pilot.cli.main import cli
from pilot.core import node_types, planning
from pilot.core.curves import curve_model
from pilot.core.plan import aging, prognosis
from pilot.core.pool import pool
from pilot.protocol import wire
from pilot.rundir import journal
from tests.architecture import rewritten
from tests.equivalence import table
from tests.json_reference import DOCUMENT, FOLDER, written

ROOT = Path(__file__).parents[2]
DOCUMENTS = [path for folder in ("docs", ".github") for path in sorted((ROOT / folder).rglob("*.md"))]
DOCUMENTS += sorted(ROOT.glob("*.md"))
IN_TEXT = re.compile(r"`((?:pilot|launchers|site_configs|tests|examples|docs|benchmarks)/[\w./*-]*)`")
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
BLOCK = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
MODULE = re.compile(r"python -m ((?:benchmarks|tests|pilot)[\w.]*)")
FOR_DEVELOPERS = {"development", "research", "json"}
"""Folders whose pages may be long: those for developers and researchers, and those that are generated."""
FOR_USERS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOR_USERS = [page for page in FOR_USERS if page.parent.name not in FOR_DEVELOPERS]
MOST_WORDS, MOST_WORDS_OF_A_SENTENCE = 2500, 60
TARGET = re.compile(r"(?:^|`)make ([a-z][\w-]*)", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_files_that_a_document_names_exist(document: Path) -> None:
    text = document.read_text()
    named = {ROOT / name.rstrip("/") for name in IN_TEXT.findall(text)}
    linked = {document.parent / name for name, _ in LINK.findall(text) if name}
    assert [str(path) for path in named | linked if not path.exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_headings_to_which_a_document_links_exist(document: Path) -> None:
    linked = [
        (document.parent / name if name else document, anchor)
        for name, anchor in LINK.findall(BLOCK.sub("", document.read_text()))
    ]
    pages = [(page, anchor) for page, anchor in linked if anchor and page.suffix == ".md"]
    assert [(str(page), anchor) for page, anchor in pages if anchor not in _anchors(page)] == []


@cache
def _anchors(page: Path) -> set[str]:
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_modules_and_targets_that_a_document_names_exist(document: Path) -> None:
    text, makefile = document.read_text(), (ROOT / "Makefile").read_text()
    modules = [name.rstrip(".") for name in MODULE.findall(text)]
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    assert [name for name in TARGET.findall(text) if f"\n{name}:" not in makefile] == []


def test_architecture_describes_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = [path.parent.relative_to(ROOT) for path in ROOT.glob("pilot/*/__init__.py")]
    assert [str(package) for package in packages if f"`{package}/`" not in text] == []


def test_what_is_generated_is_as_the_code_says() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert rewritten(text) == text, "make tables writes it anew"


def test_the_page_of_support_has_this_version_with_its_protocol_and_formats() -> None:
    row = f"| {__version__} | {wire.PROTOCOL} | {structure.FORMAT} | {journal.FORMAT} |"
    assert (ROOT / "SUPPORT.md").read_text().splitlines().count(row) == 1, f"no row {row}"


def test_the_changelog_has_this_version() -> None:
    headings = re.findall(r"^## (\S+) \(.*\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings.count(__version__) == 1


def test_the_json_reference_is_what_the_types_say() -> None:
    assert {path: path.read_text() for path in written()} == written(), "make tables writes it anew"
    assert set(FOLDER.glob("*.md")) == set(written()) - {DOCUMENT}


def test_the_table_of_equivalence_is_what_the_rows_say() -> None:
    text = table.DOCUMENT.read_text()
    assert table.rewritten(text) == text, "make tables writes it anew"


@pytest.mark.parametrize("document", FOR_USERS, ids=lambda path: path.name)
def test_a_page_for_users_stays_short(document: Path) -> None:
    text = document.read_text().partition(table.BEGIN)[0]
    assert len(text.split()) <= MOST_WORDS
    prose = re.sub(r"^\|.*?$|^#.*?$", "\n\n", BLOCK.sub("\n\n", text), flags=re.MULTILINE)
    sentences = re.split(r"(?<=[.?!])\s|\n\n|\n *(?:- |\d\. )", prose)
    assert [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS_OF_A_SENTENCE] == []


def test_the_numbers_of_the_pages_about_plans_are_those_of_the_code() -> None:
    plans, speeds, models = (
        " ".join((ROOT / "docs" / "how" / f"{name}.md").read_text().split())
        for name in ("planners", "speeds", "planner-models")
    )
    prior = curve_model.ON_SUMMIT
    for name, normal in (("a", prior.ln_a), ("b", prior.ln_b)):
        assert f"ln {name} ~ N({normal.mean:g}, {normal.sd:g}²)" in speeds
    assert f"with a deviation of {curve_model.SIGMA:.0%}" in speeds
    assert f"less than {node_types.SLOW:.0%}" in speeds
    assert f"worth {planning.QUEUE_SHARE:.0%} of" in plans
    assert f"worth {planning.QUEUE_SHARE:.0%} of" in models
    assert f"first {planning.MOST} trainers" in plans
    assert f"At most {pool.MOST} such nodes" in plans
    assert f"multiplied by {prognosis.LATE}" in plans
    assert f"({aging.LONGEST_WAIT_S / 3600:g} h; 0: no limit)" in plans


def test_the_page_about_planners_has_each() -> None:
    page = (ROOT / "docs" / "how" / "planners.md").read_text()
    assert [name for name in planners.NAMES if f"\n| `{name}` " not in page] == []


def test_the_page_of_environment_variables_names_each_that_the_code_reads_or_sets() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "pilot").rglob("*.py"))
    assert sorted(name for name in set(re.findall(r'"(PILOT_[A-Z_]+)"', code)) if f"`{name}" not in page) == []


def test_the_page_of_exit_statuses_names_each_command_whose_help_has_one() -> None:
    page = (ROOT / "docs" / "reference" / "exit-status.md").read_text()
    assert (
        sorted(name for name, command in _commands("pilot", cli) if f"`{name}`" not in page and _status(command)) == []
    )


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), inner)
            assert found is not None
            yield from _commands(f"{name} {inner}", found)


def _status(command: click.Command) -> bool:
    return "exit status" in " ".join((command.help or "").lower().split())
