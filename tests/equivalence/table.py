"""All rows: what :mod:`tests.equivalence.test_rows` runs, and the table in ``docs/elastic-script.md``."""

from __future__ import annotations

import importlib
import pkgutil

from tests.equivalence import topics
from tests.equivalence.rows import Row, Topic

TOPICS: list[Topic] = [
    importlib.import_module(f"{topics.__name__}.{module.name}").TOPIC
    for module in sorted(pkgutil.iter_modules(topics.__path__), key=lambda module: module.name)
]
ROWS: dict[str, Row] = {row.name: row for topic in TOPICS for row in topic.rows}
assert len(ROWS) == sum(len(topic.rows) for topic in TOPICS), "two rows have the same name"
