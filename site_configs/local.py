"""This machine, without a batch system: pilots are local processes. For the demo, tests and first steps."""

from pilot.site.site import Site

site = Site(
    name="local",
    description="this machine, pilots are local processes",
    scheduler="local",
    walltime="24:00:00",
    max_jobs=8,
    notice_signal="TERM",
    grace_s=5,
    bind_address="127.0.0.1",
    interface="lo",
    poll_s=1,
    heartbeat_s=1,
    silent_s=10,
    orphan_s=30,
    form_timeout_s=30,
    checkpoint_interval_s=10,
    prologue="export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}",  # the pilots share this machine's cores
    source="none: there is no scheduler",
)
