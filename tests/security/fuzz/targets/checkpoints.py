"""Checkpoints: whatever the newest file is, either it loads as what it claims to be, or the one before is used."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from pilot.checkpoint import export, store
from pilot.core.errors import CheckpointError
from tests.security.fuzz.mutate import changed_bytes, changed_value
from tests.security.fuzz.target import ACCEPTED, REFUSED, Target, Wrong, check_line
from tests.security.special_files import SPECIAL, put
from tests.unit.checkpoint.states import difference

_PAGE = 16 * 1024
KINDS = (*SPECIAL, "empty", "sparse")
Datasets = dict[str, list[Any]]


@dataclass(frozen=True)
class Place:
    """A directory with an older checkpoint, and the source of the newest one."""

    directory: Path
    newest: Path
    older: dict[str, Any]
    single: bytes
    index: bytes


def crafted(whole: bytes, change: Callable[[Any], Any]) -> bytes:
    """The file with its structure changed and its checksum corrected, as an attacker would do."""
    start = whole.index(b'{"format":')
    text, end = json.JSONDecoder().raw_decode(whole[start : start + 64 * _PAGE].decode("ascii", "replace"))
    room = -(-end // _PAGE) * _PAGE
    new = json.dumps(change(text)).encode()[:room].ljust(room)
    old_digest, digest = (xxhash.xxh3_128(t).hexdigest().encode() for t in (whole[start : start + room], new))
    return (whole[:start] + new + whole[start + room :]).replace(old_digest, digest)


def _first(about: Any) -> list[Any]:
    rows: Datasets = about["datasets"]
    return rows[min(rows)]


def _put(keys: str, value: Any) -> Callable[[Any], Any]:
    """Replace the value at ``keys`` of the structure."""

    def change(about: Any) -> Any:
        *path, last = [int(k) if k.lstrip("-").isdigit() else k for k in keys.split("/")]
        box: Any = {"about": about, "first": _first(about)}
        for key in path:
            box = box[key]
        box[last] = value
        return about

    return change


def _twice(about: Any) -> Any:
    _first(about)[2] *= 2
    return about


def _empty_object(about: Any) -> Any:
    row = _first(about)
    row[0], row[1], row[2] = "|O", [1], [["", 0, 1, row[2][0][3]]]
    return about


PUT: dict[str, tuple[Any, ...]] = {
    "first/0": ("O", "|O8", "V0", "f3", "torch.nothing", "torch.load", "torch.quint8", "<U9", 5, "<f4,<f4"),
    "first/1": ([2**62, 2**62], [-1], [-1, -1], [10**12], ["a"], "x", [1.5], [10**30], [0]),
    "first/2": ([],),
    "first/2/0": (["", 0, 10**9, ""], ["", -5, 2, "x"], ["", 2, 1, "x"], [], ["", 0, 0, ""]),
    "first/2/0/0": ("/dev/zero", "../fifo", "fifo", "..", "", 5, "x\0y", "none.h5", "x" * 9000),
    "first/2/0/3": (5, "", "0" * 32, None),
    "about/tree": (
        5, None, [], {}, {"a": 1, "b": 2}, {"dict": 5}, {"dict": [[1]]}, {"dict": [[[1], 2]]}, {"evil": "x"},
        *({"dict": [["k", {kind: v}]]} for kind, v in {"tensor": "none", "float": "x", "set": [[1]], "Size": ["a"],
          "bytes": [], "tuple": 4}.items()),
        *({"dict": [["k", {"int": v}]]} for v in ("zz", 5)),
    ),
    **{f"about/{field}": (-1, "1", None, 10**30, True) for field in ("generation", "step", "part", "parts")},
    "about/aliases": (5, {"a": 5}, {"\0": "x"}, []),
    "about/datasets": (5, [], {"": []}, {"a": ["<f4", [1]]}, {}),
    "about/extra": (1,),
    "about/format": (2, "1", None),
}  # fmt: skip
CRAFTED: list[Callable[[Any], Any]] = [
    *(_put(keys, value) for keys, values in PUT.items() for value in values),
    *(_twice, _empty_object, lambda _: [], lambda _: "text"),
]
"""Structures that an attacker would write, each with a valid checksum."""


def make(rng: random.Random, number: int) -> tuple[str, Any]:
    """The crafted ones first, then special files, then mutations of all kinds."""
    kinds = len(CRAFTED)
    if number < 2 * kinds:
        return ("single", "index")[number // kinds], CRAFTED[number % kinds]
    if number < 2 * kinds + len(KINDS):
        return "special", KINDS[number - 2 * kinds]
    if rng.random() < 0.6:
        return rng.choice(("single", "index")), lambda about: changed_value(rng, about)
    return "bytes", rng


def prepare(folder: Path) -> Place:
    """An older checkpoint, and the files of a newest one, both as one file and in parts."""
    directory, other = folder / "checkpoints", folder / "other"
    older = {"model": {"w": torch.rand(7, 5), "b": np.arange(4)}, "step": 1, "tied": [t := torch.ones(3), t]}
    state = {**older, "step": 2, "raw": b"bytes", "large": torch.rand(600, 600), "empty": torch.zeros(0, 2)}
    store.write(directory, 1, 1, older, kept=9)
    os.mkfifo(directory / "fifo")
    os.mkfifo(folder / "fifo")
    for part in range(2):
        store.write_part(other, 1, 2, part, 2, state)
        store.write_part(directory, 1, 2, part, 2, state)
    store.write_index(other, 1, 2, 2, kept=9)
    newest = directory / "g000001-s00000002.h5"
    index = (other / newest.name).read_bytes()
    single = store.write(folder / "single", 1, 2, state, kept=9).path.read_bytes()
    np.empty = _filled
    return Place(directory, newest, older, single, index)


_EMPTY, _FILLING = np.empty, [0xA5]


def _filled(shape: Any, dtype: Any = float, *rest: Any, **more: Any) -> Any:
    """Like ``numpy.empty``, with a pattern in place of uninitialised memory."""
    array = _EMPTY(shape, dtype, *rest, **more)
    if array.nbytes and array.nbytes < 1 << 28 and not array.dtype.hasobject:
        array.reshape(-1).view(np.uint8)[:] = _FILLING[0]
    return array


def attempt(place: Place, value: tuple[str, Any]) -> str:
    """Load the newest twice, over different memory patterns; then access it in all other ways."""
    kind, what = value
    source = place.index if kind == "index" else place.single
    match kind:
        case "bytes":
            what = changed_bytes(what, source)
        case "single" | "index":
            what = crafted(source, what)
    put(place.newest, what)
    loads = [_load(place, filling) for filling in (0xA5, 0x5A)]
    if difference(loads[0].state, loads[1].state) is not None:
        raise Wrong("a load depends on what was in memory before")
    for look in (lambda: store.verify(place.newest), lambda: export.describe(place.newest)):
        try:
            look()
        except CheckpointError as error:
            check_line(str(error))
    if loads[0].step == 1 and difference(place.older, loads[0].state) is not None:
        raise Wrong("the older checkpoint was not loaded as it is")
    return REFUSED if loads[0].path != place.newest else ACCEPTED


def _load(place: Place, filling: int) -> store.Loaded:
    _FILLING[0] = filling
    loaded = store.load_newest(place.directory, granted=10**9, on_skip=lambda _path, why: check_line(why))
    if loaded is None:
        raise Wrong("the older checkpoint was not taken")
    return loaded


TARGET = Target("checkpoints", 500, 60, attempt, make, prepare)
