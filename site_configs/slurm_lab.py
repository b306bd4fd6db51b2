"""The Slurm lab of ``tests/slurm``: six nodes on one machine, with partitions ``preempt``, ``requeue`` and ``high``.

Bring it up with ``python -m tests.slurm.lab up FOLDER`` and export the SLURM_CONF that it prints.
"""

from pilot.site.site import Site

site = Site(
    name="slurm_lab",
    description="six nodes of a real Slurm on this machine, for tests",
    scheduler="slurm",
    partition="preempt",
    walltime="01:00:00",
    walltime_min="00:02:00",
    launcher="srun",
    notice_signal="USR1",
    notice_lead_s=60,
    grace_s=20,
    bind_address="127.0.0.1",
    interface="lo",
    poll_s=2,
    command_timeout_s=10,
    heartbeat_s=1,
    silent_s=10,
    orphan_s=30,
    form_timeout_s=30,
    checkpoint_interval_s=10,
    prologue="export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}",  # the pilots share this machine's cores
    source="tests/slurm/lab.py",
)
