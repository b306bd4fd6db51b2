"""A pool's history in words and as a page; the page in a real browser."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pilot.core.commands import CloseTrainer, FormGroup, Solve
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.events import (
    GroupFormed,
    PlanReady,
    Progress,
    TrainerCancelled,
    TrainerHeld,
    TrainerReleased,
    TrainerRemoved,
    TrainerSubmitted,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.core.trainer.spec import TrainerSpec
from pilot.history.figures import svg
from pilot.history.page import Life, render
from pilot.history.story import Story, Topic
from pilot.history.summary import sentences
from pilot.history.trainer_progress import POINTS_MAX, ProgressPoint, ProgressRecorder, TrainerProgress
from pilot.history.utilisation import Utilisation
from pilot.history.words import amount
from pilot.rundir.entries import Decision
from tests.browser import needs_browser, shown
from tests.property.world import World
from tests.unit.history.test_timeline import CNN, lived_through, of


def decisions(world: World) -> list[Decision]:
    return [Decision(i, t, e, tuple(c)) for i, (t, e, c) in enumerate(world.history)]


def life(world: World, name: str = "a-pool") -> Life:
    core, recorder, story = Coordinator(world.config), ProgressRecorder(), Story(0.0)
    history = decisions(world)
    timeline = of(world, core)
    for d in history:
        recorder.note(d.now_s, d.event, d.commands)
    events = [event for d in history for event in story.events_of(d)]
    use = Utilisation(eq_nodes=1.5, work=3.0, static_work=4.0)
    return Life(
        name,
        sentences(name, "polaris", timeline, core.trainers, use, 1.0, core.trainers),
        timeline,
        core.trainers,
        recorder.of,
        events,
    )


def test_the_summary_adds_up() -> None:
    world = lived_through()
    shown = life(world)
    spans = sum(span.end_s - span.start_s for span in shown.timeline.spans)
    text = " ".join(shown.summary)
    assert f"held up to 2 nodes: {amount(spans / 3600)} node-hours in total" in text
    assert "Preempted with notice: 1 node; lost without notice: 1 node" in text
    assert "75%" in text


def test_samples_of_sessions_and_steps_of_torchrun_s_processes_are_not_added_up() -> None:
    world = lived_through()
    core, use = Coordinator(world.config), Utilisation(eq_nodes=1.5, work=3.0, static_work=4.0)
    timeline = of(world, core)
    core.trainers[CNN].samples = 7
    for sessions, text in (([CNN], "processed 7 samples."), ([], "processed 7 steps of torchrun processes.")):
        assert text in " ".join(sentences("p", "s", timeline, core.trainers, use, 1.0, sessions))


def test_a_pool_in_which_nothing_happened() -> None:
    lines = sentences("p", "s", of(World()), {}, Utilisation(0.0, 0.0, None), 1.0, ())
    assert lines[1:] == ["Nothing was submitted.", "No node was preempted or lost."]
    assert "None." in render(life(World()))


def test_the_page_names_nodes_in_short() -> None:
    shown_life = life(World(), "the pool on n7.pilot-1000-fu6bbncn3cnmni6l")
    assert "<h1>" in render(shown_life) and "pilot-1000" not in render(shown_life)


def test_a_long_run_keeps_its_shape_in_few_points() -> None:
    progress = TrainerProgress()
    for number in range(20 * POINTS_MAX):
        progress.add(ProgressPoint(float(number), number, number, None, {}))
    assert POINTS_MAX / 2 <= len(progress.points) <= POINTS_MAX
    gaps = {b.samples - a.samples for a, b in zip(progress.points, progress.points[1:], strict=False)}
    assert max(gaps) <= 2 * min(gaps)


def test_rescales_say_what_paused_them() -> None:
    """A planned change pauses for as long as its ranks measured; the first group paused nothing."""
    world, recorder = lived_through(), ProgressRecorder()
    for d in decisions(world):
        recorder.note(d.now_s, d.event, d.commands)
        if isinstance(d.event, GroupFormed) and d.event.generation == Generation(2):
            progress = Progress(CNN, Generation(2), 9, 0, 90, rescale_s=0.25, metrics=(("loss", 0.5),))
            recorder.note(d.now_s, progress, [])
    first, second = recorder.of[CNN].rescales
    assert (first.before, first.after, first.reason, first.paused_s) == (0, 2, "start", None)
    assert (second.before, second.after, second.reason, second.paused_s) == (2, 1, "planned", 0.25)
    assert recorder.of[CNN].points[-1].metrics == {"loss": 0.5}


def test_a_rescale_has_what_ended_the_group_before_it() -> None:
    """Only nodes that are lost interrupt a trainer; a hold, a cancellation or a plan is somebody's wish."""
    world = World()
    world.join(2)
    world.submit("cnn", 1, 2)
    world.settle()
    for event in (TrainerHeld(CNN), TrainerReleased(CNN), TrainerCancelled(CNN)):
        world.send(event)
        world.settle()
    world.resume(CNN)
    world.settle()
    world.join(1, "m")
    world.lose(world.nodes[:2])
    world.settle()
    world.submit("other", 1, 1)
    world.settle(lambda problem: _all_for(problem, "other"))
    world.finish(TrainerId("other"))
    world.settle()
    reasons = [rescale.reason for rescale in life(world).progress[CNN].rescales]
    assert reasons == ["start", "held by the user", "cancelled by the user", "nodes lost", "no nodes by plan"]


