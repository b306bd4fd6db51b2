"""``python -m tests.between.plays --seeds 0:200 --between gloo``: plays of the data plane, and what they have shown.

Each play prints a line, and a failed one what happened, with the logs and stacks of its workers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.between import script
from tests.between.conductor import Conductor
from tests.between.drawn import Play, drawn
from tests.between.stage import Stage
from tests.chaos.network import Lan, unavailable
from tests.integration.disturbed import assert_exactly_once

EPOCHS = 5
STEP_S = 0.04
SILENT_S = 1.0
OWN_DESCRIPTORS, GLOO_DESCRIPTORS = 5, 8
"""So many descriptors a worker may have at the end, besides those that it had at first (one is of a rank process whose
group has not started); and for a gloo group.
"""


@dataclass
class Outcome:
    """What a play has shown; ``error``: "" if all was well."""

    seed: int
    between: str
    error: str = ""
    seconds: float = 0.0
    slowest_start_s: float = 0.0
    generations: int = 0
    happened: list[str] = field(default_factory=list)
    logs: str = ""

    def line(self) -> str:
        """Return it in one line."""
        acts = "; ".join(text.partition("act: ")[2] for text in self.happened if "act: " in text)
        what = self.error.strip().splitlines()[0] if self.error else "ok"
        return f"{self.seed:4d}  {self.seconds:5.1f} s  {self.generations:2d} generations  {what}  [{acts}]"

    def text(self) -> str:
        """Return what happened, and what the workers have printed."""
        return "\n".join([*self.happened, self.error, self.logs])


def outcome(seed: int, between: str, lan: Lan | None, folder: Path) -> Outcome:
    """Play, and check what must hold afterwards."""
    play = drawn(seed, networks=lan is not None, groups=between != "mpi")
    made, began_s = Outcome(seed, between), time.monotonic()
    arguments = str(EPOCHS), str(play.width), str(play.ballast), str(STEP_S)
    stage = Stage(
        folder,
        lan,
        *arguments,
        interval_s=play.checkpoints_s,
        silent_s=SILENT_S,
        ranks_per_node=play.per_node,
        between_nodes=between,
    )
    conductor = Conductor(stage, play)
    try:
        conductor.run()
        check(stage, conductor, play)
    except Exception as error:  # whatever it is, the play has failed, and others follow
        stage.print_stacks()
        made.error, made.logs = f"{type(error).__name__}: {error}\n{traceback.format_exc()}", stage.texts()
    finally:
        stage.clean()
    left = stage.leftovers()
    if left and not made.error:
        made.error = f"left over: {left}"
    made.seconds, made.happened = time.monotonic() - began_s, conductor.noted
    made.slowest_start_s, made.generations = conductor.slowest_s, stage.generation
    return made


def check(stage: Stage, conductor: Conductor, play: Play) -> None:
    """Check that all ranks have the values of the plain loop, that each sample counted once, and what is left."""
    assert conductor.current is not None
    names = [worker.name for host in conductor.current.hosts for worker in host.workers]
    saved = [torch.load(stage.folder / f"saved-{name}") for name in names]
    first, *others = [one["trained"] for one in saved]
    for other in others:
        torch.testing.assert_close(other, first, rtol=0.0, atol=0.0)
    torch.testing.assert_close(first, _plain(play.width), rtol=1e-12, atol=1e-15)
    assert_exactly_once(stage.reports(), EPOCHS)
    for name, one in zip(names, saved, strict=True):
        check_open(name, one["open"], play.per_node)


def check_open(name: str, its: dict[str, Any], per_node: int) -> None:
    """Check that a worker has nothing of the groups between nodes any more; it may be in two within its node."""
    groups = 2 * (per_node > 1)
    assert its["sockets"].count("ESTABLISHED") <= groups * (per_node - 1), f"{name} has connections: {its}"
    assert its["sockets"].count("LISTEN") <= groups, f"{name} has sockets: {its}"
    assert its["threads"].count("gloo_tcp_loop") <= groups, f"{name} has threads: {its}"
    most = its["before"] + OWN_DESCRIPTORS + GLOO_DESCRIPTORS * groups
    assert its["descriptors"] <= most, f"{name} has more than {most} descriptors: {its}"


@cache
def _plain(width: int) -> dict[str, Any]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return script.plain(width, EPOCHS)
    finally:
        torch.set_default_dtype(before)


@contextmanager
def networks() -> Iterator[Lan | None]:
    """Give networks to the nodes of a play, None where there can be none."""
    if unavailable():
        yield None
        return
    through_network = {"MPIR_CVAR_NOLOCAL": "1"}
    with mock.patch.dict(os.environ, through_network), closing(Lan()) as lan:
        yield lan


def played(seed: int, between: str) -> Outcome:
    """Play a seed in a folder and in networks of its own."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix=f"play-{seed}-") as folder, networks() as lan:
        return outcome(seed, between, lan, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:20", help="one, or FIRST:LAST+1")
    parser.add_argument("--between", default="mpi", choices=("mpi", "gloo"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="a file for all outcomes")
    parser.add_argument("--verbose", action="store_true", help="print what happened in each play")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    if reason := unavailable():
        print(f"no networks are cut: {reason}")
    outcomes = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as jobs:
        for made in jobs.map(played, seeds, [arguments.between] * len(seeds)):
            outcomes.append(made)
            print(made.line(), flush=True)
            if made.error or arguments.verbose:
                print(made.text(), flush=True)
    failed = [made.seed for made in outcomes if made.error]
    slowest_s = max(made.slowest_start_s for made in outcomes)
    print(
        f"{len(outcomes) - len(failed)} of {len(outcomes)} are well; slowest start {slowest_s:.1f} s; failed: {failed}"
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(made) for made in outcomes], indent=1))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
