"""IT4I Karolina: ``qcpu_preempt``, free of charge (``qgpu_preempt`` works the same way). Set ``account``."""

from pilot.site.site import Site

site = Site(
    name="karolina",
    description="IT4I Karolina, qcpu_preempt",
    scheduler="slurm",
    partition="qcpu_preempt",
    walltime="12:00:00",
    walltime_min="00:30:00",
    charge_factor=0,
    requeue=False,  # the site requeues a preempted job unless told otherwise
    grace_s=0,
    launcher="srun",
    source="https://docs.it4i.cz/general/resources-allocation-policy/, read 2026-11-20",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "walltime: our choice; grace_s: no notice is documented; walltime_min: our choice",
    ),
)
