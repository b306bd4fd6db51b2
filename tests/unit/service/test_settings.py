"""The options of ``pilot up`` are restored from the journal's header, and checked."""

from __future__ import annotations

import msgspec
import pytest

from pilot.core.errors import UserError
from pilot.core.plan.objective import throughput
from pilot.core.pool.pool import join_order
from pilot.core.pool.topology import Topology
from pilot.rundir.journal import Configured
from pilot.service.settings import Settings, config_of, settings_of


def test_settings_come_back_and_make_the_cores_configuration() -> None:
    settings = Settings(planner="dp", objective="throughput", t_fwd_s=30.0, max_parallel_trainers=3, node_order="join")
    assert settings_of(msgspec.to_builtins(settings)) == settings
    config = settings.config()
    assert (config.objective, config.node_order) == (throughput, join_order)
    assert (config.t_fwd_s, config.max_parallel_trainers) == (30.0, 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"planner": "x"}, "unknown planner"),
        ({"solver": "x"}, "unknown solver"),
        ({"node_order": "x"}, "unknown node order"),
        ({"solve_limit_s": 0.0}, "greater than 0"),
        ({"objective": "x"}, "no objective named"),
        ({"objective": "pilot:nothing"}, "cannot load the objective"),
        ({"t_fwd_s": float("inf")}, "finite"),
        ({"solve_limit_s": float("nan")}, "finite"),
    ],
)
def test_what_makes_no_sense_is_the_users_error(changes: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Settings(**changes).config()


@pytest.mark.parametrize(("planner", "able"), [("milp", True), ("dp", True), ("equal-share", False)])
def test_a_planner_that_cannot_tell_types_apart_is_refused_where_there_are_several(planner: str, able: bool) -> None:
    settings = Settings(planner=planner)
    assert settings.config().typed is able
    plain = msgspec.to_builtins(settings)
    one, two = (Configured(plain, {"node_types": {name: {} for name in names}}) for names in ("a", "ab"))
    assert config_of(one).typed is able
    if able:
        assert config_of(two).typed
    else:
        with pytest.raises(UserError, match=f"--planner {planner} cannot tell types of nodes apart; use dp or milp"):
            config_of(two)


def test_the_topology_is_the_sites() -> None:
    settings = msgspec.to_builtins(Settings(node_order="topology"))
    assert config_of(Configured(settings, {"topology": "(x[0-9]+)c"})).topology == Topology("(x[0-9]+)c")
    with pytest.raises(UserError, match="the site file defines no topology"):
        config_of(Configured(settings, {"topology": None}))
    assert config_of(Configured(msgspec.to_builtins(Settings()), {"topology": "(x)"})).topology is None
