#!/bin/bash
# One pilot on lsf: joins the pool whose connection file is named below. Submit it with: bsub < pilot.sh
# Preemption comes without notice: training continues on the other nodes, or from a checkpoint.
#BSUB -J pilot
#BSUB -nnodes 1
#BSUB -W 01:00
#BSUB -q killable
#BSUB -P abc
#BSUB -rn

# What the agent must know of the job, and what a shell on the node needs.
export PILOT_WALLTIME_END=$(( $(date +%s) + 3600 ))

# "exec": the script becomes the step's launcher, so a signal to the script reaches the agent too.
exec jsrun -n 1 -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS -b none python -P -m pilot agent --connection /shared/run/connection.json
