"""NCAR Derecho: the ``preempt`` queue. Set ``account``."""

from pilot.site.site import Site

site = Site(
    name="derecho",
    description="NCAR Derecho, preempt",
    scheduler="pbspro",
    queue="preempt",
    walltime="24:00:00",
    guaranteed_s=600,
    charge_factor=0.2,
    grace_s=600,  # SIGTERM, ten minutes, SIGKILL
    cores_per_node=128,
    source="https://ncar-hpc-docs.readthedocs.io/en/latest/pbs/charging/ and pbs/preemption, read 2026-11-20",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "guaranteed_s: at least 10 min of run time; no interface is set: none was found",
    ),
)
