"""Text files, gzip or not, read line by line; errors name the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

from pilot.core.errors import UserError
from pilot.host.files import open_regular
from pilot.host.output_files import write_output

GZIP_MAGIC = b"\x1f\x8b"
TEXT = "utf-8-sig"
"""UTF-8; a byte order mark, as written by spreadsheets, is not part of the text."""

LONGEST_LINE = 16 * 1024 * 1024
MOST_RATIO = 100
SMALL_BYTES = 16 * 1024 * 1024
SHORTEST_LINE = 16
"""A gzip file that expands beyond both limits is not a trace (traces compress to about a tenth) but an attack. Here,
every line counts as at least 16 characters."""

MOST_NUMBER = 1e15
"""Most samples or seconds; beyond this, arithmetic is no longer reliable."""


def bad_input(path: Path, line: int, message: str) -> UserError:
    """The error for ``line`` (counted from 1) of ``path``."""
    return UserError(f"{path}:{line}: {message}")


@dataclass(slots=True)
class Skipped:
    """Counts the ``records`` of a scheduler's log. Those that are malformed are left out: ``first`` is the error of the
    first of them."""

    records: int = 0
    malformed: int = 0
    first: str = ""

    @contextmanager
    def record(self) -> Iterator[None]:
        """Read one record; if that raises a UserError, the record is left out."""
        self.records += 1
        try:
            yield
        except UserError as error:
            self.malformed += 1
            self.first = self.first or str(error)

    def notes(self) -> list[str]:
        """What was left out, in words. Raises UserError if that is most of the log."""
        if not self.malformed:
            return []
        if 2 * self.malformed > self.records:
            raise UserError(f"{self.first} ({self.malformed:,} of {self.records:,} records are malformed)")
        return [
            f"left out {self.malformed:,} of {self.records:,} records, which are malformed; the first: {self.first}"
        ]


def read_lines(path: Path, *, errors: str = "strict") -> Iterator[str]:
    """Yield the lines of a text file, gzip or not (recognised by its first bytes), without holding it in memory. Raises
    UserError for a missing file, a truncated or damaged gzip file, or bytes that are not text if ``errors`` is strict.
    """
    line = 0
    try:
        with open_regular(path) as file:
            most = max(SMALL_BYTES, MOST_RATIO * os.fstat(file.fileno()).st_size)
            with _text(file, errors) as stream:
                for line, text in enumerate(iter(partial(stream.readline, LONGEST_LINE), ""), start=1):
                    most -= max(len(text), SHORTEST_LINE)
                    if most < 0:
                        raise bad_input(path, line, f"it is more than {MOST_RATIO} times as large as the gzip file")
                    if len(text) == LONGEST_LINE and not text.endswith(("\n", "\r")):
                        raise bad_input(path, line, f"the line is longer than {LONGEST_LINE:,} characters")
                    yield text
    except EOFError:
        raise bad_input(path, line + 1, "the gzip file is truncated; copy or download it again") from None
    except (gzip.BadGzipFile, zlib.error):
        raise bad_input(path, line + 1, "the gzip file is damaged; copy or download it again") from None
    except UnicodeDecodeError:
        raise bad_input(path, line + 1, "this is not a text file") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def read_records(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and fields of each record in the ``lines`` of a CSV file; an empty line has no fields.
    Raises UserError for quotes that do not match within a line: everything up to the next quote would become one field.
    """
    reader, line = csv.reader(lines, strict=True), 0
    unmatched = 'the quotes (") in this line do not match; drop them'
    try:
        for fields in reader:
            if reader.line_num > line + 1:
                raise bad_input(path, line + 1, unmatched)
            line = reader.line_num
            yield line, fields
    except csv.Error:
        raise bad_input(path, line + 1, unmatched) from None


def _text(file: BinaryIO, errors: str) -> IO[str]:
    compressed = file.read(2) == GZIP_MAGIC
    file.seek(0)
    return io.TextIOWrapper(
        gzip.GzipFile(fileobj=file) if compressed else file, encoding=TEXT, errors=errors, newline=""
    )


def write_text(path: Path, text: str) -> None:
    """Write a file, compressed if its name ends in ``.gz`` (no time stamp in it: same text, same bytes)."""
    data = text.encode()
    write_output(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def number(path: Path, line: int, what: str, text: str, *, least: float = 0.0) -> float:
    """Parse a finite number that is at least ``least``; :class:`UserError` with file and line otherwise."""
    try:
        value = float(text)
    except ValueError:
        raise bad_input(path, line, f"{what} is not a number: {text!r}") from None
    if not math.isfinite(value):
        raise bad_input(path, line, f"{what} is not a finite number: {text!r}")
    if value > MOST_NUMBER:
        raise bad_input(path, line, f"{what} must be at most {MOST_NUMBER:g}, got {text}")
    if value < least:
        raise bad_input(path, line, f"{what} must be at least {least:g}, got {text}")
    return value
