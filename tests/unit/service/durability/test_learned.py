"""What trainers measured on a site is there for later pools, complete or not at all."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import ON_SUMMIT
from pilot.core.curves.measured import Measured
from pilot.core.curves.points import ANOTHER_RUN, DRIFT_MOST
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId, TrainerUid
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer
from pilot.service.durability import learned
from pilot.service.durability.learned import Learned, Measurement
from pilot.service.settings import Settings

SLOW = Measurement("/s/slow.py", [(1, 100.0, 0.01), (4, 250.0, 0.01), (16, 500.0, 0.01)])
FAST = Measurement("/s/fast.py", [(1, 10.0, 0.01), (16, 155.0, 0.01)])
SPEC = TrainerSpec(TrainerId("t"), script="/s/slow.py")


def kept(folder: Path, **measured: Measurement) -> Learned:
    for at, (uid, one) in enumerate(measured.items()):
        Learned(folder, "summit").write([(TrainerUid(uid), one)])
        os.utime(folder / f"{uid}.json", ns=(at, at))
    return Learned.read(folder, "summit")


def test_the_rates_of_a_script_are_known_in_the_next_pool(tmp_path: Path) -> None:
    again = kept(tmp_path / "a" / "b", u1=FAST, u2=SLOW)
    spec = again.with_known(SPEC)
    assert spec.curve is None and spec.known_from == "an earlier trainer on summit"
    assert [(p.nodes, p.per_s) for p in spec.known] == [(1, 100.0), (4, 250.0), (16, 500.0)]
    assert all(p.error > DRIFT_MOST and p.visits == 0 for p in spec.known), "another run, long ago"
    assert 500 < Measured(spec).curve.at(64) < 1600
    for other in (
        replace(SPEC, script="/s/new.py"),
        replace(SPEC, reprofile=True),
        replace(SPEC, curve=Curve.proportional()),
    ):
        assert again.with_known(other) == other


def test_points_in_any_order_are_usable(tmp_path: Path) -> None:
    points: list[tuple[int, float, float]] = [(16, 500.0, 0.01), (1, 90.0, 0.01), (4, 250.0, 0.01), (1, 100.0, 0.01)]
    spec = kept(tmp_path, u=Measurement(SPEC.script, points)).with_known(SPEC)
    assert [(p.nodes, p.per_s) for p in spec.known] == [(1, 100.0), (4, 250.0), (16, 500.0)]
    assert Measured(spec).curve.at(4) == 250.0


def test_what_was_measured_lately_is_more_certain(tmp_path: Path) -> None:
    Learned(tmp_path, "summit").write([(TrainerUid("u"), SLOW)])
    known = Learned.read(tmp_path, "summit").with_known(SPEC).known
    assert all(ANOTHER_RUN < p.error < DRIFT_MOST for p in known)


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    kept(tmp_path / "learned", u1=FAST)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "learned", tmp_path / "learned" / "u1.json")]
    assert modes == [0o700, 0o600]


def test_slow_trainers_of_a_site_let_a_slow_one_be_expected(tmp_path: Path) -> None:
    again = kept(tmp_path, **{f"u{i}": msgspec.structs.replace(SLOW, script=f"/s/{i}.py") for i in range(6)})
    assert again.priors.ln_b.mean > ON_SUMMIT.ln_b.mean + 0.5
    plain = (again.priors.ln_a.mean, again.priors.ln_a.sd, again.priors.ln_b.mean, again.priors.ln_b.sd)
    assert Settings(priors=plain).config().priors == again.priors
    assert Learned.read(tmp_path / "nothing", "summit").priors == Settings().config().priors == ON_SUMMIT
    with pytest.raises(UserError, match="priors: two finite means"):
        Settings(priors=(0.0, 0.0, 0.0, 1.0)).config()


def test_a_script_that_ran_often_says_no_more_than_once_about_others(tmp_path: Path) -> None:
    once = kept(tmp_path / "once", u1=FAST, u2=SLOW).priors
    assert kept(tmp_path / "often", u1=FAST, **{f"u{i}": SLOW for i in range(2, 9)}).priors == once


def test_damaged_files_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    kept(tmp_path, u1=FAST)
    (tmp_path / "cut.json").write_bytes((tmp_path / "u1.json").read_bytes()[:30])
    (tmp_path / "far.json").write_text('{"script": "/s/slow.py", "points": [[1, 1e99, 0], [2, 1e99, 0]]}')
    (tmp_path / "large.json").write_bytes(b" " * (learned.BYTES_MOST + 1))
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.json").mkdir()
    assert list(Learned.read(tmp_path, "summit").found) == ["u1"]


def test_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "KEPT", 2)
    assert list(kept(tmp_path, u1=FAST, u2=SLOW, u3=FAST).found) == ["u2", "u3"]


def test_where_nothing_can_be_kept_the_pool_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    Learned(tmp_path / "file" / "here", "summit").write([(TrainerUid("u"), FAST)])
    assert "cannot store what trainers measured" in caplog.text
    Learned(None, "summit").write([(TrainerUid("u"), FAST)])


def test_a_trainer_is_written_with_each_new_count_and_at_its_end(tmp_path: Path) -> None:
    spec = replace(SPEC, uid=TrainerUid("u"))
    trainer, keeper = Trainer(spec, Measured(spec)), Learned(tmp_path, "summit")
    written = []
    for nodes in (1, 1, 4, 4, 16):
        trainer.measured.rate(10.0, nodes, 100.0 * nodes)
        written.append([len(one.points) for _, one in keeper.changes([trainer])])
    assert written == [[], [], [2], [], [3]]
    assert keeper.changes([trainer]) == []
