"""The generated parts of ARCHITECTURE.md: the core's tables and what each folder imports.

Each lies between ``<!-- generated: name -->`` and ``<!-- end -->``; ``make tables`` rewrites them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from configparser import ConfigParser
from pathlib import Path

import grimp

from pilot.core.trainer.reconcile import QUESTIONS, Rule
from tests.lifecycle import EFFECTS, TRAINER_CHANGES, WORKER_CHANGES, PhaseChange

ROOT = Path(__file__).parents[1]
OURS = ("pilot", "launchers", "site_configs")
SECTION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


def rewritten(text: str) -> str:
    """The document ``text`` with its generated sections brought up to date."""
    return SECTION.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]]()}\n{found[3]}", text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(names: Iterable[str]) -> str:
    """Names formatted as code."""
    return ", ".join(f"`{name}`" for name in names)


# --- the core -----------------------------------------------------------------------------------------------------


def rules() -> str:
    """Which commands follow from which facts about a trainer."""
    return "\n".join(
        f"**{number}. {question.asked}**\n\n{table(('rule', 'the facts', 'what follows'), map(_rule, question.rules))}"
        for number, question in enumerate(QUESTIONS, start=1)
    )


def _rule(rule: Rule) -> list[str]:
    given = code(kind.__name__ for kind in rule.gives) or "nothing"
    return [rule.name, rule.facts, f"{given}; no more is asked" if rule.final else given]


def events() -> str:
    """What each event does."""
    rows = ([f"`{effect.event.__name__}`", effect.noted, effect.asks or "no"] for effect in EFFECTS)
    return table(("event", "what is noted", "new problem"), rows)


def diagram(changes: Iterable[PhaseChange]) -> str:
    """Phases and their transitions, as a Mermaid diagram."""
    return "```mermaid\nstateDiagram-v2\n" + "".join(map(_arrow, changes)) + "```\n"


def _arrow(change: PhaseChange) -> str:
    before, after = change.before or "[*]", change.after or "[*]"
    return f"    {before} --> {after} : {', '.join(cause.__name__ for cause in change.causes)}\n"


# --- the folders --------------------------------------------------------------------------------------------------


def folders() -> str:
    """What each folder is, and its measured imports; the layers are the contract's."""
    imports = _imports()
    rows = [
        [f"`{room.replace('.', '/')}/`", _purpose(room), _rooms(imports[room]), _libraries(imports[room])]
        for room in _layered(imports)
    ]
    return table(("folder", "what it is", "imports", "libraries"), rows)


def layers() -> str:
    """The layers of ``setup.cfg``; a folder imports from lower ones only, never from its siblings."""
    return "```\n" + "\n".join(line.replace("pilot.", "") for line in _layers()) + "\n```\n"


def inner_folders() -> str:
    """What the folders within the larger ones are."""
    inner = sorted(
        path.parent for room in ("core", "service", "research") for path in ROOT.glob(f"pilot/{room}/*/__init__.py")
    )
    names = [str(path.relative_to(ROOT)) for path in inner]
    return table(("folder", "what it is"), ((f"`{name}/`", _purpose(name.replace("/", "."))) for name in names))


def train_folders() -> str:
    """What each folder of ``pilot.train`` is, lowest layer first."""
    rows = ((f"`pilot/train/{name}/`", _purpose(f"pilot.train.{name}")) for name in reversed(_layers("train")))
    return table(("folder", "what it is"), rows)


def _layers(contract: str = "layers") -> list[str]:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup[f"importlinter:contract:{contract}"]["layers"].strip().splitlines()


def _layered(rooms: Iterable[str]) -> list[str]:
    """``rooms``, lowest layer first; those in no layer come last."""
    order = [room.strip() for line in reversed(_layers()) for room in line.split("|")]
    return sorted(rooms, key=lambda room: (order.index(room) if room in order else len(order), room))


def _imports() -> dict[str, set[str]]:
    """What each folder imports: folders and libraries, without the standard library."""
    graph = grimp.build_graph(*OURS, include_external_packages=True, cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        room = _room(module)
        if module.split(".")[0] in OURS and (ROOT / room.replace(".", "/")).is_dir() and room != "pilot":
            imported = map(_room, graph.find_modules_directly_imported_by(module))
            found.setdefault(room, set()).update(i for i in imported if i != room and i not in sys.stdlib_module_names)
    return found


def _room(module: str) -> str:
    first, *rest = module.split(".")
    return f"{first}.{rest[0]}" if first == "pilot" and rest else first


def _rooms(imported: set[str]) -> str:
    inside = [room for room in reversed(_layered(i for i in imported if i.split(".")[0] in OURS)) if room != "pilot"]
    return ", ".join(room.removeprefix("pilot.") for room in inside) or "-"


def _libraries(imported: set[str]) -> str:
    return ", ".join(sorted(i for i in imported if i.split(".")[0] not in OURS)) or "-"


def _purpose(room: str) -> str:
    """The first sentence of its docstring."""
    path = ROOT / room.replace(".", "/") / "__init__.py"
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    return ROLE.sub(r"`\1`", said.split("\n\n")[0].replace("\n", " ").replace("``", "`")).removesuffix(".")


SECTIONS = {
    "rules": rules,
    "events": events,
    "trainers": lambda: diagram(TRAINER_CHANGES),
    "workers": lambda: diagram(WORKER_CHANGES),
    "folders": folders,
    "layers": layers,
    "inner_folders": inner_folders,
    "train_folders": train_folders,
}


if __name__ == "__main__":
    document = ROOT / "ARCHITECTURE.md"
    document.write_text(rewritten(document.read_text()))
