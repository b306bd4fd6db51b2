"""Pilots that fail: told once per cause, and submission pauses unless nodes are at fault."""

from __future__ import annotations

import pytest

from pilot.provisioning.failures import SICK_POLLS, Failures
from pilot.provisioning.nodes_aside import Run
from pilot.provisioning.retry import Retry, Troubles
from pilot.site.site import Scheduler, Site

OLD = Run(frozenset(["n9"]), -500, -490, -480)
"""A pilot that joined long ago."""


class Told:
    """Failures on a site with this scheduler, and what is told about them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.site = Site(name="s", scheduler=scheduler, poll_s=30)
        self.texts: list[str] = []
        troubles = Troubles(lambda event: self.texts.append(event.text))
        self.failures = Failures(self.site, troubles, Retry())

    def fail(self, at_s: float, node: str, reason: str, *joined: Run) -> float:
        """A pilot fails; returns how long nothing is submitted."""
        run = Run(frozenset([node] if node else []), at_s - 20, at_s - 10, at_s, reason)
        self.failures.judge(at_s, joined, [run])
        return max(0.0, self.failures.backoff.again_s - at_s)


def test_a_cause_is_told_once_until_pilots_work() -> None:
    told = Told("slurm")
    pauses = [
        told.fail(0, "n1", "exit 127: python9: not found on n1"),
        told.fail(100, "n2", "exit 127: python9: not found on n2"),
        told.fail(300, "n3", "exit 1: no space left"),
    ]
    assert pauses == [30, 60, 120]
    assert told.texts == [
        "a pilot failed on n1: exit 127: python9: not found on n1",
        "a pilot failed on n3: exit 1: no space left",
    ]
    told.failures.over()
    told.fail(900, "", "exit 1: no space left")
    assert told.texts[2:] == ["pilots join again", "a pilot failed: exit 1: no space left"]


@pytest.mark.parametrize("scheduler", ["slurm", "lsf"])
def test_a_node_at_fault_holds_up_no_other_one(scheduler: Scheduler) -> None:
    told = Told(scheduler)
    assert told.fail(0, "n1", "exit 1", OLD) == 0
    assert told.texts == ["n1 is set aside for 10 min: pilots join elsewhere, and one failed there: exit 1"]
    assert told.failures.excluded == {"n1"}
    (shown,) = told.failures.set_aside(60)
    assert (shown.node, shown.left_s, shown.reason) == ("n1", 540, "a pilot failed there: exit 1")
    assert told.fail(200, "n1", "exit 1", OLD) == 30, "it was not kept from there"


def test_where_pilots_cannot_be_kept_from_a_node_the_pause_is_short() -> None:
    told = Told("pbspro")
    pauses = [told.fail(at_s, "n1", "exit 1", OLD) for at_s in range(0, 600, 100)]
    assert pauses == [30, 60, *[SICK_POLLS * 30] * 4]
    assert told.texts[0].startswith("n1 cannot be set aside, as pbspro has no option for that: ")
    assert told.failures.set_aside(0) == []
    assert told.failures.excluded == frozenset()
