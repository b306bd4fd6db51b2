"""The template of site files, ``site_configs/_template.py``: its comments on fields, and new files made from it."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import msgspec

from pilot.site.site import Site
from pilot.site.site_files import shipped_dir

HEADER = '''"""Site {name}. Comments give each default field an example: see docs/reference/site-file.md.

    pilot sites check {name}     # every mistake, with the field and an example
    pilot sites show {name}      # the exact script that would be submitted
    pilot doctor --site {name}   # what would go wrong, and how to fix it
"""
'''


@dataclass(frozen=True, slots=True)
class _Line:
    """The line of a field: the text before and after its value, and what its comment says."""

    number: int  #: from 0
    before: str
    after: str
    comment: str


def comments() -> dict[str, str]:
    """Return what the template says about each field, in its order."""
    return {name: line.comment for name, line in _fields(_template()).items()}


def new_file(values: Mapping[str, object]) -> str:
    """Return a site file with these ``values``, by field; the template's other fields are comments."""
    text = _template()
    lines = text.splitlines()
    for name, line in _fields(text).items():
        kept = f"{line.before}{_literal(values[name])}{line.after}" if name in values else _off(lines[line.number])
        lines[line.number] = kept
    end = ast.parse(text).body[0].end_lineno  # of its docstring
    return HEADER.format(name=values["name"]) + "\n".join(lines[end:]) + "\n"


def value_of(field: str, text: str) -> object:
    """Return ``text`` as a value of ``field``; unchanged if it is none, for the site to refuse it."""
    kind = next(one.type for one in msgspec.structs.fields(Site) if one.name == field)
    try:
        return msgspec.convert(None if text == "None" else text, kind, strict=False)
    except msgspec.ValidationError:
        return text


@cache
def _template() -> str:
    return (shipped_dir() / "_template.py").read_text()


def _fields(text: str) -> dict[str, _Line]:
    lines = text.splitlines()
    call = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    found = {}
    for field in call.keywords:
        assert field.arg is not None and field.value.end_col_offset is not None
        number = field.lineno - 1
        before, after = lines[number][: field.value.col_offset], lines[number][field.value.end_col_offset :]
        comment = after.partition("#")[2] or lines[number - 1].partition("#")[2]  # beside it, or else above
        found[field.arg] = _Line(number, before, after, comment.strip())
    return found


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _off(line: str) -> str:
    """The line as a comment."""
    code = line.lstrip()
    return f"{line[: len(line) - len(code)]}# {code}"
