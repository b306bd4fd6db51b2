#!/bin/bash
# One pilot on polaris: joins the pool whose connection file is named below. Submit it with: qsub pilot.sh
# When preempted, the agent leaves within the grace period of 8 s.
#PBS -N pilot
#PBS -S /shared/run/pilots/shell
#PBS -l walltime=72:00:00
#PBS -l select=1:ncpus=64:system=polaris
#PBS -q preemptable
#PBS -r y
#PBS -k oed
#PBS -l filesystems=home:eagle

# What the agent must know of the job, and what a shell on the node needs.
export PILOT_WALLTIME_END=$(( $(date +%s) + 259200 ))
export TMPDIR=/tmp

# "exec": the script becomes the step's launcher, so a signal to the script reaches the agent too.
exec python -P -m pilot agent --connection /shared/run/connection.json --interface bond0
