"""TACC Frontera: the ``flex`` queue. Set ``account``.

15 jobs run and 60 may be submitted; more than 15 pilots would only wait.
"""

from pilot.site.site import Site

site = Site(
    name="frontera",
    description="TACC Frontera, flex",
    scheduler="slurm",
    partition="flex",
    walltime="48:00:00",
    walltime_min="00:30:00",
    guaranteed_s=3600,  # after that it may be cancelled
    max_jobs=15,
    charge_factor=0.8,
    grace_s=0,
    launcher="srun",
    source="TACC Frontera user guide, queues",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "grace_s: no notice is documented",
        "walltime_min: our choice",
    ),
)
