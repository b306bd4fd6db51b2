"""Site files are found by name or path, and a bad one gives one clear line with file and line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pilot.core.errors import SiteError
from pilot.site.site_files import list_sites, load_site, load_site_file, site_mistakes, user_dir

GOOD = 'from pilot.site.site import Site\nsite = Site(name="mine", scheduler="local")\n'


@pytest.fixture
def own_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = user_dir()
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_sites_by_name_and_by_path(own_sites: Path) -> None:
    path = write(own_sites, GOOD)
    write(own_sites, GOOD, "local.py")
    write(own_sites, GOOD, "_draft.py")
    assert load_site("mine").name == load_site(str(path)).name == "mine"
    assert load_site("local").name == "local", "a shipped site comes first"
    assert list_sites()["mine"] == path
    assert not {"_draft", "_template"} & set(list_sites())


def test_an_unknown_name_lists_what_there_is(own_sites: Path) -> None:
    write(own_sites, GOOD)
    with pytest.raises(
        SiteError, match=r"unknown site 'pollaris' \(did you mean polaris\?\); there are: .*local, mine,"
    ):
        load_site("pollaris")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"no such site file: .*nothing\.py"):
        load_site(str(tmp_path / "nothing.py"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nsite == = 2\n", r"mine\.py:2: invalid syntax"),
        ("import os\n\nos.environ['NOT_THERE_AT_ALL']\n", r"mine\.py:3: KeyError: 'NOT_THERE_AT_ALL'"),
        ("import not_installed_at_all\n", r"mine\.py:1: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", r"mine\.py:1: SystemExit: 3"),
        ("x = '\0'\n", r"mine\.py:1: source code string cannot contain null bytes"),
        ("x = 1\n", r"mine\.py: it must assign site = Site"),
        (GOOD + "provider = 3\n", r"mine\.py: provider must be a function"),
        (GOOD.replace("local", "lokal"), r"mine\.py:2: scheduler: expected .*, got 'lokal'"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SiteError, match=message) as caught:
        load_site(str(path))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


def test_all_mistakes_of_a_file_line_by_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'from pilot.site.site import Site\nsite = Site(name="mine", sheduler="local", max_jobs=0)\n')
    assert [line.split(":")[0] for line in site_mistakes(str(path))] == ["scheduler", "max_jobs", "sheduler"]
    assert site_mistakes("local") == []
    assert site_mistakes("no-such-site")[0].startswith("unknown site")


def test_the_provider_hook_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "def provider(site):\n    return site.name\n")
    loaded = load_site_file(str(path))
    assert loaded.provider is not None
    assert loaded.provider(loaded.site) == "mine"
    assert load_site_file("local").provider is None


def test_loading_leaves_no_bytecode_behind(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    before = sys.dont_write_bytecode
    load_site(str(path))
    assert list(tmp_path.iterdir()) == [path]
    assert sys.dont_write_bytecode == before
