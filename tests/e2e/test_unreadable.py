"""Checkpoints that cannot be read for seconds, or are damaged: nothing is lost, and nothing starts over unasked."""

from __future__ import annotations

from pilot.checkpoint import store
from tests.e2e.acts import training
from tests.e2e.proof import proved
from tests.pools import Pool


def test_seconds_without_the_folder_and_damaged_checkpoints(pool: Pool) -> None:
    name = training(pool, 1, step=30)
    checkpoints = (pool.run_dir / "trainers" / name).resolve() / "checkpoints"

    def hold() -> int:
        pool.pilot("hold", name)
        pool.until("it has no node", lambda s: s.trainer(name).phase == "queued" and s.pool[0].trainer is None)
        return pool.trainer(name).step

    held = hold()
    away = checkpoints.rename(checkpoints.with_name("away"))
    pool.pilot("release", name)
    pool.until("it is tried again", lambda s: any("tried again" in text for text in s.trainer(name).remarks))
    away.rename(checkpoints)
    pool.until_step(name, held + 10, nodes=1)
    assert (pool.trainer(name).lost_steps, pool.trainer(name).redone_steps) == (0, 0)

    held = hold()
    for entry in store.listing(checkpoints):
        entry.path.write_bytes(entry.path.read_bytes()[:1000])
    damaged = [entry.path for entry in store.listing(checkpoints)]
    pool.pilot("release", name)
    pool.until("it is held", lambda s: "its state cannot be loaded" in s.trainer(name).held)
    pool.until("it has no node", lambda s: s.pool[0].trainer is None)
    assert "the file is truncated" in " ".join(pool.pilot("ls").stdout.split())
    for command in (("explain", name), ("events", "--trainer", name)):
        assert f"pilot resume {name} --from-scratch" in " ".join(pool.pilot(*command).stdout.split())
    refused = pool.pilot("resume", name, check=False)
    assert (refused.returncode, f"pilot release {name}" in refused.stderr) == (2, True)
    pool.pilot("resume", name, "--from-scratch")
    pool.until("it starts from scratch", lambda s: s.trainer(name).lost_steps == held)
    pool.until("new ones", lambda _: len(store.listing(checkpoints)) >= len(damaged) + 3)
    assert set(damaged) < {entry.path for entry in store.listing(checkpoints)}
    done = pool.finish(name)
    assert done.lost_steps == held
    proved(pool, name)
