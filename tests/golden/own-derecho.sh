#!/bin/bash
# One pilot on derecho: joins the pool whose connection file is named below. Submit it with: qsub pilot.sh
# When preempted, the agent leaves within the grace period of 600 s.
#PBS -N pilot
#PBS -S /shared/run/pilots/shell
#PBS -l walltime=24:00:00
#PBS -l select=1:ncpus=128
#PBS -q preempt
#PBS -r y
#PBS -k oed

# What the agent must know of the job, and what a shell on the node needs.
export PILOT_WALLTIME_END=$(( $(date +%s) + 86400 ))

# "exec": the script becomes the step's launcher, so a signal to the script reaches the agent too.
exec python -P -m pilot agent --connection /shared/run/connection.json
