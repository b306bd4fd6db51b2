"""Optuna's file follows pilot's journal: identical after a kill, complete after a loss, each result reported once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from pilot.core.errors import UserError
from pilot.study.projection import Projection
from pilot.study.space import check
from pilot.submission.study_definition import Asked, KnownTrial, Range, Sampler, StudyDefinition
from pilot.submission.submission import LaunchSpec

LAUNCH = LaunchSpec(script="/s.py", script_sha256="", arguments=[], cwd="/", python="python", environment={})
COUNTED = {"width": Range.read("choice:1,2,3"), "depth": Range.read("int:1:2")}


def study(
    sampler: Sampler = Sampler.TPE, space: str = "", parameters: dict[str, Range] | None = None
) -> StudyDefinition:
    """A study of 100 trials."""
    if not space and parameters is None:
        parameters = COUNTED | {"lr": Range.read("log:1e-4:1e-1")}
    return StudyDefinition(
        name="s",
        launch=LAUNCH,
        metric="accuracy",
        maximise=True,
        rungs=(1,),
        trials=100,
        sampler=sampler,
        space=space,
        parameters=parameters or {},
    )


def run(projection: Projection, numbers: range) -> list[KnownTrial]:
    """Ask and tell; every seventh trial fails."""
    known = []
    for number in numbers:
        asked = projection.ask(number)
        assert not asked.error, asked.error
        value = None if number % 7 == 3 else number / 10
        projection.tell(number, value)
        known.append(KnownTrial(number, asked.parameters, ended=True, value=value))
    return known


@pytest.mark.parametrize("sampler", [Sampler.TPE, Sampler.RANDOM, Sampler.QMC, Sampler.GP, Sampler.CMAES])
def test_a_repeated_question_has_the_same_answer_and_no_two_trials_are_equal(sampler: Sampler, tmp_path: Path) -> None:
    file = tmp_path / "optuna.journal"
    known = run(Projection(study(sampler), file, []), range(13))
    assert len({trial.parameters for trial in known}) == len(known)
    first = Projection(study(sampler), file, known).ask(13)
    killed = Projection(study(sampler), file, known)
    assert killed.ask(13) == first
    file.unlink()
    rebuilt = Projection(study(sampler), file, known).ask(13)
    assert sampler is Sampler.CMAES or rebuilt == first  # its distribution exists only in the file


def test_a_file_that_contradicts_the_journal_or_is_cut_short_is_recreated(tmp_path: Path) -> None:
    file = tmp_path / "optuna.journal"
    known = run(Projection(study(), file, []), range(5))
    with file.open("ab") as cut:
        cut.write(b'{"op_code": 4, "wor')
    other = [*known[:4], KnownTrial(4, known[0].parameters, ended=True, value=0.9)]
    for truth in (known, other):
        Projection(study(), file, truth)
        storage = JournalStorage(JournalFileBackend(str(file)))
        found = optuna.load_study(study_name="s", storage=storage).trials
        assert [trial.params for trial in found] == [dict(trial.parameters) for trial in truth]
        assert [trial.value for trial in found] == [trial.value for trial in truth]


def test_trials_of_another_writer_do_not_stay(tmp_path: Path) -> None:
    file = tmp_path / "optuna.journal"
    projection = Projection(study(), file, [])
    known = run(projection, range(3))
    elsewhere = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(file))))
    elsewhere.tell(elsewhere.ask(), 5.0)
    with pytest.raises(ValueError, match="trial 3 is over in the file"):
        projection.ask(3)
    asked = Projection(study(), file, known).ask(3)
    assert asked.parameters and not asked.error


def test_a_trial_without_parameters_keeps_its_number_when_the_file_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "optuna.journal"
    known = run(Projection(study(), file, []), range(5))
    file.unlink()
    projection = Projection(study(), file, [trial for trial in known if trial.number != 2])
    asked = projection.ask(2)
    assert asked.parameters not in [trial.parameters for trial in known if trial.number != 2]
    projection.tell(2, 0.5)
    found = optuna.load_study(study_name="s", storage=JournalStorage(JournalFileBackend(str(file)))).trials
    truth = [*known[:2], KnownTrial(2, asked.parameters, ended=True, value=0.5), *known[3:]]
    assert [(trial.params, trial.value) for trial in found] == [(dict(t.parameters), t.value) for t in truth]


@pytest.mark.parametrize("sampler", [Sampler.GRID, Sampler.BRUTE])
def test_an_exhausted_space_has_no_more_trials(sampler: Sampler, tmp_path: Path) -> None:
    projection = Projection(study(sampler, parameters=COUNTED), tmp_path / "optuna.journal", [])
    known = run(projection, range(6))
    assert len({trial.parameters for trial in known}) == 6
    assert projection.ask(6).exhausted


CONDITIONAL = """
def space(trial):
    if trial.suggest_categorical("kind", ["conv", "mlp"]) == "conv":
        trial.suggest_int("channels", 4, 16)
    else:
        trial.suggest_float("dropout", 0, 0.5)
