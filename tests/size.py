"""``python -m tests.size [FOLDER ...]``: lines and tokens of Python code in these folders. Tokens are counted without
comments, docstrings and line breaks, so that denser lines do not look smaller.
"""

from __future__ import annotations

import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("pilot", "pilot/train", "pilot/train/check", "tests/equivalence", "tests/unit/train", "tests")
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


def size(folder: Path) -> tuple[int, int]:
    """Lines and tokens of all files below ``folder``."""
    texts = [path.read_text() for path in sorted(folder.rglob("*.py"))]
    return sum(len(text.splitlines()) for text in texts), sum(map(tokens, texts))


def tokens(text: str) -> int:
    """Of one file."""
    found, before = 0, tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and before in _LAYOUT
        found += token.type not in _LAYOUT and not is_docstring
        before = token.type
    return found


if __name__ == "__main__":
    for name in sys.argv[1:] or OURS:
        lines, count = size(ROOT / name)
        print(f"{name:20} {lines:7,} lines {count:9,} tokens")
