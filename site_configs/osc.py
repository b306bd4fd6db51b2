"""Ohio Supercomputer Center (Pitzer): QOS ``preemptible`` on reserved condo nodes. Set ``account``."""

from pilot.site.site import Site

site = Site(
    name="osc",
    description="OSC, preemptible",
    scheduler="slurm",
    qos="preemptible",
    walltime="24:00:00",
    walltime_min="00:30:00",
    guaranteed_s=900,
    charge_factor=1.0,  # no discount
    grace_s=0,
    launcher="srun",
    source="https://www.osc.edu/supercomputing/computing/pitzer/special_schedulings, read 2026-11-20",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "walltime: our choice; grace_s: no notice is documented; walltime_min: our choice",
    ),
)
