"""One file from its structure and its arrays, published."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pilot.checkpoint import layout, names, rawio, retention, tree
from pilot.checkpoint.layout import Contents, Dataset
from pilot.checkpoint.structure import FORMAT, Piece, Share, Structure, rows_of

FORMAT_NAME = "pilot checkpoint"


def file(path: Path, about: Structure, contents: Contents) -> int:
    """Publish ``contents`` and the text of ``about`` as ``path``; its size in bytes."""
    text = np.frombuffer(about.to_json(), np.uint8)
    own = [*contents.datasets, Dataset(tree.STRUCTURE, layout.TEXT, (), text, rawio.digest(text))]
    attributes: dict[str, int | str] = {
        "format": FORMAT_NAME,
        "format_version": FORMAT,
        "generation": about.generation,
        "step": about.step,
        "part": about.part,
        "parts": about.parts,
    }
    with rawio.published(path, about.step) as fd:
        retention.sweep(path.parent, os.fstat(fd).st_mtime)
        return layout.write(fd, Contents(own, contents.aliases, contents.elsewhere), attributes)


def single(directory: Path, generation: int, step: int, state: Mapping[str, Any]) -> int:
    """Publish ``state`` as one file; its size in bytes."""
    encoded = tree.encode(state)
    datasets = [layout.dataset(leaf.path, leaf.dtype, leaf.shape, leaf.data) for leaf in encoded.leaves]
    table = {d.path: Share(d.dtype, d.shape, (Piece("", 0, rows_of(d.shape), d.digest),)) for d in datasets}
    about = Structure(generation, step, 0, 0, encoded.tree, table, encoded.aliases)
    path = directory / names.checkpoint_name(generation, step)
    return file(path, about, Contents(datasets, encoded.aliases))
