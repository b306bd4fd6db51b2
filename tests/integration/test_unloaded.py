"""A worker whose checkpoint cannot be loaded tries again for a while, then says so and awaits the next generation."""

from __future__ import annotations

from pathlib import Path

from pilot.checkpoint import store
from pilot.core.events import Unloaded
from pilot.protocol import wire
from tests.integration.plane import plane

SCRIPT = Path(__file__).with_name("script.py")


def test_a_folder_that_comes_back_and_a_file_that_is_mended(tmp_path: Path) -> None:
    arguments = ["--epochs", "1000", "--global-batch-size", "32", "--gate", str(tmp_path / "gate")]
    arguments += ["--save", str(tmp_path / "saved.pt")]
    with plane(tmp_path, SCRIPT, *arguments, interval_s=0.1) as cluster:
        a, b = cluster.start(2)
        cluster.form([a])
        cluster.wait(lambda: bool(a.heard(wire.CheckpointWritten)), "a checkpoint")
        cluster.kill(a)
        cluster.dissolve()
        checkpoints = tmp_path / "checkpoints"
        newest = store.listing(checkpoints)[0]

        away = checkpoints.rename(tmp_path / "away")
        generation = cluster.form([b], wait=False)
        cluster.wait(lambda: bool(b.heard(wire.Remark)), "that it is tried again")
        assert "which is tried again: cannot read the folder" in b.heard(wire.Remark)[0].text
        away.rename(checkpoints)
        assert cluster.wait_up(generation).resumed == newest.age.step
        cluster.kill(b)
        cluster.dissolve()

        (c,) = cluster.start()
        whole = {entry.path: entry.path.read_bytes() for entry in store.listing(checkpoints)}
        for path, content in whole.items():
            path.write_bytes(content[:1000])
        generation = cluster.form([c], wait=False)
        broken = cluster.wait_for(c, wire.GroupBroken, generation)
        assert broken.unloaded is Unloaded.DAMAGED
        assert "cannot be used: the file is truncated" in broken.reason
        cluster.dissolve()
        for path, content in whole.items():
            path.write_bytes(content)
        up = cluster.wait_up(cluster.form([c]))
        assert up.resumed == max(whole_age.age.step for whole_age in store.listing(checkpoints))
