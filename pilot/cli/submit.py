"""``pilot submit`` and ``pilot resume``: send a training script to the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilot.cli import options
from pilot.cli.asking import in_running_pool, run_dir_option
from pilot.client.launching import SEED_MAX, launch_again
from pilot.client.pools import pool_at
from pilot.client.trainers import prepared
from pilot.core.trainer.spec import Profiling

accept_option = click.option(
    "--accept-changes",
    metavar="WHAT",
    help="Continue from a checkpoint even if these differ: seed, dataset, batches, rules, options, fewer (epochs),"
    " gradients.",
)


@click.command("submit", context_settings={"allow_interspersed_args": False})
@click.option("--name", metavar="NAME", help="The trainer's name (default: t1, t2, …).")
@click.option("--replace", is_flag=True, help="Remove an ended trainer of the same name first.")
@click.option("--min-nodes", type=options.Count(), help="Fewest nodes to run on.  [default: 1]")
@click.option("--max-nodes", type=options.Count(), help="Most nodes to run on.  [default: 64]")
@click.option(
    "--sizes",
    type=options.Sizes(),
    metavar="N,N,...",
    help="Run on these node counts only, e.g. 1,2,4,8.  [default: all]",
)
@click.option(
    "--nodes-per-replica",
    type=options.Count(),
    metavar="M",
    help="The model is divided over M nodes (pilot.train.replica_mesh), so its nodes come and go by M.  [default: 1]",
)
@click.option(
    "--curve",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Scaling curve: a file with lines of nodes and samples/s.",
)
@click.option("--fixed-curve", is_flag=True, help="Always plan with the given curve, ignoring measurements.")
@click.option(
    "--profile",
    type=click.Choice(Profiling, case_sensitive=False),
    help="Measure the trainer's speed: auto on one node count after the other, as long as plans gain by it; "
    "inverse on every count, from the largest down.  [default: auto]",
)
@click.option("--reprofile", is_flag=True, default=None, help="Profile even though --curve is given.")
@click.option(
    "--rescale-up-s", type=options.FiniteRange(min=0), help="Pause when nodes are added, assumed until it is measured."
)
@click.option(
    "--rescale-down-s",
    type=options.FiniteRange(min=0),
    help="Pause when nodes are taken away, assumed until it is measured.",
)
@click.option(
    "--types",
    metavar="NAME,NAME,...",
    callback=lambda _context, _option, text: tuple(text.split(",")) if text is not None else None,
    help="Types of nodes that it can use, see pilot nodes.  [default: all]",
)
@click.option(
    "--memory",
    "memory_gb",
    type=options.POSITIVE,
    metavar="GB",
    help="Memory that it needs of an accelerator, or of a node that has none.",
)
@click.option("--priority", type=options.POSITIVE, help="Weight for the objective 'priority'.  [default: 1]")
@click.option(
    "--budget",
    "budget_node_hours",
    type=options.POSITIVE,
    metavar="NODE-HOURS",
    help="Node-hours, as charged by the site, after which the trainer stops (default: no limit).",
)
@options.python_option
@options.env_option
@click.option(
    "--seed",
    type=click.IntRange(0, SEED_MAX),
    metavar="N",
    help="Seed of the random generators.  [default: from the trainer's name]",
)
@click.option(
    "--from",
    "start",
    metavar="NAME|PATH",
    help="Start from the newest checkpoint of this trainer, or from this file.  [default: scratch]",
)
@accept_option
@click.option("--checkpoints-kept", type=options.Count(), help="How many checkpoints to keep.  [default: the site's]")
@options.check_option
@options.sync_option
@options.between_option
@click.option(
    "--live",
    is_flag=True,
    help="Run the script and its modules in place instead of a copy. Once they are edited, no further node can join.",
)
@click.option(
    "--warm-up-s",
    type=options.POSITIVE,
    help="How long SCRIPT may take on a node until its training loop begins.  [default: 900]",
)
@click.option(
    "--after-loop-s",
    type=options.POSITIVE,
    help="How long rank 0 may run code after the training loop.  [default: 600]",
)
@click.option(
    "--patience-s",
    type=options.POSITIVE,
    help="Restart a process that has been idle this long while others wait for it.  [default: 300]",
)
@click.option(
    "--ddp", is_flag=True, help="SCRIPT is written for torchrun (DistributedDataParallel), without pilot.train."
)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@run_dir_option
@options.answers
def command(
    script: Path, arguments: tuple[str, ...], named: tuple[str, ...], ddp: bool, **given: Any
) -> tuple[Any, ...]:
    """Submit SCRIPT, which uses pilot.train, as an elastic trainer. ARGUMENTS are passed to it.

    Options of this command go before SCRIPT: what follows it, also after a --, is passed to it.

    Only the script is required; everything else has a default or is measured. The working directory, the interpreter,
    the variables given with --env and a copy of the code (the Python files below the script's folder, and what it
    imports from PYTHONPATH or from packages installed in place) are recorded now. Data and other packages are not
    copied.

    With --ddp, a script for torchrun runs unchanged: it is restarted whenever its nodes change, and resumes from what
    it saved in the file named by PILOT_CHECKPOINT.

    \b
    Examples:
      pilot submit --name cnn --max-nodes 8 --env DATA_DIR examples/digits_cnn.py --epochs 20
      pilot submit --ddp train_ddp.py --epochs 20
      pilot submit --sync diloco:every=50,wire=int8 train.py
      pilot submit --name more --from cnn examples/digits_cnn.py --epochs 40
    """
    root, submission, code = prepared(script, options.for_script(arguments), env=named, ddp=ddp, **given)
    answer = pool_at(root).submit(submission)
    options.mention_our_options(script, arguments)
    copied = code.sentences(ddp=ddp) if code is not None else []
    waits = "; ".join(filter(None, [answer.prognosis, answer.waits]))
    lines = [f"submitted {answer.trainer}; its files: {answer.directory}", *copied]
    return answer, "\n".join([*lines, f"it waits: {waits}"] if waits else lines)


@click.command("resume")
@click.option(
    "--budget",
    type=options.POSITIVE,
    metavar="NODE-HOURS",
    help="Node-hours it may use in total, as charged by the site (default: as submitted).",
)
@click.option(
    "--from-scratch",
    is_flag=True,
    help="Start again as when it was submitted. Its checkpoints so far are not used; they stay until you remove them.",
)
@accept_option
@in_running_pool
@options.each_trainer
def resume(
    root: Path, trainer: str, budget: float | None, from_scratch: bool, accept_changes: str | None
) -> tuple[Any, str]:
    """Continue TRAINERS, which failed, were cancelled or were stopped, from their newest checkpoints, under the same
    names and with the same logs. Their scripts are read again, so that a fix takes effect; arguments and environment
    stay as submitted. With --from-scratch, they may also be held because their checkpoints cannot be loaded.

    \b
    Examples:
      pilot resume vit cnn
      pilot resume vit --budget 40
      pilot resume vit --from-scratch
      pilot resume vit --accept-changes options
    """
    launched = launch_again(root, trainer, accept_changes)
    answer = pool_at(root).resume(trainer, launched, budget, from_scratch=from_scratch)
    return answer, f"{answer.trainer} resumed; it is {answer.phase}"
