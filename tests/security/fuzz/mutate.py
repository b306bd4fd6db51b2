"""Mutations of valid input."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

NESTED: Any = None
for _ in range(200):
    NESTED = [NESTED]

NASTY: list[Any] = [
    None, True, False, [], {}, [[]], {"": None}, NESTED, 0, -1, 1, 2, 7, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1,
    10**30, 10**400, 0.5, -0.0, 1e20, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), "", " ", "x",
    "\0", "a\nb", "\x1b[2J", "..", "../../../../etc/passwd", "/dev/zero", "é", "\ud800", "x" * 100_000, "O",
    "torch.nothing", "|O", "<f4", "<U9", "json:loads", "nan", "1e400", "١٢٣", "-1", "[1-99999999]",
]  # fmt: skip


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    """``data`` with a few bytes flipped, cut, duplicated or inserted."""
    piece = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(piece) + 1)
        match rng.randrange(6):
            case 0 if piece:
                piece[at % len(piece)] ^= 1 << rng.randrange(8)
            case 1:
                del piece[at:]
            case 2:
                del piece[at : at + rng.randrange(1, 40)]
            case 3:
                piece[at:at] = rng.randbytes(rng.randrange(1, 20))
            case 4:
                piece[at:at] = piece[at : at + rng.randrange(1, 40)] * rng.choice((1, 2, 50))
            case _:
                piece[at : at + 1] = rng.choice((b"\0", b"\n", b'"', b"\xff", b",", b"\x1b", b"-", b"9" * 30))
    return bytes(piece)


def changed_blocks(rng: random.Random, data: bytes) -> bytes:
    """``data`` with a block zeroed, dropped, doubled, moved or overwritten by another one, or with a bit flipped."""
    size = rng.choice((64, 512, 512, 4096))
    blocks = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, other = rng.randrange(len(blocks)), rng.randrange(len(blocks))
        match rng.randrange(6):
            case 0:
                blocks[at] = bytes(len(blocks[at]))
            case 1:
                blocks[at] = b""
            case 2:
                blocks[at] *= 2
            case 3:
                blocks.insert(other, blocks.pop(at))
            case 4:
                blocks[at] = blocks[other]
            case _ if blocks[at]:
                flipped = bytearray(blocks[at])
                flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
                blocks[at] = bytes(flipped)
    return b"".join(blocks)


def changed_value(rng: random.Random, value: Any) -> Any:
    """A copy of plain data with something in it replaced, left out, duplicated or added."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2))):
        box, key = rng.choice(list(_places(value)) or [([value], 0)])
        match rng.randrange(8):
            case 0:
                del box[key]
            case 1 if isinstance(box, list):
                box.insert(key, copy.deepcopy(box[key]))
            case 1:
                box[rng.choice(("extra", "", "x" * 300))] = box[key]
            case 2 if isinstance(box[key], int) and not isinstance(box[key], bool):
                box[key] += rng.choice((1, -1, 2**32))
            case _:
                box[key] = copy.deepcopy(rng.choice(NASTY))
    return value


def _places(value: Any) -> Any:
    """(container, key) of everything in ``value``."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


def texts(value: Any) -> Iterator[str]:
    """All strings in plain data."""
    match value:
        case str():
            yield value
        case dict():
            yield from texts(list(value.items()))
        case list() | tuple():
            for part in value:
                yield from texts(part)


def changed_json(rng: random.Random, text: bytes) -> bytes:
    """The text of a JSON value, mutated as a value or as bytes."""
    if rng.random() < 0.4:
        return changed_bytes(rng, text)
    return json.dumps(changed_value(rng, json.loads(text))).encode()


def changed_lines(rng: random.Random, text: str, separators: str, nasty: Sequence[str]) -> str:
    """A text of lines with a cell replaced, or a line left out, duplicated or moved."""
    lines = text.splitlines(keepends=True)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        edits: list[Callable[[], None]] = [
            lambda at=at: lines.insert(at, lines[at]),
            lambda at=at: lines.insert(rng.randrange(len(lines)), lines[at]),
            lambda at=at: lines.__setitem__(at, _with_cell(rng, lines[at], separators, nasty)),
        ]
        rng.choice([*edits, *edits[2:] * 4])()
    return "".join(lines)


def _with_cell(rng: random.Random, line: str, separators: str, nasty: Sequence[str]) -> str:
    separator = next((s for s in separators if s in line), " ")
    cells = line.rstrip("\n").split(separator)
    cells[rng.randrange(len(cells))] = rng.choice(nasty)
    return separator.join(cells) + "\n"
