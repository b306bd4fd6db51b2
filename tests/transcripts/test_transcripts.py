"""Human-readable dialogues with the core: ``> event`` lines and the ``< command`` lines that answer them.

A line ``? cnn`` asks what is known of nodes, and the ``=`` lines say it. A line ``@ 3600`` sets the clock (otherwise
each line takes a second), ``site grace_s=0`` starts on another site.

``PILOT_REWRITE=1 pytest tests/transcripts`` rewrites the answers; then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilot.core.commands import (
    AskTrial,
    CheckScript,
    CloseTrainer,
    Command,
    DissolveGroup,
    ExamineGroup,
    FormGroup,
    HoldTrainer,
    PauseGroup,
    ReleaseNode,
    SetCheckpointInterval,
    SetNodeAside,
    Solve,
    StartWorker,
    StopWorker,
    TellTrial,
    WriteCheckpoint,
)
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.events import (
    CheckpointPublished,
    CheckpointWritten,
    CodeLoaded,
    DecisionDue,
    DrainRequested,
    Event,
    ExitCause,
    GroupBroken,
    GroupExamined,
    GroupFormed,
    GroupPaused,
    GroupStalled,
    NodeCleared,
    NodeRetried,
    PlanFailed,
    PlanReady,
    PoolChanged,
    ProfileDue,
    Progress,
    ScriptChecked,
    StallFinding,
    TrainerCancelled,
    TrainerFinished,
    TrainerReleased,
    TrainerResumed,
    TrainerSubmitted,
    Unloaded,
    WorkerExited,
    WorkerReady,
    WorkerSlow,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.spec import Checking, Profiling, TrainerSpec
from pilot.core.trainer.trainer import Trainer
from tests.invariants import violations

FILES = sorted(Path(__file__).parent.glob("*.txt"))


def parse(line: str, core: Coordinator) -> Event:
    """Parse one event, for example ``formed cnn g2 at 17``."""
    word, *rest = line.split()
    match word, rest:
        case "pool", _:
            named = {r[0]: [n[1:] for n in rest if n[0] == r[0]] for r in rest}
            nodes = {s: tuple(NodeId(n.partition("@")[0]) for n in named.get(s, ())) for s in "+-!"}
            ends = tuple(map(_end, (r[1:] for r in rest if "@" in r)))
            return PoolChanged(joined=nodes["+"], lost=nodes["-"], noticed=nodes["!"], deadline_s=None, ends=ends)
        case "submit", [name, low, high]:
            return TrainerSubmitted(TrainerSpec(TrainerId(name), int(low), int(high)))
        case "submit", [name, low, high, "profile", profile]:
            return TrainerSubmitted(TrainerSpec(TrainerId(name), int(low), int(high), profile=Profiling(profile)))
        case "submit", [name, low, high, "check", check]:
            return TrainerSubmitted(TrainerSpec(TrainerId(name), int(low), int(high), check=Checking(check)))
        case "checked", [name, node, result, *line]:
            return ScriptChecked(TrainerId(name), NodeId(node), ProofState(result), " ".join(line))
        case "due", [name]:
            return ProfileDue(TrainerId(name))
        case "submit", [name, low, high, sizes]:
            some = tuple(map(int, sizes.split(",")))
            return TrainerSubmitted(TrainerSpec(TrainerId(name), int(low), int(high), sizes=some))
        case "cancel", [name]:
            return TrainerCancelled(TrainerId(name))
        case "drain", []:
            return DrainRequested()
        case "plan", [number, "failed"]:
            return PlanFailed(PlanId(int(number)), "the solver died")
        case "plan", [number, *counts]:
            pairs = [(TrainerId(t), n.split("/")) for t, n in (c.split("=") for c in counts)]
            late = tuple((t, int(n[1])) for t, n in pairs if len(n) > 1)
            plan = Plan(PlanStatus.OPTIMAL, tuple((t, int(n[0])) for t, n in pairs), 0.0, ending=late)
            return PlanReady(PlanId(int(number)), plan)
        case "ready", [name, node]:
            return WorkerReady(TrainerId(name), NodeId(node))
        case "slow", [name, node]:
            return WorkerSlow(TrainerId(name), NodeId(node))
        case "loaded", [name, node, *files]:
            pairs = tuple((path, version) for path, version in (file.split("=") for file in files))
            return CodeLoaded(TrainerId(name), NodeId(node), pairs)
        case "decide", []:
            return DecisionDue()
        case "again", [node, *names]:
            return NodeRetried(NodeId(node), TrainerId(names[0]) if names else None)
        case "clear", [node]:
            return NodeCleared(NodeId(node))
        case "exited", [name, node, cause, *detail]:
            return WorkerExited(TrainerId(name), NodeId(node), ExitCause(cause), " ".join(detail))
        case "formed", [name, generation, "at", step]:
            return GroupFormed(TrainerId(name), Generation(int(generation[1:])), int(step))
        case "resumed", [name, generation, "at", step]:
            return GroupFormed(TrainerId(name), Generation(int(generation[1:])), int(step), resumed=int(step))
        case "broken", [name, generation, *node]:
            noticed = NodeId(node[0]) if node else None
            return GroupBroken(TrainerId(name), Generation(int(generation[1:])), "a rank process died", noticed)
        case "unread" | "damaged", [name, generation, node, *reason]:
            of, unloaded = (TrainerId(name), Generation(int(generation[1:]))), Unloaded(word)
            return GroupBroken(*of, f"{node}: {' '.join(reason)}", NodeId(node), unloaded=unloaded)
        case "release", [name]:
            return TrainerReleased(TrainerId(name))
        case "resume", [name, *from_scratch]:
            return TrainerResumed(TrainerId(name), from_scratch=bool(from_scratch))
        case "unreached", [name, generation, *pairs]:
            unreached = tuple((NodeId(a), NodeId(b)) for a, b in (pair.split("-") for pair in pairs))
            why = "not formed within 60 s"
            return GroupBroken(TrainerId(name), Generation(int(generation[1:])), why, unreached=unreached)
        case "paused", [name, generation, "at", step]:
            return GroupPaused(TrainerId(name), Generation(int(generation[1:])), int(step))
        case "stalled", [name, generation, node, "has", "waited", seconds, *what]:
            reason = " ".join([node, "has", "waited", seconds, *what])
            return GroupStalled(TrainerId(name), Generation(int(generation[1:])), reason, float(seconds))
        case "looked", [name, generation, *found]:
            seen = tuple((NodeId(n), StallFinding(s)) for n, s in (f.split("=") for f in found if "=" in f))
            unreached = tuple((NodeId(a), NodeId(b)) for a, b in (f.split("-") for f in found if "-" in f))
            return GroupExamined(TrainerId(name), Generation(int(generation[1:])), seen, unreached)
        case "saved", [name, node]:
            return CheckpointWritten(TrainerId(name), NodeId(node), core.trainers[TrainerId(name)].step)
        case "unsaved", [name, node]:
            return CheckpointWritten(TrainerId(name), NodeId(node), 0, "no space left on device")
        case "published", [name, seconds]:
            return CheckpointPublished(TrainerId(name), core.trainers[TrainerId(name)].step, float(seconds))
        case "step", [name, generation, step]:
            return Progress(TrainerId(name), Generation(int(generation[1:])), int(step), 0, 32 * int(step))
        case "step", [name, generation, step, "at", per_s]:
            count = int(step)
            return Progress(TrainerId(name), Generation(int(generation[1:])), count, 0, 32 * count, float(per_s[:-2]))
        case "finished", [name, generation, step]:
            return TrainerFinished(TrainerId(name), Generation(int(generation[1:])), int(step), 32 * int(step))
    raise ValueError(f"not an event: {line}")


def _end(word: str) -> tuple[NodeId, float | None]:
    """``n1@90``, or ``n1@never``."""
    node, _, at = word.partition("@")
    return NodeId(node), None if at == "never" else float(at)


def show(command: Command, now_s: float) -> str:
    """One command as a line."""
    match command:
        case Solve():
            asked = " ".join(f"{c.trainer}:{c.current_nodes}{_pin(c.pin)}" for c in command.problem.candidates)
            of = f"{command.problem.nodes} nodes"
            if command.problem.ending:
                of += f" and {command.problem.ending} ending in {command.problem.ends_in_s:g} s"
            return f"solve {command.plan_id} for {of}, now {asked} ({command.reason})"
        case StartWorker() | WriteCheckpoint():
            verb = "start" if isinstance(command, StartWorker) else "save"
            return f"{verb} {command.trainer} {command.node} ({command.reason})"
        case CheckScript():
            return f"check {command.trainer} {command.node} ({command.reason})"
        case StopWorker():
            within = f" within {command.within_s:g} s" if command.within_s else ""
            return f"stop {command.trainer} {command.node}{within} ({command.reason})"
        case FormGroup():
            after = f" after g{command.previous}" if command.previous is not None else ""
            known = f", saved {command.saved_step}" if command.saved_step else ""
            known += f", nothing up to g{command.given_up}" if command.given_up else ""
            members = " ".join(command.members)
            return f"form {command.trainer} g{command.generation} {members}{after}{known} ({command.reason})"
        case ExamineGroup():
            then = ", kill who is stuck" if command.kill else ""
            members = " ".join(command.members)
            return f"look at {command.trainer} g{command.generation} {members}{then} ({command.reason})"
        case PauseGroup() | DissolveGroup():
            verb = {PauseGroup: "pause", DissolveGroup: "dissolve"}[type(command)]
            return f"{verb} {command.trainer} g{command.generation} {' '.join(command.members)} ({command.reason})"
        case SetCheckpointInterval():
            return f"pace {command.trainer} {command.node} {command.interval_s:.3g} s ({command.reason})"
        case ReleaseNode():
            return f"release {command.node} ({command.reason})"
        case HoldTrainer():
            return f"hold {command.trainer} ({command.reason})"
        case SetNodeAside():
            whom, minutes = command.trainer or "all", (command.until_s - now_s) / 60
            return f"set aside {command.node} for {whom}, {minutes:.0f} min ({command.reason})"
        case AskTrial():
            return f"ask for trial {command.number} of {command.study}"
        case TellTrial():
            return f"tell {command.study} that trial {command.number} came to {command.value}"
        case CloseTrainer():
            return f"close {command.trainer} {command.outcome} ({command.reason})"


def known_of(core: Coordinator, trainer: Trainer) -> list[str]:
    """Which nodes ``trainer`` doubts, which are blamed, and whether it may grow."""
    doubts = [f"doubts {node} ({stage})" for node, stage in trainer.evidence.doubts.items()]
    stays = trainer.stays_at()
    blames = [f"{node} was blamed {times} times" for node, times in core.blame.blames.items()]
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
            out += [f"= {known}" for known in known_of(core, core.trainers[TrainerId(line[2:])])]
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_transcript(path: Path) -> None:
    written = path.read_text()
    answered = play(written)
    if os.environ.get("PILOT_REWRITE"):
        path.write_text(answered)
    assert answered == written
