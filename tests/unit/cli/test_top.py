"""``pilot top``: what it remembers, draws, and shows on a small terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from textual.widgets import DataTable, RichLog, Static

from pilot.cli.top.app import Page, Top
from pilot.cli.top.view import AWAY, History, changes, sparkline, strip
from pilot.core.errors import PilotError
from pilot.core.trainer.trainer import Phase
from pilot.protocol.pool_status import NodeStatus, PoolStatus
from pilot.protocol.requests import Explained, Scaled, TrainerPhase
from tests.unit.cli.statuses import STATUS, TRAINER

DEADLINE_S = 60.0
SMALL = (80, 24)
RUNNING = msgspec.structs.replace(
    TRAINER, phase=Phase.RUNNING, reason="", remarks=[], warming=[], waits="imports and set-up"
)


def node(name: str, trainer: str | None, *, leaving: bool = False) -> NodeStatus:
    return NodeStatus(node=name, host=name, job="", trainer=trainer, leaving=leaving, set_aside=False, joined_s=0.0)


def answer(now_s: float, pool: list[NodeStatus], **of_trainer: object) -> PoolStatus:
    trainer = msgspec.structs.replace(RUNNING, **of_trainer)
    return msgspec.structs.replace(STATUS, now_s=now_s, pool=pool, trainers=[trainer])


def test_changes_are_shown_once() -> None:
    before = answer(10.0, [node("n1", "vit"), node("n2", None, leaving=True), node("n3", None)])
    after = answer(
        11.0, [node("n1", "vit", leaving=True), node("n4", "vit")], nodes=["n1", "n4"], remarks=["it is slow"]
    )
    texts = [happening.text for happening in changes(before, after)]
    assert texts == ["n4 joined", "n1 got notice", "n2 left", "n3 was lost", "vit: 1 → 2 nodes", "vit: it is slow"]
    assert changes(after, after) == []
    assert [h.text for h in changes(None, after)] == ["vit gets 2 nodes by plan, had 1"]


def test_a_failure_is_shown_with_its_first_line() -> None:
    failed = answer(2.0, [], phase=Phase.FAILED, reason="it raised\nTraceback", nodes=[])
    assert [h.text for h in changes(answer(1.0, []), failed)] == ["vit: 1 → 0 nodes", "vit failed: it raised"]


def test_rows_have_a_cell_for_each_column_of_time() -> None:
    history = History(column_s=2.0)
    history.note(answer(0.0, [node("n1", "vit")]))
    history.note(answer(1.9, [node("n1", None)]))  # the same column
    history.note(answer(6.0, [node("n2", "vit")]))
    assert list(history.rows["n1"]) == [None, AWAY, AWAY, AWAY]
    assert list(history.rows["n2"]) == ["vit"] * 3


def test_a_node_that_was_away_for_all_of_the_row_is_forgotten() -> None:
    history = History(column_s=1.0)
    history.note(answer(0.0, [node("n1", "vit")]))
    history.note(answer(10_000.0, []))
    assert not history.rows


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([1.0], "▁"), ([0.0, 7.0], "▁█"), ([float("nan"), 3.0, float("inf")], "▁"), ([9, 0, 3, 7], "▁▄█")],
)
def test_sparklines(values: list[float], drawn: str) -> None:
    assert sparkline(values, 3) == drawn


def test_a_strip_shows_the_newest_columns() -> None:
    assert strip(["a", None, AWAY, "b"], ["a", "b"], 3).plain == "· █"


class Answering:
    """A pool that gives each of ``answers`` in turn, then repeats the last one; silent after a trainer was
    cancelled.
    """

    def __init__(self, first: PoolStatus, *others: PoolStatus) -> None:
        self._last = first
        self._answers = iter((first, *others))
        self.cancelled: list[str] = []
        self.scaled: list[int | None] = []

    def status(self) -> PoolStatus:
        if self.cancelled:
            raise PilotError("the coordinator does not answer")
        self._last = next(self._answers, self._last)
        return self._last

    def explain(self, trainer: str) -> Explained:
        return Explained(trainer=trainer, sentences=[f"{trainer} has what it can use"], decision=None)

    def cancel(self, trainer: str) -> TrainerPhase:
        self.cancelled.append(trainer)
        return TrainerPhase(trainer=trainer, phase=Phase.CANCELLED, held="")

    def scale(self, pilots: int | None, by_type: dict[str, int]) -> Scaled:
        assert by_type == {}
        self.scaled.append(pilots)
        return Scaled(pilots=pilots, nodes=2)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await asyncio.sleep(0.01)


def text_of(app: Top, selector: str) -> str:
    return str(app.query_one(selector, Static).render())


def feed_of(app: Top) -> str:
    return "\n".join(line.text for line in app.query_one("#feed", RichLog).lines)


async def watch(pool: Answering) -> None:
    app = Top(pool, lambda trainer, _lines: [f"n1: a line of {trainer}"], every_s=0.05)
    async with app.run_test(size=SMALL) as keys:
        await until(lambda: "n2 joined" in feed_of(app))
        assert app.query_one("#trainers", DataTable).row_count == 1
        assert "polaris-1 on polaris" in text_of(app, "#headline")
        assert "n1" in text_of(app, "#nodes")
        assert "vit; imports and set-up; loss 0.25" in text_of(app, "#selected")
        assert app.query_one("#trainers", DataTable).virtual_size.width <= SMALL[0]
        for key, expected in (("l", "a line of vit"), ("e", "has what it can use")):
            await keys.press(key)
            await until(lambda: isinstance(app.screen, Page))
            await until(lambda text=expected: text in "\n".join(x.text for x in app.screen.query_one(RichLog).lines))
            await keys.press("escape")
        for typed, text in (("3", "keeping 3 pilots"), ("auto", "as many pilots as"), ("-1", "got '-1'")):
            await keys.press("s", *typed, "enter")
            await until(lambda text=text: any(text in note.message for note in app._notifications))
        await keys.press("s", "9", "escape")
        assert pool.scaled == [3, None]
        await keys.press("x", "n", "enter")
        assert pool.cancelled == []
        await keys.press("x", "y", "enter")
        await until(lambda: pool.cancelled == ["vit"])
        await until(lambda: "no answer" in text_of(app, "#headline"))
        await keys.press("q")


def test_on_a_small_terminal() -> None:
    one, two = [node("n1", "vit")], [node("n1", "vit"), node("n2", None)]
    asyncio.run(watch(Answering(answer(1.0, one), answer(3.0, two))))


async def watch_the_order() -> None:
    def answered(*phases: Phase) -> PoolStatus:
        trainers = [msgspec.structs.replace(RUNNING, trainer=f"t{n}", phase=phase) for n, phase in enumerate(phases)]
        return msgspec.structs.replace(answer(1.0, []), trainers=trainers)

    app = Top(Answering(answered(Phase.FINISHED, Phase.RUNNING, Phase.RUNNING)), lambda *_: [], every_s=3600.0)
    async with app.run_test(size=SMALL) as keys:
        table = app.query_one("#trainers", DataTable)
        await until(lambda: table.row_count == 3)
        assert [row.key.value for row in table.ordered_rows] == ["t1", "t2", "t0"]
        assert app.selected is not None and app.selected.trainer == "t1"
        app.show_status(answered(Phase.FINISHED, Phase.FINISHED, Phase.RUNNING))
        await keys.pause()
        assert [row.key.value for row in table.ordered_rows] == ["t2", "t0", "t1"]
        assert app.selected is not None and app.selected.trainer == "t1", "the cursor stays with its trainer"


def test_who_has_not_ended_comes_first() -> None:
    asyncio.run(watch_the_order())