def _all_for(problem: Problem, name: str) -> Plan:
    counts = tuple((c.trainer, problem.nodes if c.trainer == name else 0) for c in problem.candidates)
    return Plan(PlanStatus.OPTIMAL, counts, 0.0)


def test_another_trainer_of_a_name_has_its_own_curves_and_nodes() -> None:
    world = lived_through()
    world.join(1, "m")
    world.settle()
    world.steps[CNN] = 500
    world.step(CNN)
    late = world.history[-1][1]
    world.send(TrainerCancelled(CNN))
    world.settle()
    world.send(TrainerRemoved(CNN))
    for earlier in (world.generations, world.saved, world.steps):
        earlier.clear()
    world.send(TrainerSubmitted(TrainerSpec(CNN, 1, 2)))
    world.send(late)
    world.settle()
    world.step(CNN)
    shown = life(world)
    assert [point.step for point in shown.progress[CNN].points] == [1]
    assert [rescale.reason for rescale in shown.progress[CNN].rescales] == ["start"]
    removed = [span.removed for span in shown.timeline.spans if span.trainer == CNN]
    assert set(removed) == {True, False} and removed == sorted(removed, reverse=True)
    assert "removed trainers" in render(shown)


def test_what_is_trained_again_is_drawn_once() -> None:
    """A trainer that starts again from scratch, or from a checkpoint, has one value for each step."""
    recorder = ProgressRecorder()
    recorder.note(0.0, TrainerSubmitted(TrainerSpec(CNN)), [])
    for generation, begins in ((1, 0), (2, 2)):
        name = CNN, Generation(generation)
        recorder.note(generation, TrainerReleased(CNN), [FormGroup(*name, (NodeId("n1"),), None, "")])
        recorder.note(generation, GroupFormed(*name, begins, 0), [])
        for step in range(begins + 1, begins + 4):
            recorder.note(generation, Progress(*name, step, 0, 10 * step), [])
    assert [point.step for point in recorder.of[CNN].points] == [1, 2, 3, 4, 5]


def test_the_story_of_two_nodes() -> None:
    world = lived_through()
    story = Story(0.0)
    events = [event for entry in decisions(world) for event in story.events_of(entry)]
    plan, group = "cnn: gets 2 nodes by plan, had 0", "cnn: training on 2 nodes"
    for text in ("n1, n2 joined", group, plan, "n2 got notice", "n2 left", "n1 lost without notice"):
        assert any(event.text.startswith(text) for event in events), text
    assert {event.kind for event in events} >= {Topic.NODE, Topic.TRAINER, Topic.PLAN, Topic.GROUP}


def test_a_plan_changes_what_was_held_when_it_was_asked_for_and_a_late_one_is_left_out() -> None:
    world, story = World(CoordinatorConfig(arrivals_s=2.0)), Story(0.0)
    world.join(2)
    world.send(TrainerSubmitted(TrainerSpec(CNN)))
    world.pass_time(10.0)
    [solve] = [command for command in world.pending if isinstance(command, Solve)]
    world.settle()
    stale = Plan(PlanStatus.OPTIMAL, ((CNN, 0),), 0.0)
    world.send(PlanReady(PlanId(solve.plan_id - 1), stale))
    events = [event for entry in decisions(world) for event in story.events_of(entry)]
    assert [event.text for event in events if event.kind is Topic.PLAN] == ["cnn: gets 2 nodes by plan, had 1"]


class Balanced(HTMLParser):
    """Raises if an element is closed that is not open."""

    VOID = frozenset({"meta", "path", "use", "br", "image", "line", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag not in self.VOID or tag in ("rect", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag, attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID or tag in ("rect", "line"):
            assert self.open.pop() == tag


def test_names_are_text_and_the_page_is_whole() -> None:
    page = render(life(lived_through(), name="<script>alert(1)</script>"))
    assert "<script>alert(1)" not in page
    assert not re.search(r'(src|href)="(?!#)', page)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []


def test_without_matplotlib_each_figure_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "figures need matplotlib: pip install &#x27;pilot-train[plots]&#x27;" in svg(lambda _: None, 1.0, 1.0)


@needs_browser
def test_a_browser_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render(life(lived_through())))
    assert '<span id="from">0.0</span>' in shown(path, tmp_path)  # its script has run


def test_a_trainer_that_ended_has_its_end() -> None:
    recorder = ProgressRecorder()
    recorder.note(0.0, TrainerSubmitted(TrainerSpec(TrainerId("a"))), [])
    recorder.note(5.0, Progress(TrainerId("a"), Generation(1), 1, 0, 1), [CloseTrainer(TrainerId("a"), "finished", "")])
    assert recorder.of[TrainerId("a")].ended_s == 5.0
