"""This machine with two types of nodes: each pilot may use a part of a core. It needs root, and the cpu controller of
control groups (version 1 or 2). Try it::

    pilot up --site tests/e2e/mixed_site.py --pilots fast:2 --pilots slow:2
    pilot submit --max-nodes 4 examples/digits_cnn.py --epochs 2000
    pilot status; pilot explain t1
"""

from pilot.site.site import Site

PERIOD_US = 10_000
FOLDER = "pilot-mixed"

LIMITED = """\
export OMP_NUM_THREADS=1
cpu=/sys/fs/cgroup/cpu; [ -d $cpu ] || cpu=/sys/fs/cgroup
mkdir -p $cpu/{folder}
if [ -e $cpu/cgroup.controllers ]; then
  echo +cpu > $cpu/cgroup.subtree_control; echo +cpu > $cpu/{folder}/cgroup.subtree_control
fi
rmdir $cpu/{folder}/* 2>/dev/null  # of pilots that have ended
own=$cpu/{folder}/$$
mkdir $own
if [ -e $own/cpu.max ]; then
  echo "{quota_us} {period_us}" > $own/cpu.max
else
  echo {period_us} > $own/cpu.cfs_period_us; echo {quota_us} > $own/cpu.cfs_quota_us
fi
echo $$ > $own/cgroup.procs"""


def limited(cores: float) -> dict[str, object]:
    """A type of nodes with so many cores."""
    quota_us = round(cores * PERIOD_US)
    return {"prologue": LIMITED.format(folder=FOLDER, period_us=PERIOD_US, quota_us=quota_us)}


site = Site(
    name="mixed",
    scheduler="local",
    grace_s=10,
    bind_address="127.0.0.1",
    interface="lo",
    poll_s=0.5,
    heartbeat_s=0.5,
    silent_s=20,
    orphan_s=60,
    form_timeout_s=60,
    checkpoint_interval_s=2,
    check="off",
    node_types={"fast": limited(0.4), "slow": limited(0.2) | {"charge_factor": 0.5}},
)
