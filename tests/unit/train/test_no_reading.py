"""``pilot/train`` reads no code of the script, searches no heap, and writes into no object's memory; it inspects frames
only to name a file and a line, and the check at the values of variables.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TRAIN = Path(__file__).parents[3] / "pilot" / "train"
MODULES = {"dis", "ctypes", "_ctypes", "opcode"}
READING = {
    "get_referrers",
    "get_referents",
    "get_objects",
    "getsource",
    "getsourcelines",
    "getclosurevars",
    "__code__",
    "__closure__",
    "co_code",
    *MODULES,
}
FRAMES = {
    "_getframe",
    "_current_frames",
    "currentframe",
    "extract_stack",
    "f_back",
    "f_code",
    "f_locals",
    "getframeinfo",
    "gi_frame",
    "settrace",
    "setprofile",
    "tb_frame",
    "walk_stack",
}
MAY_INSPECT_FRAMES = {"script/refusal.py", "check"}


def used(code: str) -> Iterator[str]:
    """The names of modules, attributes and variables in ``code``."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                yield from (part for one in names for part in one.name.split("."))
            case ast.ImportFrom(module=module, names=names):
                yield from (module or "").split(".")
                yield from (one.name for one in names)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                yield name
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                yield name


def forbidden(path: str) -> set[str]:
    sees_frames = path in MAY_INSPECT_FRAMES or path.partition("/")[0] in MAY_INSPECT_FRAMES
    return READING if sees_frames else READING | FRAMES


def test_nothing_reads_code_or_writes_into_memory() -> None:
    files = {str(path.relative_to(TRAIN)): path.read_text() for path in TRAIN.rglob("*.py")}
    assert len(files) > 50
    assert {path: names for path, code in files.items() if (names := {*used(code)} & forbidden(path))} == {}
