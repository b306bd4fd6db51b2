"""A replay's report: one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from pilot.core.errors import UserError
from pilot.io.printable import printable
from pilot.observation.words import amount, duration, node_count
from pilot.sim.metrics import U_IN_WORDS
from pilot.sim.replay_plots import HOUR_S, comparison, plots_of
from pilot.sim.sweep import Replay
from pilot.traces.text_files import write_text

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<style>
body {{ font: 15px/1.5 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ border-bottom: 1px solid #ccc; padding: .2em .8em; text-align: right }}
th {{ border-bottom: 2px solid #888 }}
figure {{ display: inline-block; margin: 0 1em 1em 0; vertical-align: top }}
figcaption {{ font-weight: bold }}
svg {{ max-width: 100%; height: auto }}
</style></head><body>
{body}
</body></html>
"""


def make_directory(directory: Path) -> None:
    """Make the report's directory if it is missing: before a replay that takes hours, not after it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the directory {directory}: {error.strerror}") from None


def write_report(
    directory: Path, title: str, replays: Sequence[Replay], labels: Sequence[str], rows: Sequence[Mapping[str, str]]
) -> Path:
    """Write ``index.html`` into ``directory`` and return its path.

    ``rows`` is the table that the command prints, one row per replay; ``labels`` name the replays.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", _table(rows)]
    parts += [f"<p>{html.escape(U_IN_WORDS.format(unit=unit))}</p>" for unit in _units(replays)]
    if len(replays) > 1:
        parts.append(_figure("U of each replay", comparison(replays, labels)))
    for replay, label in zip(replays, labels, strict=True):
        parts.append(f"<h2>{html.escape(label)}</h2>")
        parts.append(f"<p>{html.escape(' '.join(sentences(replay)))}</p>")
        parts += [_figure(caption, drawing) for caption, drawing in plots_of(replay)]
    path = directory / "index.html"
    write_text(path, printable(PAGE.format(title=html.escape(title), body="\n".join(parts))))
    return path


def sentences(replay: Replay) -> list[str]:
    """A replay in plain words, for readers who know neither the papers nor our terms."""
    told, columns = replay.summary, replay.columns
    most, came, taken = int(columns["pool"].max(initial=0)), int(columns["joined"].sum()), int(columns["left"].sum())
    said = [
        f"In {duration(told.reached_h * HOUR_S)} of the trace up to {node_count(most)} were idle at once and"
        f" {amount(told.eq_nodes)} on average: {amount(told.node_hours)} node-hours."
        f" Nodes came {came:,} times and were taken {taken:,} times.",
        f"{told.used:.0%} of that time went into training. {told.completed:,} of {told.submitted:,} trainers were"
        f" completed; all of them processed {told.samples:,.0f} samples.",
    ]
    if told.efficiency is not None:
        said.append(
            f"They trained {told.efficiency:.0%} of what {amount(told.eq_nodes)} dedicated nodes would have (U)."
        )
    if (budget := replay.case.budget) is not None and told.budget_ended_h is not None:
        said.append(f"Then its budget of {budget:g} node-hours was used up, and the pool drained.")
    elif budget is not None:
        said.append(f"Of its budget of {budget:g} node-hours {told.node_hours / budget:.0%} was used.")
    return said if told.complete else [*said, "The replay was interrupted before the end of the trace."]


def _units(replays: Sequence[Replay]) -> list[str]:
    return list(dict.fromkeys(replay.summary.unit for replay in replays))


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(v)}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{drawing}</figure>"
