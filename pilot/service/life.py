"""A pool's history from its journal alone, for its report."""

from __future__ import annotations

from pilot.core.goal import has_session
from pilot.io.entries import Decision
from pilot.io.journal import Contents
from pilot.observation.course import Courses
from pilot.observation.monitor import Monitor
from pilot.observation.page import Life
from pilot.observation.story import Story
from pilot.observation.summary import sentences
from pilot.observation.timeline import TimelineMaker
from pilot.observation.utilisation import utilisation
from pilot.service.settings import remembering_core
from pilot.service.status_view import account, best_for


def life_of(contents: Contents) -> Life:
    """Everything in the journal: it is read once and run through a core."""
    core, monitor, courses = remembering_core(contents), Monitor(), Courses()
    story = Story(contents.header.started_unix_s)
    nodes, happened = TimelineMaker(core), []
    for entry in (entry for segment in contents.segments for entry in segment.entries):
        happened += story.tell(entry)
        for event, commands in nodes.note(entry) if isinstance(entry, Decision) else ():
            monitor.note(entry.now_s, event, commands)
            courses.note(entry.now_s, event, commands)
    what, course = account(core, monitor), nodes.made()
    sessions = {name for name, record in monitor.trainers.items() if has_session(record.metrics)}
    name, site = contents.header.coordinator, str(contents.header.site.get("name", "an unnamed site"))
    use, factor = utilisation(what, best_for(what)), core.config.charge_factor
    return Life(
        name=name,
        summary=sentences(name, site, course, core.trainers, use, factor, sessions),
        timeline=course,
        trainers=core.trainers,
        courses=courses.of,
        happened=happened,
    )
