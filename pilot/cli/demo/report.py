"""What the demo checks and prints at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from pilot.rundir.journal import read, replay
from pilot.service.requests.pool_report import life_of
from pilot.service.settings import fresh_core


class DemoAnswer(Answer, frozen=True):
    """What ``pilot demo --json`` prints, also in `report.json`."""

    passed: bool  #: whether the demo kept all its promises
    faults: list[str]  #: what went wrong, one line each
    took_s: float  #: how long the demo took
    happened: list[str]  #: what happened to the pool, each line with the seconds since the demo began
    ledger: dict[str, LedgerProof]  #: by trainer, whether every sample was used exactly once per epoch
    replay: str  #: `identical`, or the first difference found when the journal was replayed
    left_behind: list[str]  #: leftover processes, shared-memory segments and directories
    solves: list[SolveTimes]  #: the solve times of all plans
    status: PoolStatus  #: the pool's last status


@dataclass(frozen=True, slots=True)
class DemoReport:
    """``faults`` is empty if the demo kept all its promises."""

    run: DemoRun
    proofs: dict[str, LedgerProof]
    replay_difference: str
    faults: list[str]
    solves: list[SolveTimes]
    page: str

    @property
    def passed(self) -> bool:
        """Whether the demo's exit status is 0."""
        return not self.faults

    def answer(self) -> DemoAnswer:
        """The same for scripts."""
        return DemoAnswer(
            passed=self.passed,
            faults=self.faults,
            took_s=self.run.took_s,
            happened=self.run.happened,
            ledger=self.proofs,
            replay=self.replay_difference or "identical",
            left_behind=self.run.leftovers,
            solves=self.solves,
            status=self.run.status,
        )


def judge(run: DemoRun) -> DemoReport:
    """Check the ledger, lost steps, the replay and leftovers."""
    contents = read(run.root / "journal.jsonl")
    monitor, ledger = Monitor.of(contents.decisions), ledgers(contents.decisions)
    proofs = {name: proof(ledger[TrainerId(name)], run.epochs[name]) for name in TRAINERS}
    difference = replay(contents, fresh_core(contents))
    faults = [f"ledger of {name}: {verdict.text}" for name, verdict in proofs.items() if not verdict.proved]
    faults += [f"{t.trainer} lost {t.lost_steps} steps" for t in run.status.trainers if t.lost_steps]
    faults += [f"the journal does not replay: {difference}"] if difference else []
    faults += [f"left behind: {name}" for name in run.leftovers]
    return DemoReport(run, proofs, difference, faults, monitor.solves, render(life_of(contents)))


def write(report: DemoReport) -> Path:
    """Write ``report.json``, and the page of the pool's history; returns the page's path."""
    page = report.run.folder / "report.html"
    write_output(page, report.page.encode())
    write_output(report.run.folder / "report.json", f"{to_json(report.answer())}\n".encode())
    return page


def show(console: Console, report: DemoReport, page: Path) -> None:
    """Print the final tables."""
    status = report.run.status
    for line in (*report.run.happened, "", *_trainers(status.trainers)):
        console.print(line)
    console.print(_rates(status.trainers))
    console.print(_pool(status))
    console.print(_solves(report.solves))
    console.print()
    for name, verdict in report.proofs.items():
        console.print(f"ledger of {name}: {verdict.text}")
    console.print(f"journal: {report.replay_difference or 'replays to identical commands'}")
    console.print(f"left behind: {', '.join(report.run.leftovers) or 'nothing'}")
    console.print(f"nodes and losses over time: {page}", soft_wrap=True)
    for fault in report.faults:
        console.print(f"FAILED: {fault}", style="bold red")
    if report.passed:
        console.print(f"passed in {report.run.took_s:.0f} s", style="bold green")


def _trainers(trainers: list[TrainerStatus]) -> list[Text]:
    columns: dict[str, Callable[[TrainerStatus], str]] = {
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
    answer = "grew, shrank: planned rescales; preempted, killed: nodes; lost, redone: steps; stall: longest pause"
    rows = [[cell(trainer) for cell in columns.values()] for trainer in trainers]
    return [*aligned([list(columns), *rows], left=1), Text(answer, "dim italic")]


def _rates(trainers: list[TrainerStatus]) -> str:
    lines = [
        "",
        "samples/s by node count, as given and as measured (the pilots share this machine, so rates do not rise):",
    ]
    for t in trainers:
        given = ", ".join(f"{n}: {rate:g}" for n, rate in TRAINERS[t.trainer][1])
        measured = ", ".join(f"{n}: {rate:.0f}" for n, rate in t.measured_samples_per_s.items()) or "-"
        lines.append(f"  {t.trainer}  given {given}; measured {measured}")
    return "\n".join(lines)


def _pool(status: PoolStatus) -> str:
    use = status.utilisation
    return (
        f"\n{status.node_seconds:.0f} node-seconds, {use.eq_nodes:.2f} nodes on average; they trained "
        f"{number(use.u, '.1%')} of what that many dedicated nodes would have (U, by the given curves)"
    )


def _solves(solves: list[SolveTimes]) -> str:
    each = ", ".join(f"{t.build_s * 1e3:.0f}+{t.solve_s * 1e3:.0f} ({t.answer_s * 1e3:.0f})" for t in solves)
    return f"{len(solves)} plans solved, ms to build + solve (total): {each}"
