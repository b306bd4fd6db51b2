"""The shipped site configs: all load, name their sources, and their scripts can be shown; the template is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pilot.site.site import Site
from pilot.site.site_files import list_sites, load_site_file, shipped_dir

REQUIRED = {
    *("local", "slurm_lab", "polaris", "crux", "delta", "perlmutter", "frontera"),
    *("expanse", "derecho", "gautschi", "karolina", "osc", "summit"),
}
SHIPPED = sorted(path.stem for path in shipped_dir().glob("[a-z]*.py"))
TEMPLATE = shipped_dir() / "_template.py"


def test_all_required_sites_are_shipped() -> None:
    assert set(SHIPPED) >= REQUIRED
    assert set(list_sites()) >= REQUIRED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_site_says_what_it_is_and_where_from(name: str) -> None:
    site = load_site_file(name).site
    assert site.name == name
    assert site.description
    assert site.source
    if name not in ("local", "slurm_lab"):
        assert "tried on the machine" in " ".join((site.source, *site.second_hand)), "say whether it was"


def test_summit_is_for_replays() -> None:
    assert "2024-11-15" in load_site_file("summit").site.retired


def test_the_template_is_valid_and_sets_every_field() -> None:
    assert load_site_file(str(TEMPLATE)).site.name == "example"
    assert set(re.findall(r"^    (\w+)=", TEMPLATE.read_text(), re.M)) == set(Site.__struct_fields__)


def test_the_template_explains_every_field() -> None:
    text = TEMPLATE.read_text()
    explained = set(re.findall(r"^    (\w+)=.*# \S", text, re.M))
    before = set(re.findall(r"^    # [^-\n].*\n    (\w+)=", text, re.M))
    assert explained | before == set(Site.__struct_fields__)


def test_no_config_names_a_path_of_the_machine_it_was_written_on() -> None:
    for path in shipped_dir().glob("*.py"):
        assert str(Path.home()) not in path.read_text()
