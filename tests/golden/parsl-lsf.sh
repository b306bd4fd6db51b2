#!/bin/bash

#BSUB -W 60
#BSUB -J pilot-0123456789.TIME
#BSUB -o /run/pilots/pilot-0123456789.TIME.submit.stdout
#BSUB -e /run/pilots/pilot-0123456789.TIME.submit.stderr
#BSUB -r
#BSUB -wa URG
#BSUB -wt 2
#BSUB -P abc
#BSUB -q killable
#BSUB -nnodes 1


export PILOT_WALLTIME_END=$(( $(date +%s) + 3600 ))

export JOBNAME="pilot-0123456789.TIME"

exec jsrun -n 1 -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS -b none /opt/venv/bin/python -P -m pilot agent --connection /run/connection.json
