"""Makes text from elsewhere safe to print: no character moves the cursor, changes the title, or hides other text."""

from __future__ import annotations

import codecs
import io
import logging
import re
from typing import Any

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""All control characters but tab and newline, and those that change the direction of text ("Trojan Source")."""

_OUTPUT = re.compile("(\x1b\\[[0-9;:]*m|\r)")
"""What programs that show colours or progress print on a terminal, and cannot do harm there."""
_PLAIN = "\x1b[0m"


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped as in JSON, such as ``\\u001b``: JSON keeps its values."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def printable_output(line: str) -> str:
    """A line of a program's output: :func:`printable`, but with its carriage returns and its colours, which end with
    the line.
    """
    parts = _OUTPUT.split(line)
    shown = "".join(part if at % 2 else printable(part) for at, part in enumerate(parts))
    return f"{shown}{_PLAIN}" if "\x1b" in shown else shown


def all_printable(value: Any) -> Any:
    """Return plain data with all its strings made printable."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {all_printable(name): all_printable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [all_printable(inner) for inner in value]
    return value


class PrintableStream(io.TextIOWrapper):
    """Standard output or standard error for a program that quotes files, peers and names: what it writes becomes
    :func:`printable`. ``as_it_is`` is the stream without that, for a writer who escapes what it quotes.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        # click writes past a stream in ASCII, in UTF-8; file names need not be valid text
        encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
        line, at_once = stream.line_buffering, stream.write_through
        super().__init__(stream.buffer, encoding, "backslashreplace", line_buffering=line, write_through=at_once)
        self.as_it_is = stream

    def write(self, text: str, /) -> int:
        """See :class:`io.TextIOWrapper`."""
        super().write(printable(text))
        return len(text)


class PrintableFormatter(logging.Formatter):
    """Keeps quoted text from starting a log line of its own, which could be taken for one of ours."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name that logging calls
        """See :class:`logging.Formatter`."""
        record.message = printable(record.message).replace("\n", "\n    ")
        return super().formatMessage(record)
