"""A GAN with real workers and real MPI: its ranks die in each phase of a step, and nodes come and go."""

from __future__ import annotations

from pathlib import Path

from tests.integration.disturbed import same_as_alone

SCRIPT = Path(__file__).with_name("gan.py")


def test_ranks_die_in_each_phase_and_newcomers_get_all(tmp_path: Path) -> None:
    paces = ["--stops", "5:critic", "--stops", "22:generator", "--step-s", "0.04"]
    with same_as_alone(tmp_path, SCRIPT, epochs=6, paces=paces, rtol=1e-10) as run:
        cluster = run.cluster
        a, b, c, d, e = cluster.start(5)
        cluster.form([a, b])
        cluster.wait((tmp_path / "5:critic").exists, "the first stop")
        cluster.lose(b)
        cluster.wait_up(cluster.form([c, a]))  # in the first epoch, before anything is unfrozen
        cluster.wait((tmp_path / "22:generator").exists, "the second stop")
        cluster.lose(a)
        cluster.wait_up(cluster.form([c, d]))  # in the second
        cluster.wait_step(35)
        cluster.wait_up(cluster.form([e, c, d], switch=True))  # in a later one: it never unfreezes anything
