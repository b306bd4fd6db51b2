#!/bin/bash

#SBATCH --job-name=pilot-0123456789.TIME
#SBATCH --output=/run/pilots/pilot-0123456789.TIME.stdout
#SBATCH --error=/run/pilots/pilot-0123456789.TIME.stderr
#SBATCH --nodes=1
#SBATCH --time=150
#SBATCH --ntasks-per-node=1
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@300
#SBATCH --constraint=gpu
#SBATCH --exclusive
#SBATCH --partition=preempt
#SBATCH --account=abc
#SBATCH --qos=low
#SBATCH --cpus-per-task=64

export PILOT_WALLTIME_END=$(( $(date +%s) + 9000 ))
module load conda
export PARSL_CORES=64


export JOBNAME="pilot-0123456789.TIME"

exec srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --export=ALL --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none --kill-on-bad-exit=0 --wait=0 /opt/venv/bin/python -P -m pilot agent --connection /run/connection.json --interface hsn0
