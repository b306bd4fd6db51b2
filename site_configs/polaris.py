"""ALCF Polaris: the ``preemptable`` queue, preempted by ``demand`` (1-56 nodes, up to an hour). Set ``account``.

The limit of 20 jobs running, accruing or queued holds *per project*: raise ``nodes_per_pilot`` (with launcher "pals")
if that is too few. Login nodes allow 128 tasks per user.
"""

from pilot.site.site import Site

site = Site(
    name="polaris",
    description="ALCF Polaris, preemptable",
    scheduler="pbspro",
    queue="preemptable",
    walltime="72:00:00",
    max_jobs=20,
    max_jobs_scope="project",
    requeue=False,  # the queue also honours "-r y"
    scheduler_options="#PBS -l filesystems=home:eagle",
    select_options="system=polaris",
    grace_s=8,  # "without warning", but OpenPBS sends TERM, and KILL 10 s later (kill_delay); not tried there
    cores_per_node=64,
    ranks_per_node=4,
    scratch_dir="/tmp",  # the default path is too long for a Unix socket
    bind_interface="bond0",
    advertise_interface="bond0",
    interface="bond0",
    source="ALCF user guides, running jobs; interface and launcher options from Parsl's configuration for Polaris",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "cores_per_node, ranks_per_node: one 32-core CPU with two threads a core and four A100s per node",
    ),
)
