"""docs/trouble/trouble.md quotes messages that ``pilot`` can print."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.unit.documented import ROOT

PAGE = ROOT / "docs" / "trouble" / "trouble.md"
NOT_OURS = {"PENDING, JobHeldUser"}
QUOTED = re.compile(r"`([^`]+)`")


def quoted() -> Iterator[str]:
    """The messages in the first column of the page's tables."""
    for line in PAGE.read_text().splitlines():
        if line.startswith("| "):
            yield from QUOTED.findall(line.split(" | ")[0])


def texts() -> str:
    """The texts in the code, and the parts of those into which something is formatted."""
    trees = (ast.parse(path.read_text()) for path in (ROOT / "pilot").rglob("*.py"))
    found = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return "\n".join(value for value in found if isinstance(value, str))


def test_each_message_of_the_page_is_one_of_ours() -> None:
    ours = texts()
    messages = [message for message in quoted() if message not in NOT_OURS]
    assert len(messages) > 50
    parts = [(message, part.strip(" :;,()")) for message in messages for part in message.split("…")]
    assert [one for one in parts if len(one[1]) > 3 and one[1] not in ours] == []
