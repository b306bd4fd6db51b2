"""How many pilots to keep, of each type of nodes."""

from __future__ import annotations

import pytest

from pilot.core.errors import UserError
from pilot.site.pilot_counts import check, parse, text_of
from pilot.site.site import Site

PLAIN = Site(name="plain", scheduler="slurm")
TYPED = Site(name="mixed", scheduler="slurm", node_types={"a100": {"partition": "a"}, "a40": {"partition": "b"}})


@pytest.mark.parametrize(
    ("texts", "counts"),
    [([], None), (["auto"], None), (["8"], {"": 8}), (["0"], {"": 0}), (["a:8", "b:0"], {"a": 8, "b": 0})],
)
def test_counts_are_read_and_written(texts: list[str], counts: dict[str, int] | None) -> None:
    assert parse(texts) == counts
    assert parse(text_of(counts).split(",")) == counts


@pytest.mark.parametrize("texts", [["-1"], ["x"], [":8"], ["a:"], ["a:x"], ["9999999999"], ["٣"], [""]])
def test_what_is_no_number_is_refused(texts: list[str]) -> None:
    with pytest.raises(UserError, match="must be a number from 0 to 1000000"):
        parse(texts)


@pytest.mark.parametrize("texts", [["a:1", "a:2"], ["1", "2"], ["a:1", "2"], ["auto", "a:1"], ["1", "auto"]])
def test_a_number_given_twice_is_refused(texts: list[str]) -> None:
    with pytest.raises(UserError, match="give one number, or one for each type"):
        parse(texts)


@pytest.mark.parametrize(
    ("site", "counts", "said"),
    [
        (TYPED, None, "say how many pilots to keep of each: --pilots a100:N --pilots a40:N"),
        (TYPED, {"": 3}, "say how many pilots to keep of each"),
        (TYPED, {"a100": 3, "h100": 1}, "site mixed has no type of nodes 'h100'; there are: a100, a40"),
        (PLAIN, {"a100": 3}, "site plain has no type of nodes 'a100'; it names none"),
    ],
)
def test_counts_must_be_by_the_sites_types(site: Site, counts: dict[str, int] | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check(site, counts)


def test_counts_by_the_sites_types_are_right() -> None:
    check(TYPED, {"a40": 0})
    check(PLAIN, {"": 4})
    check(PLAIN, None)
