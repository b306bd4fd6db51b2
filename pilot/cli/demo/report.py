"""What the demo checks and prints at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pilot.cli.demo.play import TRAINERS, DemoRun
from pilot.cli.options import to_json
from pilot.cli.rows import aligned, number
from pilot.core.ids import TrainerId
from pilot.history.ledger import LedgerProof, proof
from pilot.history.monitor import Monitor
from pilot.history.page import render
from pilot.history.records import SolveTimes
from pilot.history.trainer_progress import ledgers
from pilot.host.output_files import write_output
from pilot.protocol.pool_status import Answer, PoolStatus, TrainerStatus
from pilot.rundir.journal import Contents, read, replay
from pilot.service.requests.pool_report import life_of
from pilot.service.settings import fresh_core

COLUMNS: dict[str, Callable[[TrainerStatus], str]] = {
    "trainer": lambda t: t.trainer,
    "samples": lambda t: str(t.samples),
    "accuracy": lambda t: number(t.metrics.get("accuracy"), ".1%"),
    "grew": lambda t: str(t.rescales_up),
    "shrank": lambda t: str(t.rescales_down),
    "preempted": lambda t: str(t.preemptions),
    "killed": lambda t: str(t.losses),
    "lost": lambda t: str(t.lost_steps),
    "redone": lambda t: str(t.redone_steps),
    "stall": lambda t: f"{t.longest_stall_s:.2f} s",
}
LEGEND = "grew, shrank: planned rescales; preempted, killed: nodes; lost, redone: steps; stall: longest pause"


class DemoAnswer(Answer, frozen=True):
    """What ``pilot demo --json`` prints, also in `report.json`."""

    passed: bool  #: whether nothing went wrong; then the exit status is 0
    faults: list[str]  #: what went wrong, one line each
    took_s: float  #: how long the demo took
    happened: list[str]  #: the pool's events, each line with the seconds since the demo began
    ledger: dict[str, LedgerProof]  #: by trainer, whether every sample was used exactly once per epoch
    replay: str  #: `identical`, or the first difference found when the journal was replayed
    left_behind: list[str]  #: leftover processes, shared-memory segments and directories
    solves: list[SolveTimes]  #: the solve times of all plans
    status: PoolStatus  #: the pool's last status


def judge(run: DemoRun) -> DemoAnswer:
    """Check the ledger, lost steps, the replay and leftovers. Write ``report.json``, and the page of the pool's history
    to ``report.html``, in the demo's folder.
    """
    contents = read(run.root / "journal.jsonl")
    answer = _judged(run, contents)
    write_output(run.folder / "report.html", render(life_of(contents)).encode())
    write_output(run.folder / "report.json", f"{to_json(answer)}\n".encode())
    return answer


def _judged(run: DemoRun, contents: Contents) -> DemoAnswer:
    ledger = ledgers(contents.decisions)
    proofs = {name: proof(ledger[TrainerId(name)], run.epochs[name]) for name in TRAINERS}
    difference = replay(contents, fresh_core(contents))
    faults = [f"ledger of {name}: {verdict.text}" for name, verdict in proofs.items() if not verdict.proved]
    faults += [f"{t.trainer} lost {t.lost_steps} steps" for t in run.status.trainers if t.lost_steps]
    faults += [f"the journal does not replay: {difference}"] if difference else []
    faults += [f"left behind: {name}" for name in run.leftovers]
    return DemoAnswer(
        passed=not faults,
        faults=faults,
        took_s=run.took_s,
        happened=run.happened,
        ledger=proofs,
        replay=difference or "identical",
        left_behind=run.leftovers,
        solves=Monitor.of(contents.decisions).solves,
        status=run.status,
    )


def show(console: Console, answer: DemoAnswer, page: Path) -> None:
    """Print the final tables."""
    trainers, use = answer.status.trainers, answer.status.utilisation
    rows = [[cell(trainer) for cell in COLUMNS.values()] for trainer in trainers]
    for line in (*answer.happened, "", *aligned([list(COLUMNS), *rows], left=1), Text(LEGEND, "dim italic"), ""):
        console.print(line)
    console.print(
        "samples/s by node count, as given and as measured (the pilots share this machine, so rates do not rise):"
    )
    for t in trainers:
        given = ", ".join(f"{n}: {rate:g}" for n, rate in TRAINERS[t.trainer][1])
        measured = ", ".join(f"{n}: {rate:.0f}" for n, rate in t.measured_samples_per_s.items()) or "-"
        console.print(f"  {t.trainer}  given {given}; measured {measured}")
    console.print(
        f"\n{answer.status.node_seconds:.0f} node-seconds, {use.eq_nodes:.2f} nodes on average; they trained "
        f"{number(use.u, '.1%')} of what that many dedicated nodes would have (U, by the given curves)"
    )
    solves = [f"{t.build_s * 1e3:.0f}+{t.solve_s * 1e3:.0f} ({t.answer_s * 1e3:.0f})" for t in answer.solves]
    console.print(f"{len(solves)} plans solved, ms to build + solve (total): {', '.join(solves)}\n")
    for name, verdict in answer.ledger.items():
        console.print(f"ledger of {name}: {verdict.text}")
    console.print(f"journal: {'replays to identical commands' if answer.replay == 'identical' else answer.replay}")
    console.print(f"left behind: {', '.join(answer.left_behind) or 'nothing'}")
    console.print(f"nodes and losses over time: {page}", soft_wrap=True)
    for fault in answer.faults:
        console.print(f"FAILED: {fault}", style="bold red")
    if answer.passed:
        console.print(f"passed in {answer.took_s:.0f} s", style="bold green")