"""


def test_a_space_may_be_conditional(tmp_path: Path) -> None:
    known = run(Projection(study(space=CONDITIONAL), tmp_path / "optuna.journal", []), range(20))
    names = {tuple(name for name, _ in trial.parameters) for trial in known}
    assert names == {("kind", "channels"), ("kind", "dropout")}


@pytest.mark.parametrize(
    ("space", "why"),
    [
        ("def space(trial): pass", "the search space is empty"),
        ("def space(trial): 1 / 0", r"space\(trial\) fails: ZeroDivisionError"),
        ("import nothing_of_this_name", "fails: ModuleNotFoundError"),
        ("x = 1", "no function space"),
        ("def space(trial): [trial.suggest_float('lr', 0, 1) for _ in (1, 2)]", "suggests the parameter lr twice"),
        ("def space(trial): trial.suggest_categorical('a', [None])", "use strings and numbers"),
        ("def space(trial): trial.suggest_float('a b', 0, 1)", "not a valid parameter name"),
        ("def space(trial): trial.suggest_int('n', 0, 9) == 3 and 1 / 0", "fails: ZeroDivisionError"),
        ("def space(trial): raise KeyError('two\\n lines')", r"KeyError: 'two\\n lines'$"),
        ("def space(trial): raise ValueError('two\\n lines')", "fails: ValueError: two lines$"),
        ("raise SystemExit(0)", "the --space file fails: SystemExit"),
        ("def space(trial): raise SystemExit(0)", r"space\(trial\) fails: SystemExit"),
        ("def space(trial): trial.suggest_categorical('a', [1, True])", "a: the choices 1 and True are the same"),
        ("def space(trial): trial.suggest_categorical('a', [0, float('nan')])", "a: the choice nan is not a finite"),
        ("def space(trial): trial.suggest_int('a', 0, 10**30)", "a: the choice .* is too large"),
        ("def space(trial): trial.suggest_categorical('a', ['\\ud800'])", "cannot be printed"),
    ],
)
def test_an_invalid_space_is_refused_with_the_reason(space: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check(study(space=space))


UNUSUAL = """
from dataclasses import dataclass
import numpy

@dataclass
class Widths:
    few: int = 8

def space(trial):
    print("a line on stdout")
    trial.suggest_categorical("lr", numpy.logspace(-3, -1, 3))
    trial.suggest_categorical("norm", numpy.array(["batch", "layer norm"]))
    trial.suggest_int("width", Widths().few, 64, log=True)
"""


def test_a_space_may_have_classes_numpy_values_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(study(space=UNUSUAL))
    assert capsys.readouterr().out == ""
    asked = Projection(study(space=UNUSUAL), tmp_path / "optuna.journal", []).ask(0)
    assert [type(value) for _, value in asked.parameters] == [float, str, int]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=Asked) == asked


def test_brute_force_refuses_a_space_without_steps() -> None:
    with pytest.raises(UserError, match="step must be given"):
        check(study(Sampler.BRUTE, space="def space(trial): trial.suggest_float('lr', 0, 1)"))


def test_choices_become_arguments_as_they_were_written() -> None:
    written = ["1", "-2", "0.5", "007", "1e-3", "1_000", "nan", "inf", "9" * 30, "a b", "it's", "=", "--x", ""]
    space = study(parameters={"x": Range.read(f"choice:{','.join(written)}")})
    stored = msgspec.json.decode(msgspec.json.encode(space), type=StudyDefinition)
    assert stored == space
    choices = stored.parameters["x"].choices
    assert [space.trial((("x", choice),)).arguments for choice in choices] == [[f"--x={text}"] for text in written]
    assert choices[:3] == (1, -2, 0.5)


@pytest.mark.parametrize(
    "text", ["choice:1,1", "choice:a,b,a", "choice:1,1.0", "choice:a\nb", "int:0:1e30", "int:-1e300:0"]
)
def test_ambiguous_ranges_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        Range.read(text)


@pytest.mark.parametrize(
    "text", ["log:0:1", "log:1e-4", "int:1:2.5", "float:1:0", "choice:", "lr", "float:a:b", "int:1:nan"]
)
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        Range.read(text)


@pytest.mark.parametrize("sampler", [Sampler.GRID, Sampler.BRUTE])
@pytest.mark.parametrize("text", ["log:1e-4:1", "float:0:1", "int:0:100000", "int:1:1000000000000", "float:0:1:1e-300"])
def test_a_sampler_that_lists_all_values_needs_values_that_can_be_counted(sampler: Sampler, text: str) -> None:
    with pytest.raises(UserError, match=r"cannot count the values of lr.* at most 100,000"):
        check(study(sampler, parameters={"lr": Range.read(text)}))
    assert len(Range.read("int:1:100000").values()) == 100_000


def test_a_grid_has_no_more_points_than_a_study_can_have_trials() -> None:
    large = {name: Range.read("int:1:1000") for name in "ab"}
    with pytest.raises(UserError, match="1,000,000 points"):
        check(study(Sampler.GRID, parameters=large))
    check(study(Sampler.BRUTE, parameters=large))
