#!/bin/bash

#PBS -S /bin/bash
#PBS -N pilot-0123456789.TIME
#PBS -m n
#PBS -l walltime=72:00:00
#PBS -l select=2:ncpus=64:system=polaris
#PBS -o /run/pilots/pilot-0123456789.TIME.stdout
#PBS -e /run/pilots/pilot-0123456789.TIME.stderr
#PBS -r n
#PBS -k oed
#PBS -l filesystems=home:eagle
#PBS -S /run/pilots/shell

export PILOT_WALLTIME_END=$(( $(date +%s) + 259200 ))

export JOBNAME="pilot-0123456789.TIME"

exec mpiexec -n 2 --ppn 1 --cpu-bind none /opt/venv/bin/python -P -m pilot agent --connection /run/connection.json

