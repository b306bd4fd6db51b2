#!/bin/bash

#SBATCH --job-name=pilot-0123456789.TIME
#SBATCH --output=/run/pilots/pilot-0123456789.TIME.stdout
#SBATCH --error=/run/pilots/pilot-0123456789.TIME.stderr
#SBATCH --nodes=4
#SBATCH --time=150
#SBATCH --ntasks-per-node=1
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --constraint=gpu
#SBATCH --partition=preempt
#SBATCH --account=abc
#SBATCH --qos=low


export PILOT_WALLTIME_END=$(( $(date +%s) + 9000 ))
module load conda


export JOBNAME="pilot-0123456789.TIME"

exec srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --export=ALL --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none --kill-on-bad-exit=0 --wait=0 /opt/venv/bin/python -P -m pilot agent --connection /run/connection.json --interface hsn0 --fabric cxi
