"""Human-readable dialogues with the core: ``> event`` lines and the ``< command`` lines that answer them.

A line ``? cnn`` asks what is known of nodes, and the ``=`` lines say it. A line ``@ 3600`` sets the clock (otherwise
each line takes a second), ``site grace_s=0`` starts on another site.

``PILOT_REWRITE=1 pytest tests/transcripts`` rewrites the answers; then read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from pilot.core import commands, events
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.spec import Checking, Profiling, TrainerSpec
from pilot.core.trainer.trainer import Trainer
from tests.invariants import violations

FILES = sorted(Path(__file__).parent.glob("*.txt"))


ALONE = {
    "cancel": events.TrainerCancelled,
    "clear": events.NodeCleared,
    "decide": events.DecisionDue,
    "drain": events.DrainRequested,
    "due": events.ProfileDue,
    "again": events.NodeRetried,
    "ready": events.WorkerReady,
    "release": events.TrainerReleased,
    "slow": events.WorkerSlow,
}
"""Events of which a line gives all fields."""


def parse(line: str, core: Coordinator) -> events.Event:
    """Parse one event, for example ``formed cnn g2 at 17``."""
    word, *rest = line.split()
    of = (rest[0], int(rest[1][1:])) if len(rest) > 1 and re.fullmatch(r"g\d+", rest[1]) else ()
    match word, rest:
        case _ if word in ALONE:
            return ALONE[word](*rest)
        case "pool", _:
            named = {sign: [r[1:] for r in rest if r[0] == sign] for sign in "+-!@"}
            joined, lost, noticed = (tuple(node.partition("@")[0] for node in named[sign]) for sign in "+-!")
            ends = tuple(map(_end, (r[1:] for r in rest if "@" in r)))
            return events.PoolChanged(joined=joined, lost=lost, noticed=noticed, ends=ends)
        case "submit", [name, low, high, *options]:
            return events.TrainerSubmitted(TrainerSpec(name, int(low), int(high), **_options(options)))
        case "checked", [name, node, result, *words]:
            return events.ScriptChecked(name, node, ProofState(result), " ".join(words))
        case "plan", [number, "failed"]:
            return events.PlanFailed(int(number), "the solver died")
        case "plan", [number, *counts]:
            pairs = [(t, n.split("/")) for t, n in (c.split("=") for c in counts)]
            late = tuple((t, int(n[1])) for t, n in pairs if len(n) > 1)
            plan = Plan(PlanStatus.OPTIMAL, tuple((t, int(n[0])) for t, n in pairs), 0.0, ending=late)
            return events.PlanReady(int(number), plan)
        case "loaded", [name, node, *files]:
            return events.CodeLoaded(name, node, _pairs(files, "="))
        case "exited", [name, node, cause, *detail]:
            origin = detail.pop(0)[1:] if detail and detail[0].startswith("@") else ""
            return events.WorkerExited(name, node, events.ExitCause(cause), " ".join(detail), origin)
        case "formed" | "resumed", [_, _, "at", step]:
            return events.GroupFormed(*of, int(step), resumed=int(step) if word == "resumed" else None)
        case "broken", [_, _, *node]:
            return events.GroupBroken(*of, "a rank process died", node[0] if node else None)
        case "unread" | "damaged", [_, _, node, *reason]:
            unloaded = events.Unloaded(word)
            return events.GroupBroken(*of, f"{node}: {' '.join(reason)}", node, unloaded=unloaded)
        case "resume", [name, *from_scratch]:
            return events.TrainerResumed(name, from_scratch=bool(from_scratch))
        case "unreached", [_, _, *pairs]:
            return events.GroupBroken(*of, "not formed within 60 s", unreached=_pairs(pairs, "-"))
        case "paused", [_, _, "at", step]:
            return events.GroupPaused(*of, int(step))
        case "stalled", [_, _, _, "has", "waited", seconds, *_]:
            return events.GroupStalled(*of, " ".join(rest[2:]), float(seconds))
        case "examined", [_, _, *found]:
            seen = tuple((n, events.StallFinding(s)) for n, s in _pairs(found, "="))
            return events.GroupExamined(*of, seen, _pairs(found, "-"))
        case "saved", [name, node]:
            return events.CheckpointWritten(name, node, core.trainers[name].step)
        case "unsaved", [name, node]:
            return events.CheckpointWritten(name, node, 0, "no space left on device")
        case "published", [name, seconds]:
            return events.CheckpointPublished(name, core.trainers[name].step, float(seconds))
        case "step", [_, _, step, *rate]:
            return events.Progress(*of, int(step), 0, 32 * int(step), float(rate[1][:-2]) if rate else None)
        case "finished", [_, _, step]:
            return events.TrainerFinished(*of, int(step), 32 * int(step))
    raise ValueError(f"not an event: {line}")


def _options(words: list[str]) -> dict[str, Any]:
    """``1,2,4``, ``profile auto`` or ``check require``."""
    match words:
        case ["profile", profile]:
            return {"profile": Profiling(profile)}
        case ["check", check]:
            return {"check": Checking(check)}
        case [sizes]:
            return {"sizes": tuple(map(int, sizes.split(",")))}
    return {}


def _pairs(words: list[str], sign: str) -> tuple[Any, ...]:
    return tuple(tuple(word.split(sign)) for word in words if sign in word)


def _end(word: str) -> tuple[str, float | None]:
    """``n1@90``, or ``n1@never``."""
    node, _, at = word.partition("@")
    return node, None if at == "never" else float(at)


VERBS = {
    commands.StartWorker: "start",
    commands.WriteCheckpoint: "save",
    commands.CheckScript: "check",
    commands.StopWorker: "stop",
    commands.PauseGroup: "pause",
    commands.DissolveGroup: "dissolve",
    commands.ExamineGroup: "examine",
    commands.FormGroup: "form",
    commands.SetCheckpointInterval: "interval",
    commands.ReleaseNode: "release",
    commands.HoldTrainer: "hold",
    commands.CloseTrainer: "close",
}


def show(command: commands.Command, now_s: float) -> str:
    """One command as a line."""
    match command:
        case commands.Solve():
            asked = " ".join(f"{c.trainer}:{c.current_nodes}{_pin(c.pin)}" for c in command.problem.candidates)
            of = f"{command.problem.nodes} nodes"
            if command.problem.ending:
                of += f" and {command.problem.ending} ending in {command.problem.ends_in_s:g} s"
            return f"solve {command.plan_id} for {of}, now {asked} ({command.reason})"
        case commands.SetNodeAside():
            whom, minutes = command.trainer or "all", (command.until_s - now_s) / 60
            return f"set aside {command.node} for {whom}, {minutes:.0f} min ({command.reason})"
        case commands.AskTrial():
            return f"ask for trial {command.number} of {command.study}"
        case commands.TellTrial():
            return f"tell {command.study} that trial {command.number} came to {command.value}"
    words = [VERBS[type(command)]]
    words += [str(value) for name in ("trainer", "node") if (value := getattr(command, name, None))]
    if hasattr(command, "members"):
        words += [f"g{command.generation}", *command.members]
    return f"{' '.join(words)}{_more(command)} ({command.reason})"


def _more(command: commands.Command) -> str:
    match command:
        case commands.StopWorker():
            return f" within {command.within_s:g} s" if command.within_s else ""
        case commands.FormGroup():
            after = f" after g{command.previous}" if command.previous is not None else ""
            known = f", saved {command.saved_step}" if command.saved_step else ""
            return after + known + (f", nothing up to g{command.given_up}" if command.given_up else "")
        case commands.ExamineGroup():
            return ", kill who is stuck" if command.kill else ""
        case commands.SetCheckpointInterval():
            return f" {command.interval_s:.3g} s"
        case commands.CloseTrainer():
            return f" {command.outcome}"
    return ""


def known_of(core: Coordinator, trainer: Trainer) -> list[str]:
    """Which nodes ``trainer`` doubts, which are blamed, and whether it may grow."""
    doubts = [f"doubts {node} ({stage})" for node, stage in trainer.evidence.doubts.items()]
    stays = trainer.stays_at()
    blames = [f"{node} was blamed {len(by)} times" for node, by in core.blame.blames.items() if by]
    return [*doubts, *blames, f"at most {stays[0]} nodes: {stays[1]}" if stays else "it may grow"]


def _pin(pin: int | None) -> str:
    return "" if pin is None else f"!{pin}"


def play(text: str) -> str:
    """The dialogue with the core's own answers."""
    core, now_s, out = Coordinator(), 0.0, []
    for line in text.splitlines():
        now_s += 1
        if line.startswith(("<", "=")):
            continue
        out.append(line)
        if line.startswith("site "):
            core = Coordinator(CoordinatorConfig(**{k: float(v) for k, v in (f.split("=") for f in line.split()[1:])}))
        elif line.startswith("@"):
            now_s = float(line[1:])
        elif line.startswith(">"):
            out += [f"< {show(c, now_s)}" for c in core.handle(now_s, parse(line[1:].strip(), core))]
            assert violations(core) == []
        elif line.startswith("? "):
            out += [f"= {known}" for known in known_of(core, core.trainers[line[2:]])]
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_transcript(path: Path) -> None:
    written = path.read_text()
    answered = play(written)
    if os.environ.get("PILOT_REWRITE"):
        path.write_text(answered)
    assert answered == written
