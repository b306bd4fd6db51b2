"""The pages of a pool and of a study of hostile texts: they are written, quietly, and nothing in them runs."""

from __future__ import annotations

import io
import socket
from contextlib import redirect_stderr
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pilot.cli.main import run
from pilot.host.printable import printable
from tests.browser import needs_browser, shown
from tests.security import hostile_pool

OWN = "document.documentElement.dataset.owned=1"
OWNED = "data-owned="
HTML = [
    f"</script><script>{OWN}</script>",
    f"</title></style><img src=x onerror={OWN}>",
    f"\"><svg onload={OWN}><a href='javascript:{OWN}'>",
    f"' onfocus={OWN} autofocus tabindex=0 x='",
    f"javascript:{OWN}",
    f"</text></svg>]]>--><iframe srcdoc='<script>parent.{OWN}</script>'>",
    "{{ 7*7 }}{% raw %}{body}",
]
TEXT = ["$\\cost$ _^{", "\x00\x1b[2J\x9b31m\u202etxt", "new\nline", "_漢字🙂", "x" * 3000]


class Seen(HTMLParser):
    """What a browser has made of a page: its elements, their attributes, and its text."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.text: list[str] = []
        self.feed(dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def listener() -> socket.socket:
    """Nobody should connect to it."""
    return socket.create_server(("127.0.0.1", 0))


@pytest.fixture(scope="module")
def texts(listener: socket.socket) -> list[str]:
    """All of them; one asks for something from the network."""
    return [*TEXT, *HTML, f"<img src=http://127.0.0.1:{listener.getsockname()[1]}/>"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> tuple[Path, ...]:
    """The pool's page and the study's. Writing them says nothing on stderr."""
    folder = tmp_path_factory.mktemp("hostile")
    hostile_pool.build(folder / "pool", texts)
    said, made = io.StringIO(), (folder / "pool.html", folder / "study.html")
    with redirect_stderr(said):
        for command, page in zip((["report"], ["study", "report", hostile_pool.STUDY]), made, strict=True):
            assert run([*command, "--run-dir", str(folder / "pool"), "--output", str(page)]) == 0
    assert said.getvalue() == ""
    return made


def test_one_figure_that_cannot_be_drawn_leaves_the_others(pages: tuple[Path, ...], texts: list[str]) -> None:
    """One metric of each trainer is too large for matplotlib."""
    page = pages[0].read_text()
    assert page.count("This figure cannot be drawn: ValueError") == len(texts)
    assert [page.count(f">{name}</text>") for name in ("$\\cost$ _^{", "_漢字🙂", "new line")] == [1, 1, 1]


@needs_browser
@pytest.mark.parametrize("page", [0, 1])
def test_no_text_becomes_a_script_an_element_or_a_request(
    page: int, pages: tuple[Path, ...], texts: list[str], listener: socket.socket, tmp_path: Path
) -> None:
    seen = Seen(dom := shown(pages[page], tmp_path))
    assert OWNED not in dom
    assert not {"img", "iframe", "a", "foreignobject"} & seen.elements
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert not [value for _, value in seen.attributes if value.lower().startswith("javascript")]
    everything = "\n".join(seen.text)
    assert [text for text in texts if printable(text) not in everything] == []
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


@needs_browser
def test_this_browser_would_run_them(tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    page = tmp_path / "page.html"
    page.write_text(f"<title>{HTML[1]}")
    assert OWNED in shown(page, tmp_path)
