"""NERSC Perlmutter: QOS ``preempt`` on GPU nodes (at most 128 nodes, at least 2 h requested). Set ``account``."""

from pilot.site.site import Site

site = Site(
    name="perlmutter",
    description="NERSC Perlmutter, GPU nodes, preempt",
    scheduler="slurm",
    qos="preempt",
    walltime="48:00:00",
    walltime_min="02:00:00",  # a shorter request is refused
    guaranteed_s=7200,
    charge_factor=0.25,
    requeue=False,
    scheduler_options="#SBATCH --constraint=gpu\n#SBATCH --gpus-per-node=4",
    notice_signal="USR1",
    notice_lead_s=300,
    grace_s=300,
    ranks_per_node=4,
    launcher="srun",
    interface="hsn0",
    source="https://docs.nersc.gov/jobs/policy/; public scripts that use --requeue --signal=USR1@300",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "charge_factor: the first 2 h are charged in full, then a quarter on GPU nodes (from users' scripts)",
        "grace_s: taken from the signal's lead in users' scripts; interface: as on other Slingshot machines",
    ),
)
