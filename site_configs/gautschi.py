"""Purdue Gautschi: partition ``ai``, QOS ``preemptible``. Set ``account``."""

from pilot.site.site import Site

site = Site(
    name="gautschi",
    description="Purdue Gautschi, ai, preemptible",
    scheduler="slurm",
    partition="ai",
    qos="preemptible",
    walltime="24:00:00",
    walltime_min="00:30:00",
    notice_signal="USR1",
    notice_lead_s=180,
    grace_s=180,
    ranks_per_node=8,
    scheduler_options="#SBATCH --gpus-per-node=8",
    launcher="srun",
    source="https://rcac.purdue.edu/knowledge/gautschi/run/slurm/queues; public scripts with --signal=B:USR1@180",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "walltime: no limit was found; grace_s: taken from the signal's lead in users' scripts",
        "ranks_per_node: eight H100s per node; walltime_min: our choice",
    ),
)
