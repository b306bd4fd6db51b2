"""OLCF Summit: the ``killable`` queue. Decommissioned; kept for replays of its traces.

1-45 nodes are guaranteed 2 h, 46-91 nodes 6 h.
"""

from pilot.site.site import Site

site = Site(
    name="summit",
    description="OLCF Summit, killable (for replays only)",
    scheduler="lsf",
    queue="killable",
    walltime="24:00:00",
    guaranteed_s=7200,
    requeue=False,  # by default the same job id is requeued; -rn disables it
    grace_s=0,
    cores_per_node=42,
    ranks_per_node=6,
    topology=r"([a-h])(\d+)n",  # row, cabinet
    launcher="jsrun",
    interface="ib0",
    source="OLCF Summit user guide, killable queue",
    second_hand=(
        "collected from public documentation, not tried on the machine",
        "grace_s: no notice is documented",
    ),
    retired="decommissioned 2024-11-15",
)
