"""The step after a checkpoint is compared with the same step after a resume: hidden values are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from pilot.core.errors import ResumedOtherwise
from pilot.protocol.run_identity import ACCEPT
from pilot.submission import loaded_code
from pilot.train.check.group import ScenarioGroup
from tests.equivalence.hidden import FIXED, PER_NODE, SCRIPTS, Hidden, Script, draws_a_constant, steps_two_by_name
from tests.equivalence.loops import fresh, mlp
from tests.equivalence.rows import in_world
from tests.unit.train.storm import NEXT_STEP, Keep

AT = Keep(9, 0)
"""In the third of four epochs."""
DIFFERS = "step 10 has another gradient of"


def resumed(
    script: Callable[[], Any],
    before: int = 1,
    after: int = 1,
    keep: Keep = AT,
    damage: Callable[[bytes], bytes] = lambda block: block,
) -> str:
    """Run on ``before`` ranks, and then on ``after`` ranks from the state saved on the way. Return the error with which
    these end ("": none).
    """
    world, _ = in_world(script, before, [], keep=keep)
    assert world.kept_state is not None
    assert world.kept_state[NEXT_STEP]
    try:
        in_world(script, after, [], begin=world.kept_state | {NEXT_STEP: damage(world.kept_state[NEXT_STEP])})
    except ResumedOtherwise as error:
        return str(error)
    return ""


@pytest.fixture
def remarks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The leader's remarks."""
    found: list[str] = []
    monkeypatch.setattr(ScenarioGroup, "remark", lambda _, text: found.append(text))
    return found


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_value_that_no_checkpoint_holds_is_found(script: Script, before: int, after: int) -> None:
    """A rank that joins at the same time rehearses in this step."""
    assert DIFFERS in resumed(lambda: script(FIXED), before, after)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_on_fewer_nodes_it_is_only_remarked(script: Script, remarks: list[str]) -> None:
    assert resumed(lambda: script(FIXED), 2, 1) == ""
    (remark,) = remarks
    assert DIFFERS in remark
    assert "(2 ranks divided them then, and 1 now). Possible causes: a loss that is not a mean over the" in remark


def test_a_difference_that_the_user_accepts_is_only_remarked(
    monkeypatch: pytest.MonkeyPatch, remarks: list[str]
) -> None:
    monkeypatch.setenv(ACCEPT, "gradients")
    assert resumed(lambda: draws_a_constant(FIXED)) == ""
    (remark,) = remarks
    assert remark.endswith("than before the trainer was resumed, from the same samples and parameters (accepted)")


@pytest.mark.parametrize("options", [FIXED, PER_NODE], ids=["fixed", "per node"])
@pytest.mark.parametrize(("before", "after", "step"), [(1, 1, 6), (2, 2, 6), (1, 2, 6), (2, 1, 6), (2, 1, 4)])
@pytest.mark.parametrize("layer", [nn.Identity, nn.Dropout, lambda: nn.BatchNorm1d(1, dtype=torch.float64)])
def test_a_script_without_hidden_values_trains_on(
    step: int, layer: Callable[[], nn.Module], before: int, after: int, options: Any, remarks: list[str]
) -> None:
    """Also where sums depend on the number of ranks by design; and at an epoch's end."""
    if options is PER_NODE:
        step = min(step, 16 // 4 // before)

    def script() -> None:
        Hidden(options, model=nn.Sequential(fresh(mlp), layer())).run()

    assert resumed(script, before, after, Keep(step, 0)) == ""
    assert remarks == []


def test_a_loss_that_is_no_mean_is_remarked_on_another_number_of_nodes(remarks: list[str]) -> None:
    def script() -> None:
        Hidden(FIXED, lambda y, target: ((y - target) ** 2).sum()).run()

    assert [resumed(script, 2, nodes) for nodes in (2, 1)] == ["", ""]
    assert len(remarks) == 1


@pytest.mark.parametrize("other", ["", "d", "g"])
def test_gradients_of_each_of_two_optimizers_are_compared(other: str) -> None:
    found = resumed(lambda: steps_two_by_name(FIXED, other), 2, 2)
    assert f"another gradient of {other}." in found if other else not found


def test_sums_that_a_script_changes_do_not_count() -> None:
    """As with noise of its own."""

    def script() -> None:
        loop = Hidden(FIXED)

        def body(x: torch.Tensor, y: torch.Tensor) -> None:
            loop.optimizer.zero_grad()
            error = loop.loss(x, y)
            error.backward()
            if loop.session.sum(error):
                nn.utils.clip_grad_norm_(loop.model.parameters(), 0.01)
            loop.session.step()

        loop.run(body=body)

    assert resumed(script) == ""


def test_corrected_code_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def saved_by(version: str) -> Callable[[bytes], bytes]:
        return lambda block: msgspec.msgpack.encode(msgspec.msgpack.decode(block) | {"code": {"train.py": version}})

    monkeypatch.setattr(loaded_code, "versions", lambda: {"train.py": "1", "loaded_later.py": "1"})
    assert DIFFERS in resumed(lambda: draws_a_constant(FIXED), damage=saved_by("1"))
    assert resumed(lambda: draws_a_constant(FIXED), damage=saved_by("0")) == ""


def shortened(block: bytes) -> bytes:
    """It can be read, and has fewer numbers."""
    one = msgspec.msgpack.decode(block)
    sketched = [{name: row[:1] for name, row in phase.items()} for phase in one["sketched"]]
    return msgspec.msgpack.encode(one | {"sketched": sketched})


@pytest.mark.parametrize(
    "damage",
    [lambda block: block[:0], lambda block: block[:-9], lambda block: b"\xc1" + block, shortened],
    ids=["empty", "cut", "other", "short"],
)
def test_a_damaged_file_is_not_compared(damage: Callable[[bytes], bytes]) -> None:
    assert resumed(lambda: draws_a_constant(FIXED), damage=damage) == ""
