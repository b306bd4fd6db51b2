"""``pilot study``: search hyperparameters and architectures with trials that share the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilot.cli import candidates, options
from pilot.cli.asking import in_any_pool, in_running_pool, run_dir_option
from pilot.cli.study_output import best_text, export, report, show_trials, study_lines, trials_words
from pilot.client.launching import launch, with_code
from pilot.client.pools import any_pool_at, find_run_dir, pool_at
from pilot.core.errors import UserError
from pilot.core.study.study import TO_END
from pilot.host.files import read_regular
from pilot.site.site import BetweenNodes
from pilot.submission.study_definition import KINDS, Range, Sampler, StudyDefinition, check_name, default_rungs
from pilot.submission.submission import LaunchSpec

MOST_SPACE_BYTES = 1 << 20


class Rungs(options.Sizes):
    """Increasing numbers of reports separated by commas, perhaps followed by the end of the script."""

    name = "rungs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        earlier, between, last = str(value).rpartition(",")
        if last != "end":
            return super().convert(value, param, ctx)
        return (*(super().convert(earlier, param, ctx) if between else ()), TO_END)


@click.group("study")
def command() -> None:
    """Run trials of one script with different parameters; the better ones train longer.

    \b
    Example:
      pilot study run examples/hpo_digits.py --name s1 --param lr=log:1e-3:1 --trials 12 --metric accuracy:max
      pilot study status
    """


def _space_options(function: Any) -> Any:
    space = click.option(
        "--space",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Instead of --param: a Python file that defines space(trial).",
    )
    param = click.option(
        "--param", "given", multiple=True, metavar="NAME=RANGE", help=f"A parameter and its range: {KINDS}. Repeatable."
    )
    return param(space(function))


@command.command("run", cls=options.TakesScript)
@click.option(
    "--name", metavar="NAME", required=True, help="The study's name; its trials are called NAME-0, NAME-1, ..."
)
@_space_options
@click.option("--trials", type=options.Count(), required=True, help="Total number of trials.")
@click.option(
    "--metric", required=True, metavar="NAME:max|min", help="The metric to optimise, as the script reports it."
)
@click.option(
    "--rungs",
    type=Rungs(),
    metavar="N,...,end",
    help="Compare trials after N reports of it, and when the script ends.  [default: 1,3,9,...,end, until one trial is"
    " left]",
)
@click.option(
    "--sampler",
    type=click.Choice([s.value for s in Sampler]),
    default="tpe",
    help="The Optuna sampler that chooses parameters.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), metavar="N", default=0, help="Seed of the sampler.")
@click.option(
    "--deadline",
    type=options.POSITIVE,
    metavar="HOURS",
    help="Stop the study this many hours after submission (default: none).",
)
@click.option("--min-nodes", type=options.Count(), default=1, help="Fewest nodes to run a trial on.")
@click.option("--max-nodes", type=options.Count(), default=64, help="Most nodes to run a trial on.")
@options.python_option
@options.env_option
@options.check_option
@options.sync_option
@options.between_option
@click.option("--live", is_flag=True, help="Run the script in place instead of a copy (see pilot submit).")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@run_dir_option
@options.answers
def run(
    script: Path,
    arguments: tuple[str, ...],
    given: tuple[str, ...],
    space: Path | None,
    metric: str,
    trials: int,
    rungs: tuple[int, ...] | None,
    sampler: str,
    deadline: float | None,
    python: str,
    named: tuple[str, ...],
    sync: str | None,
    between_nodes: BetweenNodes | None,
    live: bool,
    run_dir: Path | None,
    **more: Any,
) -> tuple[Any, ...]:
    """Submit a study of SCRIPT, an elastic script that reports a metric. Each trial gets its parameters as options,
    --NAME=VALUE, after ARGUMENTS. Put -- before ARGUMENTS that begin with a dash.

    A trial trains until the first rung: until it has reported the metric that many times. The best trials are then
    promoted and train to the next rung; the last one may be the end of the script. The others are shelved: they write
    a checkpoint and free their nodes, and continue from it if they are promoted later.

    \b
    Examples:
      pilot study run train.py --name s1 --param lr=log:1e-4:1e-1 --param width=choice:64,128 \\
          --trials 64 --metric val_accuracy:max
      pilot study run train.py --name s2 --param lr=log:1e-4:1e-1 --trials 9 --metric loss:min --rungs 5,20
    """
    launched = launch(script, list(arguments), python, named, sync=sync, between_nodes=between_nodes)
    launched = launched if live else with_code(launched)[0]
    definition = StudyDefinition(
        launch=launched,
        trials=trials,
        rungs=rungs or default_rungs(trials),
        deadline_s=None if deadline is None else 3600 * deadline,
        sampler=Sampler(sampler),
        **_metric(metric),
        **_space(given, space),
        **more,
    )
    options.need("study")
    from pilot.study.space import check

    check(definition)  # tries the search space here, before anything is sent
    answer = pool_at(find_run_dir(run_dir)).run_study(definition)
    submitted = f"submitted study {answer.study}: {trials_words(answer.trials)}"
    return answer, f"{submitted} (progress: pilot study status {answer.study})"


@command.command("status")
@click.argument("study", required=False, shell_complete=candidates.studies)
@in_any_pool
@options.answers
def status(root: Path, study: str | None) -> tuple[Any, ...]:
    """Show the progress of STUDY (default: of every study).

    \b
    Example:
      pilot study status s1
    """
    answer = any_pool_at(root).studies()
    if study is not None:
        answer = type(answer)(studies=[one for one in answer.studies if one.study == study])
        if not answer.studies:
            raise UserError(f"no study named {study!r}; pilot study status lists them")
    none = "no study has been submitted; pilot study run submits one"
    return answer, "\n".join(line for one in answer.studies for line in study_lines(one)) or none


@command.command("trials")
@options.study_argument
@in_any_pool
@options.answers
def trials(root: Path, study: str) -> tuple[Any, ...]:
    """List the trials of STUDY: parameters, values at each rung, state.

    \b
    Example:
      pilot study trials s1
    """
    answer = any_pool_at(root).trials(study)
    return answer, lambda: show_trials(answer)


@command.command("best")
@options.study_argument
@in_any_pool
@options.answers
def best(root: Path, study: str) -> tuple[Any, ...]:
    """Show the best trial of STUDY. Also prints the commands that train it further and export its model.

    \b
    Example:
      pilot study best s1
    """
    answer = any_pool_at(root).trials(study).study
    if answer.best is None:
        raise UserError(f"no trial of {study} has reached the first rung yet; see pilot study status {study}")
    return answer.best, best_text(answer, answer.best)


@command.command("stop")
@options.study_argument
@in_running_pool
@options.answers
def stop(root: Path, study: str) -> tuple[Any, ...]:
    """Stop STUDY: its trials write checkpoints and free their nodes. `pilot study resume` continues it.

    \b
    Example:
      pilot study stop s1
    """
    answer = pool_at(root).stop_study(study)
    return answer, f"study {answer.study} stopped; pilot study resume {answer.study} continues it"


@command.command("resume")
@options.study_argument
@_space_options
@in_running_pool
@options.answers
def resume(root: Path, study: str, given: tuple[str, ...], space: Path | None) -> tuple[Any, ...]:
    """Continue STUDY, which has stopped. If --param or --space is given, it must match the study's search space.

    \b
    Example:
      pilot study resume s1
    """
    expected = None
    if given or space is not None:
        launched = LaunchSpec(script="", script_sha256="", arguments=[], cwd="", python="", environment={})
        rest: dict[str, Any] = {"metric": "", "maximise": True, "rungs": (1,), "trials": 1}
        expected = StudyDefinition(name=study, launch=launched, **rest, **_space(given, space))
    answer = pool_at(root).resume_study(study, space=expected)
    return answer, f"study {answer.study} continues"


@command.command("add")
@options.study_argument
@click.option("--trials", "more", type=options.Count(), required=True, help="Number of trials to add.")
@in_running_pool
@options.answers
def add(root: Path, study: str, more: int) -> tuple[Any, ...]:
    """Add trials to STUDY. A stopped study continues.

    \b
    Example:
      pilot study add s1 --trials 32
    """
    answer = pool_at(root).resume_study(study, more)
    return answer, f"study {answer.study} now has {trials_words(answer.trials)}"


command.add_command(export)
command.add_command(report)


def _metric(text: str) -> dict[str, Any]:
    name, _, direction = text.rpartition(":")
    if not name or direction not in ("max", "min"):
        raise UserError(f"--metric {text!r}: give NAME:max or NAME:min")
    return {"metric": name, "maximise": direction == "max"}


def _space(given: tuple[str, ...], space: Path | None) -> dict[str, Any]:
    """The search space, from the options."""
    if bool(given) == (space is not None):
        raise UserError("give the search space: either --param NAME=RANGE, repeated, or --space FILE")
    if space is not None:
        try:
            return {"space": read_regular(space, MOST_SPACE_BYTES).decode("utf-8-sig")}
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--space: cannot read {space}: {getattr(error, 'strerror', None) or error}") from None
    found: dict[str, Range] = {}
    for text in given:
        name, _, range_ = text.partition("=")
        if check_name(name) in found:
            raise UserError(f"--param {name} is given twice")
        try:
            found[name] = Range.read(range_)
        except UserError as error:
            raise UserError(f"--param {name}: {error}") from None
    return {"parameters": found}
