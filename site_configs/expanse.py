"""SDSC Expanse: the ``preempt`` partition (``gpu-preempt`` works the same way). Set ``account``."""

from pilot.site.site import Site

site = Site(
    name="expanse",
    description="SDSC Expanse, preempt",
    scheduler="slurm",
    partition="preempt",
    walltime="24:00:00",
    walltime_min="00:30:00",
    charge_factor=0.8,
    grace_s=0,
    launcher="srun",
    source="https://hpc-training.sdsc.edu (summer institute 2023, preemptible jobs), read 2026-11-20",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "walltime: no limit was found; grace_s: no notice is documented; walltime_min: our choice",
    ),
)
