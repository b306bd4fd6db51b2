"""ALCF Crux: the ``preemptable`` queue, with Polaris' rules. Set ``account``."""

from pilot.site.site import Site

site = Site(
    name="crux",
    description="ALCF Crux, preemptable",
    scheduler="pbspro",
    queue="preemptable",
    walltime="72:00:00",
    max_jobs=20,
    max_jobs_scope="project",
    scheduler_options="#PBS -l filesystems=home:eagle",
    grace_s=8,  # "without warning", but OpenPBS sends TERM, and KILL 10 s later (kill_delay); not tried there
    cores_per_node=128,
    scratch_dir="/tmp",
    source="ALCF user guides: limits and preemption as on Polaris",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "max_jobs, scheduler_options, scratch_dir: carried over from Polaris",
        "cores_per_node; no interface is set: none was found",
    ),
)
