"""Self-contained HTML pages: without scripts, and nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from pilot.host.printable import printable

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ border-bottom: 1px solid #ccc; padding: .2em .8em; text-align: left }}
th {{ border-bottom: 2px solid #888 }}
figure {{ display: inline-block; margin: 0 1em 1em 0; vertical-align: top }}
figcaption {{ font-weight: bold }}
svg {{ max-width: 100%; height: auto }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def page(title: str, parts: Iterable[str]) -> str:
    """The page of ``parts``, which are HTML; control characters in them are escaped."""
    return printable(_PAGE.format(title=escape(title), body="\n".join(parts)))


def paragraph(text: str, kind: str = "p") -> str:
    """``text`` as an element of this ``kind``."""
    return f"<{kind}>{escape(text)}</{kind}>"


def figure(caption: str, drawing: str) -> str:
    """A drawing, which is SVG, with its caption."""
    return f"<figure>{paragraph(caption, 'figcaption')}{drawing}</figure>"


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """The cells of ``rows`` below the names of their columns."""
    lines = [[paragraph(name, "th") for name in columns]]
    lines += [[paragraph(str(cell), "td") for cell in row] for row in rows]
    return "".join(["<table>", *(f"<tr>{''.join(line)}</tr>" for line in lines), "</table>"])
