"""Everything that the documents name exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from pilot import __version__
from pilot.checkpoint import structure
from pilot.protocol import wire
from pilot.rundir import journal
from tests.architecture import rewritten
from tests.equivalence import table
from tests.json_reference import DOCUMENT, FOLDER, written

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
IN_TEXT = re.compile(r"`((?:pilot|launchers|site_configs|tests|examples|docs|benchmarks)/[\w./*-]*)`")
LINK = re.compile(r"\]\(([^)#:]+)\)")
MODULE = re.compile(r"python -m ((?:benchmarks|tests|pilot)[\w.]*)")
SHORT = [ROOT / "docs" / f"{name}.md" for name in ("elastic/tutorial", "elastic/how-to", "elastic/seldom")]
SHORT += [ROOT / "docs" / f"{name}.md" for name in ("how/guarantees", "how/node-sums", "how/node-speed", "how/pilots")]
SHORT += [ROOT / "docs" / "how" / f"{name}.md" for name in ("how-it-works", "pool", "failures")]
SHORT += [*sorted((ROOT / "docs" / "admin").glob("*.md")), *sorted((ROOT / "docs" / "reference").glob("*.md"))]
MOST_WORDS, MOST_WORDS_OF_A_SENTENCE = 2500, 60
TARGET = re.compile(r"(?:^|`)make ([a-z][\w-]*)", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_files_that_a_document_names_exist(document: Path) -> None:
    text = document.read_text()
    named = {ROOT / name.rstrip("/") for name in IN_TEXT.findall(text)}
    linked = {document.parent / name for name in LINK.findall(text)}
    assert [str(path) for path in named | linked if not path.exists()] == []


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


def test_the_changelog_has_this_version_with_its_protocol_and_formats() -> None:
    row = f"| {__version__} | {wire.PROTOCOL} | {structure.FORMAT} "
    rows = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith(row)]
    assert len(rows) == 1, f"no row that begins with {row!r}"
    assert rows[0].endswith(f"| {journal.FORMAT} |")


def test_the_json_reference_is_what_the_types_say() -> None:
    assert {path: path.read_text() for path in written()} == written(), "make tables writes it anew"
    assert set(FOLDER.glob("*.md")) == set(written()) - {DOCUMENT}


def test_the_table_of_equivalence_is_what_the_rows_say() -> None:
    text = table.DOCUMENT.read_text()
    assert table.rewritten(text) == text, "make tables writes it anew"


@pytest.mark.parametrize("document", SHORT, ids=lambda path: path.name)
def test_a_page_for_users_stays_short(document: Path) -> None:
    text = document.read_text().partition(table.BEGIN)[0]
    assert len(text.split()) <= MOST_WORDS
    prose = re.sub(r"^( *)```.*?^\1```$|^\|.*?$|^#.*?$", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    sentences = re.split(r"(?<=[.?!])\s|\n\n|\n *(?:- |\d\. )", prose)
    assert [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS_OF_A_SENTENCE] == []


def test_the_page_of_environment_variables_names_each_that_the_code_reads_or_sets() -> None:
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "pilot").rglob("*.py"))
    assert sorted(name for name in set(re.findall(r'"(PILOT_[A-Z_]+)"', code)) if f"`{name}" not in page) == []
