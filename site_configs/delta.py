"""NCSA Delta: ``gpuA100x4-preempt``. Set ``account``.

``gpuA40x4-preempt`` (charge 0.25) and ``cpu-preempt`` (0.5) work the same way: see ``Site.replace``. Nodes are shared
by default, hence ``exclusive`` and all of the memory.
"""

from pilot.site.site import Site

site = Site(
    name="delta",
    description="NCSA Delta, gpuA100x4-preempt",
    scheduler="slurm",
    partition="gpuA100x4-preempt",
    walltime="48:00:00",
    walltime_min="00:30:00",
    guaranteed_s=600,
    charge_factor=0.5,
    requeue=False,  # also the site's default
    scheduler_options="#SBATCH --mem=0\n#SBATCH --gpus-per-node=4",
    grace_s=300,  # the site itself sends SIGTERM and SIGCONT, and SIGKILL after 300 s
    cores_per_node=64,
    ranks_per_node=4,
    launcher="srun",
    source="https://docs.ncsa.illinois.edu/systems/delta/en/latest/user_guide/",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "walltime_min: our choice",
    ),
)
