"""All rows: what :mod:`tests.equivalence.test_rows` runs, and the table in ``docs/reference/features.md``.

``make tables`` writes it, between ``<!-- generated: equivalence -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from tests.architecture import table
from tests.equivalence import topics
from tests.equivalence.rows import Row, Topic

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "features.md"
BEGIN, END = "<!-- generated: equivalence -->\n", "<!-- end -->"

TOPICS: list[Topic] = sorted(
    (
        importlib.import_module(f"{topics.__name__}.{module.name}").TOPIC
        for module in pkgutil.iter_modules(topics.__path__)
    ),
    key=lambda topic: topic.place,
)
ROWS: dict[str, Row] = {row.name: row for topic in TOPICS for row in topic.rows}
assert len(ROWS) == sum(len(topic.rows) for topic in TOPICS), "two rows have the same name"


def equivalence() -> str:
    """The rows by topic: a line of the equal ones, and tables of the others."""
    counts = {kind: sum(row.kind == kind for row in ROWS.values()) for kind in ("equal", "different", "refused")}
    head = f"{len(ROWS)} rows: {', '.join(f'{count} {kind}' for kind, count in counts.items())}.\n"
    return "\n" + head + "".join(map(_section, TOPICS)) + "\n"


def _section(topic: Topic) -> str:
    equal = " · ".join(row.name for row in topic.rows if row.kind == "equal")
    different = [(row.name, row.different) for row in topic.rows if row.kind == "different"]
    refused = [(row.name, row.instead) for row in topic.rows if row.kind == "refused"]
    parts = [
        f"Equal: {equal}\n" if equal else "",
        table(("different", "because"), different) if different else "",
        table(("refused", "instead"), refused) if refused else "",
    ]
    return f"\n**{topic.title}**\n" + "".join(f"\n{part}" for part in parts if part)


def rewritten(text: str) -> str:
    """The document ``text`` with an up-to-date table."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + equivalence() + END + rest.partition(END)[2]


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
